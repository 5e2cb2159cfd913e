"""In which order of dims a kernel stores its results: channels last, around convolutions.

A value stays [N, C, spatial..] for every reader; only the strides of its view tell. Windows then
read a run of channels at each tap, and vectors lie along channels, whatever the window's size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from xdsl.dialects.func import ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.flow import ConcatOp, ContractOp, FlowOp, PointwiseOp, TransposeOp
from irc.dialects.windows import ConvolutionOp, PoolOp
from irc.kernels.holds import COMPUTE_OPS, FREE_OPS, SHAPE_OPS, shape_of
from irc.kernels.trace import Stored
from irc.kernels.view import View

FEW_CHANNELS = 8
"""Input channels up to which a convolution reads lines of taps as runs."""
LANES = 16
"""Numbers of a vector: dims that are shorter leave some of it unused."""

Orders = Mapping[SSAValue, tuple[int, ...]]
"""The dims of a result as it is stored, outermost first; a result without one is contiguous."""

_STORED = re.compile(r"(.*)\.stored((?:_\d+)+)")


def stored_id(name: str, order: Sequence[int]) -> str:
    """Return the id of a value as it is stored in an order of its dims.

    >>> stored_id("n7", (0, 2, 3, 1)), stored_id("n7#1", (1, 0)), stored_id("n7", (0, 1))
    ('n7.stored_0_2_3_1', 'n7.stored_1_0#1', 'n7')
    """
    if not name or tuple(order) == tuple(range(len(order))):
        return name
    own, mark, number = name.partition("#")
    return f"{own}.stored_{'_'.join(map(str, order))}{mark}{number}"


def stored_order(name: str) -> tuple[str, tuple[int, ...] | None]:
    """Return the id of the value behind that of a stored one, and its order; None for its own.

    >>> stored_order("n7.stored_0_2_3_1"), stored_order("n7")
    (('n7', (0, 2, 3, 1)), ('n7', None))
    """
    match = _STORED.fullmatch(name)
    if match is None:
        return name, None
    return match[1], tuple(int(d) for d in match[2].split("_")[1:])


def channels_last(ndim: int) -> tuple[int, ...]:
    """Return the order of dims with channels (dim 1) innermost.

    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, ndim), 1)


def taps_first(ndim: int) -> tuple[int, ...]:
    """Return the order of a weight's dims in which lanes lie along output channels.

    >>> taps_first(4)
    (2, 3, 1, 0)
    """
    return (*range(2, ndim), 1, 0)


