"""Attention kernels written by hand, and what they mean in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from xdsl.dialects.builtin import BoolAttr, FloatAttr, f64
from xdsl.ir import Block

from irc.dialects.attention import AttentionForm, KernelAttentionOp, Place
from irc.dialects.mapping import compose, repeat, spatial
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.runtime.dtypes import dtypes


@dataclass(frozen=True)
class Attend:
    """What a kernel computes; ``mask`` is none, bool, float, or bool_keys ([B, 1, 1, T]).

    Batch, rows and keys may be sizes with names.
    """

    batch: Any = 2
    groups: int = 2
    repeats: int = 1
    rows: Any = 37
    keys: Any = 53
    depth: int = 16
    width: int = 16
    dtype: str = "f32"
    causal: bool = False
    mask: str = ""
    start: bool = False
    goes_on: bool = False
    sums: bool = False
    parts: int = 1
    scale: float = 0.25
    name: str = "attention"


def kernel_of(a: Attend) -> KernelOp:
    """Build the kernel; q, k and v lie as [B, S, heads, features], as projections leave them."""
    heads, chunk = a.groups * a.repeats, a.keys if a.parts == 1 else -(-a.keys // a.parts)
    space = (a.batch, a.groups, a.repeats, a.rows, a.parts, chunk)

    def rows_of(length: int, count: int, features: int) -> tuple[int, tuple[int, ...], int]:
        per_row = count * features
        return a.batch * length * per_row, (length * per_row, per_row, features), 1

    roles: list[tuple[str, str, int, tuple[int, ...], int]] = []
    size, (b, s, h), f = rows_of(a.rows, heads, a.depth)
    roles.append(("q", a.dtype, size, (b, a.repeats * h, h, s, 0, 0), f))
    for role, features in (("k", a.depth), ("v", a.width)):
        size, (b, s, h), f = rows_of(a.keys, a.groups, features)
        roles.append((role, a.dtype, size, (b, h, 0, 0, chunk * s, s), f))
    if a.mask == "bool_keys":
        strides = (a.keys, 0, 0, 0, chunk, 1)
        roles.append(("mask", "i1", a.batch * a.keys, strides, 0))
    elif a.mask:
        strides = (0, 0, 0, a.keys, chunk, 1)
        kind = "i1" if a.mask == "bool" else a.dtype
        roles.append(("mask", kind, a.rows * a.keys, strides, 0))
    if a.start:
        roles.append(("start", "i64", 1, (0,) * 6, 0))
    size, (b, s, h), f = rows_of(a.rows, heads, a.width)
    placed = (b, a.repeats * h, h, s, 0, 0)
    per_row = (heads * a.rows, a.repeats * a.rows, a.rows, 1, 0, 0)
    if a.goes_on:
        roles.append(("y0", a.dtype, size, placed, f))
        roles.append(("sums0", "f32", a.batch * heads * a.rows, per_row, 0))
    y_dtype = "f32" if a.parts > 1 else a.dtype
    part = (size, a.batch * heads * a.rows) if a.parts > 1 else (0, 0)
    roles.append(("y", y_dtype, size * a.parts, (*placed[:4], part[0], 0), f))
    if a.sums or a.parts > 1:
        count = a.batch * heads * a.rows * a.parts
        roles.append(("sums", "f32", count, (*per_row[:4], part[1], 0), 0))
    return _kernel(a, space, roles)


def moving(space, strides) -> tuple[int, ...]:
    """Return strides as plans have them: a dim of one element has none."""
    return tuple(0 if size == 1 else s for size, s in zip(space, strides, strict=True))


def _kernel(a, space, roles) -> KernelOp:
    block = Block(arg_types=[BufferType.of(size, dtype) for _, dtype, size, _, _ in roles])
    op = KernelAttentionOp.make(
        list(block.args), [],
        roles=tuple(role for role, *_ in roles),
        offsets=tuple(0 for _ in roles),
        strides=tuple(s for _, _, _, strides, f in roles for s in (*moving(space, strides), f)),
        keys=a.keys, features=(a.depth, a.width),
    )  # fmt: skip
    op.properties["scale"] = FloatAttr(a.scale, f64)
    op.properties["causal"] = BoolAttr.from_bool(a.causal)
    block.add_op(op)
    inputs = sum(role not in ("y", "sums") for role, *_ in roles)
    named = not all(isinstance(size, int) for size in space)
    kernel = KernelOp.make(
        a.name, block, template="attention", space=space, parallel=5, num_inputs=inputs,
        mapping=compose(spatial(*([1] * 5 if named else space[:5])), repeat(1, 1, 1, 1, 1)),
        sources=["n7"],
    )  # fmt: skip
    kernel.verify()
    return kernel


def inputs_of(a: Attend, kernel: KernelOp, seed: int = 0) -> list[torch.Tensor]:
    """Return random inputs; one row of a mask is empty, or all of what ``finfo.min`` leaves."""
    generator = torch.Generator().manual_seed(seed)
    form = _form(kernel)
    inputs = []
    for role, place in form.places.items():
        if role in ("y", "sums"):
            continue
        if role == "start":
            inputs.append(torch.tensor([a.keys - a.rows]))
        elif place.dtype == "i1":
            mask = torch.rand(place.size, generator=generator) < 0.7
            mask[: a.keys] = False
            inputs.append(mask)
        else:
            value = torch.randn(place.size, generator=generator, dtype=torch.float64)
            if role == "mask" and place.dtype == "f32":
                value[: a.keys] = torch.finfo(torch.float32).min
            inputs.append(value.to(dtypes()[place.dtype]))
    return inputs


def _form(kernel: KernelOp) -> AttentionForm:
    (op,) = kernel.body.block.ops
    assert isinstance(op, KernelAttentionOp)
    return op.form


def meaning(kernel: KernelOp, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return y (and sums) in float64, one task at a time."""
    form = _form(kernel)
    outputs = {
        role: torch.full((form.places[role].size,), torch.nan, dtype=torch.float64)
        for role in ("y", "sums") if role in form.places
    }  # fmt: skip
    for task in product(*map(range, form.space[:-1])):
        y, total = _task(form, inputs, task)
        outputs["y"][_at(form.places["y"], (*task, 0), form.width)] = y
        if "sums" in outputs:
            outputs["sums"][_at(form.places["sums"], (*task, 0), 1)] = total
    return list(outputs.values())


