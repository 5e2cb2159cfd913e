"""The output layer of a model apart from its body: the linear layer of a loss, and the loss.

A loss that pass ``stream-cross-entropy`` recognises is one op of hidden rows, a weight and the
classes of the rows. What depends on it is the *head*; what makes the hidden rows is the *body*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import argument_attrs, arguments, entry, finish_function, results
from irc.dialects.flow import (
    ContractOp,
    ExternOp,
    FlowOp,
    PointwiseOp,
    ReduceOp,
    TransposeOp,
    loc_of,
    tensor,
)
from irc.errors import IrcError
from irc.ops.linear_loss import LOSS, STREAMED, operand_roles
from irc.training.entry import drop_unread, set_results
from irc.training.stages import BOUNDARY

HIDDEN = "hidden"
"""Name of what the body gives the head: the rows that its weight is multiplied with."""
HELD = ("parameter", "buffer", "state")
"""Roles of what a rank holds."""


@dataclass(frozen=True)
class Mean:
    """The mean of a row's logits, which smoothed labels want, computed without logits.

    Attributes:
        value: of all rows.
        ops: that make it of the hidden rows and the mean of the weight's rows.
    """

    value: SSAValue
    ops: frozenset[Operation]


def take_head(module: ModuleOp, loss: str, count: int) -> ModuleOp:
    """Take the output layer out of a program, which gives its hidden rows then; in place.

    Args:
        module: the forward pass, in which the loss is one op (`stream-cross-entropy`).
        loss: name of the result that is the loss.
        count: of slices that the vocabulary is to have.

    Returns:
        The head: a function of ``hidden``, its weight and inputs, that gives the loss.

    Raises:
        IrcError: ``pipeline-unsupported`` where a vocabulary cannot be cut: no such layer or
            several, a weight that the body reads too, a loss that reads more of the body.
    """
    func = entry(module)
    block = func.body.block
    op = _single(module, block)
    end = block.last_op
    assert isinstance(end, ReturnOp)
    returned = list(zip(results(func), end.operands, strict=True))
    value = next(v for (role, name), v in returned if (role, name) == ("output", loss))
    kept = [((role, name), v) for (role, name), v in returned if role == "state"]
    operands = dict(zip(operand_roles(LOSS, op.arguments), op.inputs, strict=True))
    _check_size(op, operands, count)
    head = _Head(func.body.block, op, operands, value)
    head.check({v: (role, name) for role, name, v in arguments(func)}, [v for _, v in kept])
    head_module = head.build(func.arg_attrs.data if func.arg_attrs else (), loss)
    attrs = [argument_attrs(*named) for named, _ in kept]
    hidden = argument_attrs(BOUNDARY, HIDDEN)
    set_results(func, [*(v for _, v in kept), operands["h"]], [*attrs, hidden])
    drop_unread(func)
    module.attributes.pop(STREAMED, None)
    return head_module


def loss_of(block: Block) -> ExternOp:
    """Return the op that is the loss of a linear layer."""
    return next(op for op in block.ops if _is_loss(op))  # type: ignore[return-value]  # it is one


def weight_chain(value: SSAValue) -> tuple[SSAValue, tuple[FlowOp, ...]]:
    """Return what a layer's weight is made of by casts and transposes, and these, last first."""
    ops: list[FlowOp] = []
    while isinstance(op := value.owner, TransposeOp) or (
        isinstance(op, PointwiseOp) and op.fn == "cast"
    ):
        ops.append(op)
        value = op.x if isinstance(op, TransposeOp) else op.a
    return value, tuple(ops)


def mean_of(block: Block, operands: Mapping[str, SSAValue]) -> Mean | None:
    """Return the mean of logits that smoothed labels read, as `irc.rewrite.linear_loss` has it."""
    for op in block.ops:
        if not isinstance(op, ContractOp) or op.spec != "nd,d->n":
            continue
        rows, mean = op.inputs
        own = {op, *weight_chain(rows)[1]}
        inner = _mean_ops(mean, operands["w"])
        if weight_chain(rows)[0] is not weight_chain(operands["h"])[0] or inner is None:
            continue
        own |= inner
        if "bias" not in operands:
            return Mean(op.outputs[0], frozenset(own))
        (use,) = op.outputs[0].uses
        add = use.operation
        if isinstance(add, PointwiseOp) and add.fn == "add":
            biases = [_mean_ops(v, operands["bias"]) for v in add.inputs if v is not op.outputs[0]]
            if biases and biases[0] is not None:
                return Mean(add.outputs[0], frozenset({*own, add, *biases[0]}))
    return None


def _mean_ops(value: SSAValue, weight: SSAValue) -> set[Operation] | None:
    """Return the ops by which a value is the mean of a weight over its classes, None if it isn't.

    >>> from xdsl.ir import Block
    >>> from irc.dialects.types import TensorType
    >>> x = Block(arg_types=[TensorType.of((4,), "f32")]).args[0]
    >>> _mean_ops(x, x) is None
    True
    """
    own: set[Operation] = set()
    div = value.owner
    if isinstance(div, PointwiseOp) and div.fn in ("div", "mul"):
        own.add(div)
        value = div.a
    reduce = value.owner
    if not isinstance(reduce, ReduceOp) or reduce.fn != "sum":
        return None
    if reduce.dims != (0,) or not own:
        return None
    own.add(reduce)
    value = reduce.x
    if isinstance(cast := value.owner, PointwiseOp) and cast.fn == "cast":
        own.add(cast)
        value = cast.a
    return own if value is weight else None


