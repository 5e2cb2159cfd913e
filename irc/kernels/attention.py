"""Attention ops become kernels of template ``attention``: strides of q, k, v, masks, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation, SSAValue

from irc.dialects.attention import FLOATS, OUTPUTS, PER_KEY, KernelAttentionOp
from irc.dialects.attention_backward import KernelAttentionBackwardOp
from irc.dialects.flow import ExternOp, FlowOp, TransposeOp, id_of, loc_of, tensor
from irc.dialects.mapping import TaskMapping, repeat, spatial
from irc.dialects.task import KernelOp
from irc.dialects.task_types import BufferType
from irc.dialects.types import TensorType
from irc.dialects.whole_attention import AttentionOp
from irc.kernels.attention_parts import parts_attribute
from irc.kernels.gpu.attention import candidates
from irc.kernels.gpu.limits import GPUS
from irc.kernels.holds import shape_of
from irc.kernels.lower import Lowered
from irc.kernels.orders import Orders
from irc.kernels.trace import GroupError, Stored
from irc.kernels.view import View, contiguous_strides
from irc.ops.attention_ops import ATTENTION, BACKWARD, Form, form_of

TARGETS = ("cpu", *GPUS)
"""Targets whose backend writes the template; for others a library computes the op."""
BLOCK_ROWS = 32
"""Rows of a tile: two vectors of queries."""
BLOCK_KEYS = 128
"""Keys of a tile."""
FEW_ROWS = 8
"""Rows that are computed together with features in the lanes: a mask is read along the keys."""


def is_attention(op: Operation, target: str) -> bool:
    """True for an attention op that a kernel of the target computes: of real halves and floats."""
    named = isinstance(op, AttentionOp) or (isinstance(op, ExternOp) and op.target == ATTENTION)
    values = (*op.operands, *op.results)
    if (
        not named
        or target not in TARGETS
        or not all(isinstance(v.type, TensorType) for v in values)
    ):
        return False
    if any(0 in tensor(value).shape for value in values):
        return False
    assert isinstance(op, FlowOp)
    return all(_is_held(role, value, op) for role, value in roles_of(op))


def _is_held(role: str, value: SSAValue, op: FlowOp) -> bool:
    dtype = tensor(value).dtype
    match role:
        case "mask":
            return dtype in ("i1", *FLOATS)
        case "start":
            return dtype in ("i64", "i32") and prod(shape_of(value)) == 1
        case "sums" | "sums0":
            return dtype == "f32"
        case "y" if parts_attribute(op) > 1:
            return dtype == "f32"
        case _:
            return dtype in FLOATS and dtype == tensor(query_of(op)).dtype


def query_of(op: FlowOp) -> SSAValue:
    """Return q of an attention op."""
    q, *_ = op.inputs
    return q


def roles_of(op: FlowOp) -> list[tuple[str, SSAValue]]:
    """Return the roles of an attention op's operands and results, in the order of the kernel."""
    form = form_of(op.plain, len(op.inputs))
    roles: list[tuple[str, SSAValue]] = list(zip(("q", "k", "v"), op.inputs, strict=False))
    for role, place in (("mask", form.mask), ("start", form.start)):
        if place is not None:
            roles.append((role, op.operands[place]))
    roles += [
        (role, op.operands[at]) for role, at in zip(("y0", "sums0"), form.before, strict=False)
    ]
    return [*roles, *zip(OUTPUTS, op.outputs, strict=False)]


def result_orders(op: FlowOp) -> Orders:
    """Return the order of dims in which results are stored where readers turn them: rows, heads."""
    values = op.outputs[:1] if op.plain.get("target") != BACKWARD else op.outputs
    return {value: order for value in values if (order := _rows_first(value))}


def _rows_first(y: SSAValue) -> tuple[int, ...]:
    ndim = len(shape_of(y))
    turned = (*range(ndim - 3), ndim - 2, ndim - 3, ndim - 1)
    if ndim < 3 or not any(
        isinstance(use.operation, TransposeOp) and use.operation.perm == turned for use in y.uses
    ):
        return ()
    return turned