def outer_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the order of dims of a kernel's gradient [C, O, taps..]: lanes along more channels.

    >>> outer_order((64, 32, 3, 3)), outer_order((3, 64, 7, 7))
    ((2, 3, 1, 0), (2, 3, 0, 1))
    """
    inputs, outputs, *taps = shape
    spatial = range(2, 2 + len(taps))
    return (*spatial, 1, 0) if inputs >= min(LANES, outputs) else (*spatial, 0, 1)


def is_depthwise(op: ConvolutionOp) -> bool:
    """True for a convolution of one input and one output channel a group."""
    out, each, *_ = shape_of(op.weight)
    return each == 1 and out == op.groups > 1


def reads_lines(op: ConvolutionOp) -> bool:
    """True for a convolution of so few channels that a line of taps should be one run.

    Each tap has a pointer for each place, which a few channels do not pay for: an image with zeros
    around it has none at its borders, and taps and channels of a line are neighbours in memory.
    """
    _, each, *taps = shape_of(op.weight)
    fits = op.groups == 1 and op.dilations[-1] == 1 and min(op.low) >= 0
    # A dim of size 1 has no stride that would lead into its margins.
    steps = min(shape_of(op.x)[2:]) > 1 and not op.flipped
    return fits and steps and taps[-1] > 1 and each <= FEW_CHANNELS


def margins_of(op: ConvolutionOp) -> tuple[tuple[int, int], ...]:
    """Return how far the windows of a convolution reach beyond each dim of its image."""
    margins = [(0, 0), (0, 0)]
    sizes, places = shape_of(op.x)[2:], shape_of(op.outputs[0])[2:]
    for i, taps in enumerate(shape_of(op.weight)[2:]):
        low = op.low[i]
        last = (places[i] - 1) * op.strides[i] + (taps - 1) * op.dilations[i] - low
        margins.append((low, max(0, last - sizes[i] + 1)))
    return tuple(margins)


def ordered_view(shape: Sequence[int], order: Sequence[int]) -> View:
    """Return the view of a value whose memory is contiguous in an order of its dims."""
    inverse = tuple(order.index(d) for d in range(len(order)))
    return View.contiguous([shape[d] for d in order]).transpose(inverse)


def has_channels_last(view: View) -> bool:
    """True where the channels of a view lie side by side: windows read them as runs."""
    return view.strides is not None and (view.shape[1] == 1 or view.strides[1] == 1)


def orders_of(
    ops: Sequence[FlowOp],
    outputs: Sequence[SSAValue],
    stored: Callable[[SSAValue], Stored],
    spread: Collection[SSAValue],
) -> Orders:
    """Return the orders of a kernel's results.

    Args:
        ops: of the kernel.
        outputs: its results.
        stored: where a value from outside lies.
        spread: tensors that are stored channels last.
    """
    gradients = {op.outputs[0] for op in ops if isinstance(op, ConvolutionOp) and op.of_kernel}
    shapes = [
        shape_of(op.outputs[0])
        for op in ops
        if _spreads(op, stored) and op.outputs[0] not in gradients
    ]
    lead = set[tuple[int, ...]]()
    inside = {op.outputs[0] for op in ops if op.outputs}
    reads = dict.fromkeys(v for op in ops if op.name in COMPUTE_OPS for v in op.inputs)
    for value in reads:
        if value not in inside and len(shape_of(value)) > 2:
            root, view = stored(value)
            if root in spread and [step for _, step in view.dims[1]] == [1]:
                lead.add(view.shape[:2])
    for op in ops:
        if _joins_channels(op) and any(shape_of(value)[:2] in lead for value in op.inputs):
            lead.add(shape_of(op.outputs[0])[:2])
    orders: dict[SSAValue, tuple[int, ...]] = {}
    for value in outputs:
        shape = shape_of(value)
        if value in gradients:
            orders[value] = outer_order(shape)
        elif _is_image(shape) and (shape in shapes or shape[:2] in lead):
            orders[value] = channels_last(len(shape))
    return orders


def returned_order(value: SSAValue) -> tuple[int, ...] | None:
    """Return the order of dims in which a program returns a value; None where it is read as it is.

    What eager mode computes elementwise lies as its first operand does, so ``x.t() + y`` is
    returned turned. Stored so from the start, it needs no copy.
    """
    orders = set[tuple[int, ...]]()
    for use in value.uses:
        turn = use.operation
        if not isinstance(turn, TransposeOp):
            return None
        if {type(each.operation) for each in turn.outputs[0].uses} != {ReturnOp}:
            return None
        orders.add(turn.perm)
    return orders.pop() if len(orders) == 1 else None


def stores_anyhow(ops: Sequence[FlowOp]) -> bool:
    """True for a kernel that stores in any order of dims alike: elementwise ones and products."""
    return all(
        isinstance(op, PointwiseOp | ContractOp) or op.name in SHAPE_OPS | FREE_OPS for op in ops
    )


def _joins_channels(op: FlowOp) -> bool:
    return isinstance(op, ConcatOp) and op.dim == 1


def _is_image(shape: Sequence[int]) -> bool:
    return len(shape) > 2 and shape[1] > 1 and any(size > 1 for size in shape[2:])


def _spreads(op: FlowOp, stored: Callable[[SSAValue], Stored]) -> bool:
    """True for a convolution, and for a pool of what lies channels last."""
    if isinstance(op, ConvolutionOp):
        return True
    if not isinstance(op, PoolOp) or len(shape_of(op.x)) != len(op.window) + 2:
        return False
    return has_channels_last(stored(op.x)[1])
