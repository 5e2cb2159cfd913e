"""The derivative of attention becomes kernels: delta, one streaming kernel, then sums of parts.

On the CPU a worker computes all gradients of one head of keys, and so computes each score once.
Where there are few of those, query heads that share keys are workers of their own, whose gradients
of keys and values are summed after; where those are few too, the keys have parts, whose gradients
of queries are summed. On a GPU the gradients of keys and values, blocks of keys by themselves, and
those of queries, blocks of rows, are two launches: each computes scores, none waits for another.
What is computed does not depend on how many threads there are, so neither do its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.attention import FLOATS
from irc.dialects.attention_backward import BEFORE, OUTPUTS, KernelAttentionBackwardOp
from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import ExternOp, FlowOp, carry, id_of, loc_of, tensor
from irc.dialects.mapping import TaskMapping, spatial
from irc.dialects.size import Size
from irc.dialects.types import TensorType
from irc.kernels.attention import AttentionKernel
from irc.kernels.attention_parts import PARTS
from irc.kernels.gpu.limits import GPUS
from irc.kernels.holds import shape_of
from irc.kernels.lower import Lowered
from irc.kernels.orders import Orders
from irc.kernels.trace import Stored
from irc.ops.attention_ops import BACKWARD, form_of

TARGETS = ("cpu", *GPUS)
"""Targets whose backend writes the template; for others a library computes the op."""
MAKES = "makes"
"""The attribute of an op that a kernel is made of: which gradients it gives."""
BY_HEADS = "by_heads"
"""The attribute of one whose dk and dv are those of each query head."""
HEADS, WANTED, MIN_KEYS = 8, 16, 128
"""Fewer heads than this are divided, until there are as many parts as wanted, of so many keys."""


def is_attention_backward(op: Operation, target: str) -> bool:
    """True for a derivative of attention that kernels of the target compute."""
    if not isinstance(op, ExternOp) or op.target != BACKWARD or target not in TARGETS:
        return False
    values = (*op.operands, *op.results)
    if not all(isinstance(v.type, TensorType) for v in values):
        return False
    shapes = [tensor(value).shape for value in values]
    if any(0 in shape or any(isinstance(d, Size) for d in shape) for shape in shapes):
        return False
    own = tensor(_query(op)).dtype
    return own in FLOATS and all(_is_held(role, v, own) for role, v in roles_of(op))


def _is_held(role: str, value: SSAValue, own: str) -> bool:
    dtype = tensor(value).dtype
    match role:
        case "mask":
            return dtype in ("i1", *FLOATS)
        case "start":
            return dtype in ("i64", "i32") and prod(shape_of(value)) == 1
        case "sums" | "delta":
            return dtype == "f32"
        case "y":
            return dtype in FLOATS
        case "g" | "q" | "k" | "v":
            return dtype == own
        case _:
            return dtype in (own, "f32")


def _query(op: FlowOp) -> SSAValue:
    _, q, *_ = op.inputs
    return q


def roles_of(op: FlowOp) -> list[tuple[str, SSAValue]]:
    """Return the roles of a derivative's operands and results, in the order of the kernel."""
    form = form_of(op.plain, len(op.inputs))
    makes = op.attributes.get(MAKES)
    outputs = tuple(makes.data.split()) if isinstance(makes, StringAttr) else OUTPUTS
    g, q, k, v, y, sums, *_ = op.inputs
    roles = [("g", g), ("q", q), ("k", k), ("v", v), ("sums", sums)]
    roles.append(("delta" if MAKES in op.attributes else "y", y))
    for role, place in (("mask", form.mask), ("start", form.start)):
        if place is not None:
            roles.append((role, op.operands[place]))
    before = zip(OUTPUTS, form.before, strict=False)
    roles += [(BEFORE[role], op.operands[at]) for role, at in before if role in outputs]
    return [*roles, *zip(outputs, op.outputs, strict=True)]