def attention_kernel(
    op: FlowOp,
    source: Callable[[SSAValue], Stored],
    orders: Orders,
    target: str = "cpu",
    *,
    any_rows: bool = False,
) -> Lowered:
    """Return the kernel of an attention op.

    Args:
        op: one for which :func:`is_attention` holds.
        source: where a value from outside lies.
        orders: results that are stored with their dims in another order.
        target: what the tile is chosen for.
        any_rows: the kernel is to serve any number of rows, if this one's is above one.

    Raises:
        GroupError: with the operands that must be copied first.
    """
    kernel = AttentionKernel(op, source, orders, target)
    kernel.has_few_rows = kernel.rows <= (1 if any_rows else FEW_ROWS)
    return kernel.build()


class AttentionKernel:
    """One kernel while it is built; those of gradients change what differs."""

    first = 0
    """Which operand is q; k and v follow."""
    outputs: Sequence[str] = OUTPUTS
    body: type[KernelAttentionOp | KernelAttentionBackwardOp] = KernelAttentionOp

    def __init__(
        self,
        op: FlowOp,
        source: Callable[[SSAValue], Stored],
        orders: Orders,
        target: str,
    ) -> None:
        self.op, self.source, self.orders, self.target = op, source, orders, target
        self.form: Form = form_of(op.plain, len(op.inputs))
        q, k, v = (shape_of(value) for value in op.operands[self.first : self.first + 3])
        self.shape, self.keys, self.width = q, k[-2], v[-1]
        heads, groups = (1, 1) if len(q) == 2 else (q[-3], k[-3])
        self.lead, self.groups, self.repeats, self.rows = (
            q[:-3], groups, heads // groups, q[-2],
        )  # fmt: skip
        self.has_few_rows = self.rows <= FEW_ROWS
        self.parts = parts_attribute(op)
        self.chunk = -(-self.keys // self.parts)
        self.space = (*self.lead, groups, heads // groups, q[-2], self.parts, self.chunk)

    def roles(self) -> list[tuple[str, SSAValue]]:
        """Return roles and values in the order of the kernel."""
        return roles_of(self.op)

    def build(self) -> Lowered:
        """Return the kernel and the tensors that it reads."""
        roles, offsets, strides = self.roles(), list[int](), list[int]()
        operands: list[SSAValue] = []
        for role, value in roles:
            root, offset, own = self._place(role, value)
            offsets.append(offset)
            strides += own
            if role not in self.outputs and root not in operands:
                operands.append(root)
        results = [value for role, value in roles if role in self.outputs]
        kinds = [BufferType.of(_size(self.source(v)), tensor(v).dtype) for v in operands]
        kinds += [BufferType.of(prod(shape_of(v)), tensor(v).dtype) for v in results]
        block = Block(arg_types=kinds)
        buffers = dict(zip([*operands, *results], block.args, strict=True))
        inner = self.body.make(
            [
                buffers[value if role in self.outputs else self.source(value)[0]]
                for role, value in roles
            ],
            [],
            loc=loc_of(self.op),
            id=id_of(self.op),
            roles=tuple(role for role, _ in roles),
            offsets=tuple(offsets),
            strides=tuple(strides),
            keys=self.keys,
            features=(self.shape[-1], self.width),
            scale=float(self.form.scale),
            causal=self.form.is_causal,
        )
        block.add_op(inner)
        return Lowered(self._kernel(block, len(operands)), tuple(operands))

    def _kernel(self, block: Block, num_inputs: int) -> KernelOp:
        mapping, tile = self.mapping()
        name = self.body.name.removeprefix("task.")
        kernel = KernelOp.make(
            name,
            block,
            template=name,
            space=self.space,
            parallel=len(mapping.task_shape),
            num_inputs=num_inputs,
            mapping=mapping,
            tile=tile,
            sources=[id_of(self.op)],
            loc=loc_of(self.op),
        )
        kernel.attributes["loc"] = StringAttr(loc_of(self.op))
        return kernel

    def mapping(self) -> tuple[TaskMapping, dict[str, int]]:
        """Return the mapping, a worker for each block of rows of a head, and the tile."""
        if self.target in GPUS:
            features = max(self.shape[-1], self.width)
            dtype = tensor(query_of(self.op)).dtype
            tile = candidates(self.rows, self.keys, features, dtype)[0].options()
            return by_rows(self.space, tile["block_m"]), tile
        return by_rows(self.space, BLOCK_ROWS), tile_of_rows(self.space, self.keys)

    def _place(self, role: str, value: SSAValue) -> tuple[SSAValue, int, list[int]]:
        """Return the tensor behind a role, the first element, and a stride for each dim."""
        if role in self.outputs:
            return value, 0, self.spread(role, self._output(role, value))
        root, view = self.source(value)
        if role == "start":
            return root, view.offset, [0] * (len(self.space) + 1)
        if role == "mask":
            view = view.broadcast((*self.shape[:-1], self.keys))
        reshaped = view.reshape(self._dims(role, view))
        if reshaped is None or reshaped.strides is None:
            raise GroupError(f"{role} of attention does not lie evenly", [(value, ())])
        strides = list(reshaped.strides)
        if role == "mask":
            self.check_mask(value, strides)
        return root, reshaped.offset, self.spread(role, strides)

    def _dims(self, role: str, view: View) -> tuple[int, ...]:
        """The shape of a role with its heads as groups and repeats."""
        tail = view.shape[len(self.lead) + (len(self.shape) > 2) :]
        is_keys = role in PER_KEY and role != "mask"
        heads = (self.groups,) if is_keys else (self.groups, self.repeats)
        return (*self.lead, *heads, *tail)

    def spread(self, role: str, strides: Sequence[int]) -> list[int]:
        """Lay strides over the space and the features."""
        count = len(self.lead)
        lead, rest = list(strides[:count]), list(strides[count:])
        match role:
            case "k" | "v" | "dk" | "dv" | "dk0" | "dv0":
                group, key, feature = rest
                return [*lead, group, 0, 0, self.chunk * key, key, feature]
            case "mask":
                group, repeated, row, key = rest
                return [*lead, group, repeated, row, self.chunk * key, key, 0]
            case "sums" if self.parts > 1 and role in self.outputs:
                return [*lead, *rest, 0, 0]
            case "sums" | "sums0" | "delta":
                return [*lead, *rest, 0, 0, 0]
            case "y" | "dq" if self.parts > 1:
                *outer, feature = rest
                return [*lead, *outer, 0, feature]
            case _:
                *outer, feature = rest
                return [*lead, *outer, 0, 0, feature]

    def _output(self, role: str, value: SSAValue) -> tuple[int, ...]:
        """The strides of a result, heads as groups and, but for keys, repeats."""
        shape = shape_of(value)
        order = self.orders.get(value, tuple(range(len(shape))))
        stored = contiguous_strides([shape[d] for d in order])
        strides = [stored[order.index(d)] for d in range(len(shape))]
        at = len(self.lead)
        if role in PER_KEY:
            return (0, *strides) if len(self.shape) == 2 else tuple(strides)
        if len(self.shape) == 2:
            return (0, 0, *strides)
        return (*strides[:at], strides[at] * self.repeats, *strides[at:])

    def check_mask(self, value: SSAValue, strides: Sequence[int]) -> None:
        """Ask for a copy of a mask whose rows are not beside each other, as vectors read it.

        Raises:
            GroupError: naming the mask and the order of its dims.
        """
        row, key = strides[-2:]
        if self.target in GPUS or row in (0, 1) or (self.rows == 1 and key in (0, 1)):
            return
        ndim = len(shape_of(value))
        if self.has_few_rows and key in (0, 1):
            return
        order = (*range(ndim - 2), ndim - 1, ndim - 2)
        if self.has_few_rows:
            order = ()
        raise GroupError("the mask of attention is read across its rows", [(value, order)])


def by_rows(space: Sequence[int], block: int) -> TaskMapping:
    """Return the mapping that gives a worker a block of rows of a head and a part of the keys.

    >>> str(by_rows((2, 12, 1, 100, 1, 100), 32))
    'spatial(2, 12, 1, 4, 1) * repeat(1, 1, 1, 32, 1)'
    """
    *outer, rows, parts, _ = space
    block = min(rows, block)
    grid = spatial(*outer, -(-rows // block), parts)
    return TaskMapping((*grid.atoms, *repeat(*[1] * len(outer), block, 1).atoms))


def tile_of_rows(space: Sequence[int], keys: int) -> dict[str, int]:
    """Return the tile on the CPU."""
    return {"block_m": min(BLOCK_ROWS, space[-3]), "block_n": min(BLOCK_KEYS, keys)}


def _size(stored: Stored) -> int:
    return stored[1].size
