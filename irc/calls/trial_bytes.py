"""How much memory a trial takes, before anything of it is allocated.

A trial runs a plan, and the program that it is of in float64, on random inputs
(:mod:`irc.calls.open_check`). Its sizes are small numbers, but a file may multiply them, or have
large ones of its own beside them: what it then asks for is not given.
"""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from irc.cluster.host import memory_bytes
from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import FlowOp, FusionOp, tensor
from irc.dialects.items import ITEM_BYTES, is_float
from irc.dialects.whole_attention import AttentionOp
from irc.dialects.windows import ConvolutionOp
from irc.interpret.walk import last_read
from irc.plan.schema import Plan

FEW_BYTES = 512 << 20
"""Sizes are made smaller until a trial takes no more than this, where they can be."""

MOST_BYTES = 4 << 30
"""A trial that takes more, beside the weights, is not made.

With one image or sentence, what models hold at a moment is some megabytes; with one volume of
voxels, a gigabyte.
"""
WIDE_BYTES = 8
COMPARED = 4
"""So many float64 copies of an output exist while it is compared."""


def trial_bytes(plan: Plan, module: ModuleOp) -> int:
    """Return what a trial takes at most, beside the weights.

    Args:
        plan: what it runs.
        module: the program that the plan is of, at level flow, all sizes numbers.
    """
    return _plan_bytes(plan) + _program_bytes(module)


def refusal(num_bytes: int, module: ModuleOp) -> str | None:
    """Say why a trial that takes some bytes is not made; None where it is."""
    if num_bytes > MOST_BYTES:
        return f"a trial takes {_shown(num_bytes)}, and {_shown(MOST_BYTES)} at most are given"
    stored = sum(_widened(v) for role, _, v in arguments(entry(module)) if role != "input")
    if num_bytes + stored > (held := memory_bytes()):
        return f"a trial takes {_shown(num_bytes + stored)}, and this machine has {_shown(held)}"
    return None


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.3g} GiB"


def _plan_bytes(plan: Plan) -> int:
    """Return what an executor allocates, and its inputs; what is prepared of weights is theirs."""
    own = [buffer.size_bytes for buffer in plan.buffers if buffer.storage in ("input", "output")]
    return plan.arena_bytes + sum(own)


def _program_bytes(module: ModuleOp) -> int:
    """Return what the interpreter holds at most, in float64, weights not counted."""
    known, func = functions(module), entry(module)
    input_bytes = sum(_widened(v) for role, _, v in arguments(func) if role == "input")
    end = func.body.block.last_op
    assert end is not None
    compared = COMPARED * max(map(_widened, end.operands), default=0)
    return input_bytes + _held(func, known, {}) + compared


def _held(func: FuncOp, known: dict[str, FuncOp], peaks: dict[str, int]) -> int:
    """Return the most that the results of a function's ops take at a moment."""
    name = func.sym_name.data
    if name in peaks:
        return peaks[name]
    block = func.body.block
    dying, defined, live, most = last_read(block), set[SSAValue](), 0, 0
    for op in block.ops:
        # Views of operands are counted as if they were none.
        live += sum(map(_widened, op.results))
        defined.update(op.results)
        inner = 0
        if isinstance(op, CallOp):
            inner = _held(known[op.callee.string_value()], known, peaks)
        elif isinstance(op, FusionOp):
            inner = sum(_widened(v) for each in op.body.block.ops for v in each.results)
        elif isinstance(op, FlowOp):
            inner = _scratch(op)
        most = max(most, live + inner)
        live -= sum(_widened(v) for v in dying.get(op, ()) if v in defined)
    peaks[name] = most
    return most


def _scratch(op: FlowOp) -> int:
    """Return what torch allocates inside an op that makes more than its result."""
    if isinstance(op, AttentionOp):
        q, k = (tensor(v).static_shape() for v in (op.q, op.k))
        return 2 * WIDE_BYTES * prod(q[:-1]) * k[-2]  # scores, and what softmax makes of them
    if isinstance(op, ConvolutionOp):
        # In float64 the windows of all positions are copied into the rows of a matrix.
        x, w = (tensor(v).static_shape() for v in (op.x, op.weight))
        (out,) = (tensor(v).static_shape() for v in op.outputs)
        channels, places = x[1], prod(out[2:])
        if op.flipped is not None:  # transposed ones scatter from their inputs
            channels, places = max(x[1], out[1]), max(places, prod(x[2:]))
        return WIDE_BYTES * x[0] * channels * prod(w[2:]) * places
    return 0


def _widened(value: SSAValue) -> int:
    """Return the bytes of a value where floats are float64."""
    kind = tensor(value)
    width = WIDE_BYTES if is_float(kind.dtype) else ITEM_BYTES[kind.dtype]
    return prod(kind.static_shape()) * width