def attention_backward_kernel(
    op: FlowOp, source: Callable[[SSAValue], Stored], orders: Orders, target: str
) -> Lowered:
    """Return the kernel of an op of :class:`Gradients`; as :func:`attention_kernel`.

    Raises:
        GroupError: with the operands that must be copied first.
    """
    return _Kernel(op, source, orders, target).build()


class _Kernel(AttentionKernel):
    first = 1
    outputs = OUTPUTS
    body = KernelAttentionBackwardOp

    def __init__(
        self,
        op: FlowOp,
        source: Callable[[SSAValue], Stored],
        orders: Orders,
        target: str,
    ) -> None:
        super().__init__(op, source, orders, target)
        self.by_heads = BY_HEADS in op.attributes
        if self.by_heads:
            outer, tail = self.space[: len(self.lead) + 1], self.space[len(self.lead) + 1 :]
            # Query heads take the place of heads of keys: those that share them are a batch dim.
            self.space = (*outer, tail[0], 1, *tail[1:])

    def roles(self) -> list[tuple[str, SSAValue]]:
        return roles_of(self.op)

    def spread(self, role: str, strides: Sequence[int]) -> list[int]:
        if not self.by_heads:
            return super().spread(role, strides)
        at = len(self.lead) + 2
        if role in ("dk", "dv"):
            *outer, key, feature = strides
            return [*outer, 0, 0, self.chunk * key, key, feature]
        task_strides = super().spread(role, strides)
        return [*task_strides[:at], 0, *task_strides[at:]]

    def mapping(self) -> tuple[TaskMapping, dict[str, int]]:
        heads = spatial(*self.space[:-4])
        if self.target not in GPUS:
            return heads, {}
        from irc.kernels.gpu.attention import backward_candidates

        features, dtype = max(self.shape[-1], self.width), tensor(_query(self.op)).dtype
        candidates = backward_candidates(self.rows, self.keys, features, dtype)
        return heads, candidates[0].options()

    def check_mask(self, value: SSAValue, strides: Sequence[int]) -> None:
        """Masks are read as they lie."""


@dataclass(frozen=True)
class Gradients:
    """A derivative of attention as ops that are in no program, one tuple for each kernel.

    Attributes:
        kernels: the ops of each, and what it gives.
        results: the gradients of q, k and v.
    """

    kernels: tuple[tuple[tuple[FlowOp, ...], tuple[SSAValue, ...]], ...]
    results: tuple[SSAValue, ...]

    def erase(self) -> None:
        """Drop the ops, once they are kernels."""
        for ops, _ in reversed(self.kernels):
            for op in reversed(ops):
                op.detach()
                op.erase()


def gradients(op: FlowOp, target: str) -> Gradients:
    """Return the ops of a derivative for which :func:`is_attention_backward` holds."""
    return _Division(op).divided(target)


