"""How much of a device's peak a kernel reaches, by its shape.

A large product runs at the peak of the device table. A smaller one leaves multiprocessors idle:
its result is cut into tiles, of which the busiest multiprocessor computes ``ceil(tiles / units)``,
each padded to its full size. Attention reaches a part of the peak that depends on the kernel, and
skips tiles that a causal mask hides. All is said as work: the arithmetic of a large product that
takes as long, which the roofline then divides by the peak.

Tiles and their figures were fitted to products of 1 to 40,000 rows on an A100 and an H100 (the
profiles of Vidur, arXiv:2405.05465, which irc does not ship). Half of those was held out: there the
median error is 5 and 8 % with the peaks of the presets, and 5 and 6 % with peaks of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil

from irc.cluster.device import Device
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.placement import Mesh
from irc.dialects.types import TensorType
from irc.ops.shapes import SHAPED, Attention, Product, shape_of
from irc.ops.work import Sharded, factors, flops, local_factors, local_flops

TILES = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.65), (256, 64, 0.65), (64, 256, 0.65),
    (128, 64, 0.65), (64, 128, 0.65), (64, 64, 0.55), (16, 256, 0.3), (256, 16, 0.3),
)  # fmt: skip
"""Rows and columns of a tile, and the part of the peak that a multiprocessor reaches with it."""
FILL = 40
"""Steps of k that the start and the end of a tile take."""
PLAIN = 0.3
"""Of the highest peak: a dtype with less is computed on plain units, in tiles that all reach it."""
PARTS = (1, 2, 4, 8, 16, 32)
"""Into how many parts k may be cut, so that more multiprocessors have work."""
EXPONENTIAL_FLOPS = 128
"""Arithmetic on tensor cores in the time of an exponential: 2048 or 4096 a clock, and 16 or so
exponentials, of which some run beside the products."""
ATTENTION_ROWS = 128
"""Rows of q that one multiprocessor computes together."""
EDGE_KEYS = 256
"""Keys of the tile at a causal mask's edge: a row computes half of it in vain."""
START_KEYS, START_KEYS_BACKWARD = 90, 250
"""The keys in whose time rows are loaded and stored, sums prepared and gradients converted."""


def op_work(device: Device, op: FlowOp) -> float:
    """Return the work of a whole op on a device, in operations at its peak.

    Raises:
        RuleError: where a size is still symbolic.
    """
    if device.units and op.name in SHAPED and (shape := shape_of(op, *factors(op))):
        return _all_work(device, shape, computed_in(op))
    return flops(op)


def local_work(device: Device, op: FlowOp, signature: Sharded, mesh: Mesh) -> float:
    """Return the work of the busiest rank on a device, in operations at its peak."""
    if device.units and op.name in SHAPED:
        shape = shape_of(op, *local_factors(op, signature, mesh))
        if shape is not None:
            return _all_work(device, shape, computed_in(op))
    return local_flops(op, signature, mesh)


def _all_work(device: Device, shape: Product | Attention, dtype: str) -> float:
    """Return the work of all kernels of an op."""
    if isinstance(shape, Product) or not shape.apart:
        return shape_work(device, shape, dtype)
    return sum(
        shape_work(device, replace(shape, products=products, apart=()), dtype)
        for products in shape.apart
    )


def computed_in(op: FlowOp) -> str:
    """Return the dtype whose peak an op reaches: that of its result.

    A library op whose result is kept wider than its operands multiplies these.
    """
    result_dtypes, operand_dtypes = (
        [value.type.dtype for value in values if isinstance(value.type, TensorType)]
        for values in (op.outputs, op.inputs)
    )
    dtype = next(iter((*result_dtypes, *operand_dtypes)), "f32")
    is_wider = (
        isinstance(op, ExternOp)
        and dtype == "f32"
        and operand_dtypes
        and operand_dtypes[0] != dtype
    )
    return operand_dtypes[0] if is_wider and operand_dtypes[0] in ("f16", "bf16") else dtype


def shape_work(device: Device, shape: Product | Attention, dtype: str = "f16") -> float:
    """Return the work of a product or of attention, in operations at the device's peak.

    Args:
        device: its units are known.
        shape: of the kernel.
        dtype: what is multiplied.

    >>> a100 = Device("A100", {"f32": 19e12, "f16": 250e12}, 1.6e12, 2**36, 7e-6, units=108)
    >>> whole, narrow = Product(1, 8192, 8192, 8192), Product(1, 8, 8192, 8192)
    >>> [f"{2 * p.m * p.n * p.k / shape_work(a100, p):.2f}" for p in (whole, narrow)]
    ['0.99', '0.13']
    """
    if isinstance(shape, Product):
        # Plain units are slower, and loads and smaller tiles hold them up less.
        part = device.flops(dtype) / max(device.peak_flops.values())
        return _product_work(device.units, shape, FILL * part, part < PLAIN)
    return _attention_work(device, shape)


def product_work(device: Device, p: Product, dtype: str) -> float:
    """Return the work of a product on any device: on one without known units, its arithmetic."""
    return shape_work(device, p, dtype) if device.units else 2.0 * p.batch * p.m * p.n * p.k


@lru_cache(maxsize=1 << 14)
def _product_work(units: int, p: Product, fill: float, is_plain: bool) -> float:
    """Return the least over tiles and parts of ``waves * tile * (k / parts + fill)``."""
    best = float("inf")
    for rows, columns, reached in TILES:
        part = 1.0 if is_plain else reached
        tiles = p.batch * -(-p.m // rows) * -(-p.n // columns)
        for parts in PARTS:
            waves = -(-tiles * parts // units)
            best = min(best, waves * rows * columns * (p.k / parts + fill) / part)
            if tiles * parts >= 4 * units:
                break
    return 2 * units * best


def _attention_work(device: Device, a: Attention) -> float:
    start = START_KEYS_BACKWARD if a.backward else START_KEYS
    scores = a.heads * a.rows * (a.keys * seen(a) + start)
    blocks = a.heads * ceil(a.rows / ATTENTION_ROWS)
    if blocks < device.units:
        # Keys are divided as well (flash decoding).
        blocks = min(device.units, blocks * ceil(a.keys / EDGE_KEYS))
    idle = -(-blocks // device.units) * device.units / blocks
    reached = device.attention_backward if a.backward else device.attention
    return scores * (a.products + EXPONENTIAL_FLOPS) * idle / reached


def seen(a: Attention) -> float:
    """Return the part of the scores that are computed, from 0 to 1.

    A causal mask hides half of them where rows and keys are as many. Of rows that stand elsewhere,
    as of a rank that has some of them, the last are taken: they see the most.

    >>> round(seen(Attention(1, 4096, 4096, 256, causal=True)), 3)
    0.531
    """
    if not a.causal:
        return 1.0
    if a.shifted:
        return 1.0 if a.rows >= a.keys else 1.0 - a.rows / (2 * a.keys)
    first = min(a.rows, a.keys)  # what stands below sees all keys
    hidden = first * (a.keys - (first + EDGE_KEYS) / 2)
    return min(1.0, 1.0 - hidden / (a.rows * a.keys))