def _is_loss(op: Operation) -> bool:
    return isinstance(op, ExternOp) and op.target == LOSS


def _single(module: ModuleOp, block: Block) -> ExternOp:
    losses = [op for op in block.ops if _is_loss(op)]
    if len(losses) == 1 and isinstance(losses[0], ExternOp):
        return losses[0]
    said = module.attributes.get(STREAMED)
    why = [str(line.data) for line in said.data] if said is not None else []  # type: ignore[attr-defined]
    raise _unsupported(
        f"the model has {len(losses) or 'no'} cross-entropies of a linear layer's logits",
        because=why
        or "a vocabulary is cut where logits = hidden @ weight.T (+ bias) go into "
        "cross_entropy, and nothing else reads them",
    )


def _check_size(op: ExternOp, operands: Mapping[str, SSAValue], count: int) -> None:
    classes = tensor(operands["w"]).static_shape()[0]
    if classes < count:
        raise _unsupported(
            f"a vocabulary of {classes} cannot be cut into {count} slices", where=loc_of(op)
        )


class _Head:
    """The ops of an output layer and its loss.

    Args:
        block: of the whole program.
        op: the loss of the linear layer.
        operands: those of the loss, by role.
        loss: what is trained.
    """

    def __init__(
        self, block: Block, op: ExternOp, operands: Mapping[str, SSAValue], loss: SSAValue
    ) -> None:
        self.block, self.op, self.operands, self.loss = block, op, operands, loss
        self.mean = mean_of(block, operands)
        self.weights = {r: weight_chain(operands[r]) for r in ("w", "bias") if r in operands}
        self.ops = self._ops()

    def _ops(self) -> list[Operation]:
        """Return what makes the loss of hidden rows, weights and inputs, in program order."""
        chosen: set[Operation] = set()
        todo = [self.loss]
        while todo:
            value = todo.pop()
            op = value.owner
            if value is not self.operands["h"] and isinstance(op, Operation) and op not in chosen:
                chosen.add(op)
                todo += op.operands
        return [op for op in self.block.ops if op in chosen]

    def check(self, named: Mapping[SSAValue, tuple[str, str]], states: Sequence[SSAValue]) -> None:
        """Refuse a head that cannot be cut into slices.

        Args:
            named: role and name of each argument of the program.
            states: values that buffers move to.
        """
        if self.op not in self.ops:
            raise _unsupported("its cross-entropy is not what is trained", where=loc_of(self.op))
        own = {self.op, *(self.mean.ops if self.mean else ())}
        own |= {op for _, chain in self.weights.values() for op in chain}
        for value, _ in self.weights.values():
            role, name = named.get(value, ("", ""))
            if role != "parameter":
                raise _unsupported(
                    "the weight of its output layer is no parameter, but computed",
                    where=loc_of(self.op),
                )
            others = [u.operation for u in value.uses if u.operation not in own]
            if others:
                raise _unsupported(
                    f"'{name}' is the weight of the output layer, and is read elsewhere too",
                    where=next((loc_of(op) for op in others if isinstance(op, FlowOp)), ""),
                    because="each rank holds its slice of the vocabulary alone: a tied embedding "
                    "would want all of it on the first rank",
                    help="untie the two, or choose a schedule without 'vocab-'",
                )
        for op in self.ops:
            if op not in own:
                self._check_reads(op, named)
        moved = {v.owner for v in states}
        if any(op in moved for op in self.ops):
            raise _unsupported("the loss moves a buffer", where=loc_of(self.op))

    def _check_reads(self, op: Operation, named: Mapping[SSAValue, tuple[str, str]]) -> None:
        for value in op.operands:
            role, name = named.get(value, ("", ""))
            what = f"'{name}'" if role == "parameter" else ""
            if value is self.operands["h"]:
                what = "the hidden rows"
            if what:
                raise _unsupported(
                    f"the loss reads {what} beside the logits of its output layer",
                    where=loc_of(op) if isinstance(op, FlowOp) else "",
                    because="every rank computes the loss of what all slices of the vocabulary "
                    "sum up to",
                    help="choose a schedule without 'vocab-'",
                )

    def build(self, known: Sequence[DictionaryAttr], loss: str) -> ModuleOp:
        """Return the head as a program of its own."""
        inside = {v for op in self.ops for v in op.results}
        read = dict.fromkeys(v for op in self.ops for v in op.operands if v not in inside)
        kept = [v for v in read if isinstance(v, BlockArgument)]
        hidden = self.operands["h"]
        block = Block(arg_types=[hidden.type, *(v.type for v in kept if v is not hidden)])
        values: dict[SSAValue, SSAValue] = dict(
            zip([hidden, *(v for v in kept if v is not hidden)], block.args, strict=True)
        )
        for op in self.ops:
            block.add_op(op.clone(values))
        attrs = [argument_attrs(BOUNDARY, HIDDEN)]
        attrs += [known[v.index] for v in kept if v is not hidden]
        func = finish_function(
            "forward",
            block,
            [values[self.loss]],
            arg_attrs=attrs,
            res_attrs=[argument_attrs("output", loss)],
        )
        return ModuleOp([func])


def _unsupported(
    message: str,
    *,
    where: str = "",
    because: str | Sequence[str] = (),
    help: str = "",  # noqa: A002
) -> IrcError:
    return IrcError(
        "pipeline-unsupported",
        f"a schedule with a vocabulary on all ranks: {message}",
        where=where,
        because=because,
        help=help,
    )