class _Division:
    """A derivative while it is taken into kernels."""

    def __init__(self, op: FlowOp) -> None:
        self.op, self.block = op, Block()
        # Ids of what is in no program, but names values of it.
        self.b = FlowBuilder(self.block, prefix=f"{id_of(op)}_")
        self.b.loc = loc_of(op)
        self.form = form_of(op.plain, len(op.inputs))
        self.kernels: list[tuple[tuple[FlowOp, ...], tuple[SSAValue, ...]]] = []

    def divided(self, target: str) -> Gradients:
        """Return all kernels of a target."""
        delta = self._delta()
        if target in GPUS:
            keys = self._main(delta, ("dk", "dv"), 1, by_heads=False)
            (dq,) = self._main(delta, ("dq",), 1, by_heads=False)
            return self._named(dq, *keys)
        by_heads, parts = self._shares()
        dq, dk, dv = self._main(delta, OUTPUTS, parts, by_heads=by_heads)
        q, k, v = self.op.outputs
        if parts > 1:
            dq = self._sum(dq, q)
        if by_heads:
            dk, dv = self._sum(dk, k), self._sum(dv, v)
        return self._named(dq, dk, dv)

    def _named(self, *results: SSAValue) -> Gradients:
        """Give what makes the gradient of queries the name of the op."""
        owner = results[0].owner
        assert isinstance(owner, Operation)
        carry(owner, self.op)
        return Gradients(tuple(self.kernels), results)

    def _shares(self) -> tuple[bool, int]:
        """Return whether query heads are workers, and how many parts the keys have."""
        _, q, k = (shape_of(value) for value in self.op.operands[:3])
        heads, every = prod(k[:-2]), prod(q[:-2])
        if heads >= HEADS or self.form.before:
            return False, 1
        parts = min(-(-WANTED // every), k[-2] // MIN_KEYS)
        if every >= HEADS or parts < 2:
            return every > heads, 1
        chunk = -(-k[-2] // parts)
        return every > heads, -(-k[-2] // chunk)

    def _keep(self, first: Operation | None, *results: SSAValue) -> None:
        """Make the ops after ``first`` one kernel."""
        ops = [each for each in self.block.ops if isinstance(each, FlowOp)]
        start = ops.index(first) + 1 if isinstance(first, FlowOp) else 0
        self.kernels.append((tuple(ops[start:]), results))

    def _delta(self) -> SSAValue:
        """``sum(g * y)`` of each row."""
        b, (g, _, _, _, y, *_) = self.b, self.op.inputs
        product = b.pointwise("mul", b.cast(g, "f32"), b.cast(y, "f32"))
        delta = b.reduce("sum", product, (tensor(product).ndim - 1,), keep_dims=False)
        self._keep(None, delta)
        return delta

    def _main(
        self, delta: SSAValue, makes: tuple[str, ...], parts: int, *, by_heads: bool
    ) -> list[SSAValue]:
        """Append the op of the streaming kernel; returns its results."""
        g, q, k, v, _, sums, *rest = self.op.inputs
        kinds = {role: tensor(value) for role, value in zip(OUTPUTS, self.op.outputs, strict=True)}
        if parts > 1:
            *outer, features = shape_of(q)
            kinds["dq"] = TensorType.of((*outer, parts, features), "f32")
        if by_heads:
            for role in ("dk", "dv"):
                *lead, groups, keys, features = kinds[role].static_shape()
                repeats = shape_of(q)[-3] // groups
                kinds[role] = TensorType.of((*lead, groups, repeats, keys, features), "f32")
        last = self.block.last_op
        streaming = ExternOp.make(
            [g, q, k, v, delta, sums, *rest], [kinds[role] for role in makes],
            **self.form.backward(),
        )  # fmt: skip
        streaming.attributes["loc"] = StringAttr(loc_of(self.op))
        streaming.attributes["id"] = StringAttr(f"{id_of(self.op)}_{'_'.join(makes)}")
        streaming.attributes[MAKES] = StringAttr(" ".join(makes))
        streaming.attributes[PARTS] = IntegerAttr(parts, i64)
        if by_heads:
            streaming.attributes[BY_HEADS] = IntegerAttr(1, i64)
        self.block.add_op(streaming)
        self._keep(last, *streaming.outputs)
        return list(streaming.outputs)

    def _sum(self, value: SSAValue, wanted: SSAValue) -> SSAValue:
        """Add up the parts of a gradient, its last dim but two of features."""
        last = self.block.last_op
        total = self.b.reduce("sum", value, (self._parted(value, wanted),), keep_dims=False)
        total = self.b.cast(total, tensor(wanted).dtype)
        self._keep(last, total)
        return total

    def _parted(self, value: SSAValue, wanted: SSAValue) -> int:
        """The dim that a gradient has more than what is wanted."""
        more, own = shape_of(value), shape_of(wanted)
        at = len(more) - 2 if wanted is self.op.outputs[0] else len(more) - 3
        assert (*more[:at], *more[at + 1 :]) == own
        return at