def _task(form: AttentionForm, inputs, task):
    def value(role: str, key: int, features: int) -> torch.Tensor:
        place = form.places[role]
        return inputs[place.buffer][_at(place, (*task, key), features)].double()

    row, part = task[-2], task[-1]
    keys = [t for t in range(form.chunk) if part * form.chunk + t < form.keys]
    start = int(value("start", 0, 1)) if "start" in form.places else 0
    q = value("q", 0, form.depth)
    scores, values = [], []
    for t in keys:
        x = float(q @ value("k", t, form.depth)) * form.scale
        if (mask := form.places.get("mask")) is not None:
            entry = float(value("mask", t, 1))
            x = x + entry if mask.dtype != "i1" else (x if entry else -math.inf)
        if form.causal and row + start < part * form.chunk + t:
            x = -math.inf
        scores.append(x)
        values.append(value("v", t, form.width))
    line = torch.tensor(scores, dtype=torch.float64)
    total = torch.logsumexp(line, 0)
    if total == -math.inf:
        y = torch.zeros(form.width, dtype=torch.float64)
    else:
        y = (torch.softmax(line, 0)[:, None] * torch.stack(values)).sum(0)
    if "y0" in form.places:
        before, y0 = value("sums0", 0, 1)[0], value("y0", 0, form.width)
        both = torch.logaddexp(before, total)
        y = torch.exp(before - both) * y0 + torch.exp(total - both) * y
        total = both
    return y, total


def _at(place: Place, point: tuple[int, ...], features: int) -> torch.Tensor:
    first = place.offset + sum(s * i for s, i in zip(place.strides, point, strict=True))
    return first + place.feature * torch.arange(features)


def attend_cases() -> dict[str, Attend]:
    """Odd sizes, masks, groups, parts, and what goes on from other keys."""
    cases = [
        Attend(),
        Attend(causal=True, sums=True, rows=70, keys=70, name="causal"),
        Attend(causal=True, start=True, rows=5, keys=90, repeats=3, name="cached"),
        Attend(rows=1, keys=130, repeats=4, parts=3, name="decode"),
        Attend(mask="bool", depth=20, width=12, name="masked"),
        Attend(mask="bool_keys", causal=True, rows=53, repeats=2, name="padded"),
        Attend(mask="float", dtype="f16", sums=True, name="biased_f16"),
        Attend(mask="float", name="biased"),
        Attend(causal=True, dtype="f16", rows=129, keys=129, depth=64, width=64, batch=1,
               groups=1, name="long_f16"),
        Attend(goes_on=True, sums=True, name="ring"),
        Attend(goes_on=True, sums=True, mask="bool", causal=True, name="ring_masked"),
        Attend(rows=1, keys=1, groups=1, batch=1, name="single"),
        Attend(dtype="bf16", causal=True, rows=40, keys=40, name="causal_bf16"),
    ]  # fmt: skip
    return {a.name: a for a in cases}
