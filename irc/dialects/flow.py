"""``flow``: dataflow over whole (logical) tensors, small and orthogonal, pure SSA.

All ops share one form, ``flow.name(operands) {attributes} : (types) -> types``, and carry two
attributes through every pass: ``loc``, the user's source line, and ``id``, the name under which
``irc check`` compares this op's values between levels. The same ops stand on level ``flow+sbp``,
where types carry placements, and on level ``spmd``, where they are what one rank computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from xdsl.dialects.builtin import DenseArrayBase, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from irc.dialects.attributes import string, to_attribute, to_python
from irc.dialects.fields import (
    flag_field,
    integer_field,
    integers_field,
    number_field,
    operand,
    opt_flag_field,
    opt_text_field,
    read_by_name,
    text_field,
)
from irc.dialects.types import TensorType, is_float
from irc.ops.infer import STATED, Attrs, ShapeError, Signature, check_cast, check_stated, infer

if TYPE_CHECKING:
    from irc.ops.op_record import OpRecord

Ints = DenseArrayBase
FUNCTIONS = {"flow.reduce": ("sum", "max", "min", "prod", "any", "all")}
"""What ``fn`` of an op may be; the table of pointwise functions is :mod:`irc.ops.functions`."""

FORM = "`(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)"


class FlowOp(IRDLOperation):
    """Base of all flow ops: any number of operands and results, attributes, and their checks."""

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format: ClassVar[str | None] = FORM

    inputs = var_operand_def(AnyAttr())
    outputs = var_result_def(AnyAttr())
    traits = traits_def(Pure())
    RECORD: ClassVar[OpRecord | None] = None
    """What irc knows of the op, where that stands beside it and not in the tables of irc.ops."""

    @classmethod
    def short_name(cls) -> str:
        """Return what a reader calls the op: ``sort``; of another dialect ``comm.all_reduce``."""
        dialect, _, name = cls.name.partition(".")
        return name if dialect == "flow" else cls.name

    @classmethod
    def make(
        cls,
        inputs: Sequence[SSAValue],
        results: Sequence[Attribute],
        *,
        loc: str = "unknown",
        id: str = "",
        **attrs: Any,
    ) -> FlowOp:
        """Build an op from Python values; attributes that are None are left out."""
        own = {"loc": string(loc)}
        if id:
            own["id"] = string(id)
        # All operands are the inputs, all results the outputs: nothing is to be sorted.
        return cls.create(
            operands=inputs,
            result_types=results,
            properties={k: to_attribute(v) for k, v in attrs.items() if v is not None},
            attributes=own,
        )

    @classmethod
    def infer(cls, attrs: Attrs, operands: Sequence[Signature]) -> list[Signature]:
        """Return the shapes and dtypes of the results.

        Raises:
            ShapeError: where operands disagree.
            KeyError: for an op that :meth:`is_stated`.
        """
        if cls.RECORD is not None and cls.RECORD.infer is not None:
            return cls.RECORD.infer(attrs, operands)
        return infer(cls.name, attrs, operands)

    @classmethod
    def is_stated(cls) -> bool:
        """True where the result type is the op's meaning: it is stated, and only checked."""
        return cls.name in STATED if cls.RECORD is None else cls.RECORD.infer is None

    def _functions(self) -> tuple[str, ...]:
        """What ``fn`` may be; empty where the op has none, or a table of its own says so."""
        return FUNCTIONS.get(self.name, ()) if self.RECORD is None else self.RECORD.fns

    @property
    def plain(self) -> dict[str, Any]:
        """The op's own attributes as Python values (without ``loc`` and ``id``)."""
        return {name: to_python(attr) for name, attr in self.properties.items()}

    def verify_(self) -> None:
        known, fn = self._functions(), self.properties.get("fn")
        if known and isinstance(fn, StringAttr) and fn.data not in known:
            raise VerifyException(f"{self.name} has no fn '{fn.data}'; it is {', '.join(known)}")
        if not all(isinstance(v.type, TensorType) for v in (*self.inputs, *self.outputs)):
            if self.name == "flow.extern":
                return
            raise VerifyException(f"{self.name} takes and gives tensors")
        operands = [signature(value) for value in self.inputs]
        results = [signature(value) for value in self.outputs]
        try:
            if self.is_stated():
                check_stated(self.name, operands, results)
                return
            expected = self.infer(self.plain, operands)
            if self.plain.get("fn") == "cast":
                check_cast(operands[0][1], results[0][1])
                expected = [(expected[0][0], results[0][1])]
        except ShapeError as error:
            raise VerifyException(str(error)) from None
        if expected != results:
            raise VerifyException(f"{self.name} gives {_show(expected)}, not {_show(results)}")


OpOfFlow = TypeVar("OpOfFlow", bound=FlowOp)


def flow_op(cls: type[OpOfFlow]) -> type[OpOfFlow]:
    """Define an op of the common form: its operands are the inputs, its results the outputs.

    xDSL's accessors count at each access which of them are, which takes three times as long; passes
    read the inputs of an op a hundred times.
    """
    defined = read_by_name(irdl_op_definition(cls))
    for name, values in (("inputs", property(_inputs)), ("outputs", property(_outputs))):
        setattr(defined, name, values)
    return defined


def names_of(*ops: type[FlowOp]) -> frozenset[str]:
    """Return the names of ops, for sets of them."""
    return frozenset(op.name for op in ops)


def _inputs(op: FlowOp) -> Sequence[SSAValue]:
    return op.operands[:]


def _outputs(op: FlowOp) -> Sequence[SSAValue]:
    return op.results


def signature(value: SSAValue) -> tuple[tuple[Any, ...], str]:
    """Return the logical shape and the dtype of a tensor value."""
    kind = value.type
    if not isinstance(kind, TensorType):
        raise VerifyException(f"expected !flow.tensor, got {kind}")
    return kind.shape, kind.dtype


def tensor(value: SSAValue) -> TensorType:
    """Return a value's tensor type (a value of another type is an internal error)."""
    assert isinstance(value.type, TensorType), value.type
    return value.type


def _show(signatures: Sequence[tuple[tuple[Any, ...], str]]) -> str:
    return ", ".join(f"[{', '.join(map(str, shape))}] {dtype}" for shape, dtype in signatures)


@flow_op
class PointwiseOp(FlowOp):
    """Apply a scalar function elementwise, with numpy broadcasting; rows in irc.ops.functions.

    A cast with ``apart`` may be of the summands of a value, one by one, though it rounds them.

    ```mlir
    %r = flow.pointwise(%a, %b) {fn = "add", loc = "m.py:3"}
        : (!flow.tensor<[8, 4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[8, 4], f32>
    ```
    """

    name = "flow.pointwise"
    a = operand(0)
    b = operand(1)
    c = operand(2)
    fn = text_field()
    apart = opt_flag_field()

    def verify_(self) -> None:
        super().verify_()
        if self.apart is None:
            return
        if self.fn != "cast":
            raise VerifyException(f"'apart' is of a cast, not of {self.fn}")
        kinds = [signature(value)[1] for value in (*self.inputs, *self.outputs)]
        if not all(map(is_float, kinds)):
            raise VerifyException(f"'apart' is of a cast from float to float, not {kinds}")


@flow_op
class ContractOp(FlowOp):
    """A sum of products in einsum form: every matmul. Half types accumulate in float32.

    ```mlir
    %c = flow.contract(%a, %b) {spec = "mk,kn->mn", loc = "m.py:3"}
        : (!flow.tensor<[8, 4], f32>, !flow.tensor<[4, 6], f32>) -> !flow.tensor<[8, 6], f32>
    ```
    """

    name = "flow.contract"
    a = operand(0)
    b = operand(1)
    spec = text_field()


@flow_op
class ReduceOp(FlowOp):
    """Reduce ``dims`` by sum, max, min, prod, any or all; kept as size 1 with ``keep_dims``.

    ```mlir
    %s = flow.reduce(%x) {fn = "sum", dims = array<i64: 1>, keep_dims = true, loc = "m.py:3"}
        : (!flow.tensor<[8, 4], f32>) -> !flow.tensor<[8, 1], f32>
    ```
    """

    name = "flow.reduce"
    x = operand(0)
    fn = text_field()
    dims = integers_field()
    keep_dims = flag_field()


class ShapeOp(FlowOp):
    """Base of the ops that give the elements of x another shape: a view, where it can be."""

    x = operand(0)


@flow_op
class ReshapeOp(ShapeOp):
    """The same elements, row-major, in the result's shape.

    ```mlir
    %r = flow.reshape(%x) {loc = "m.py:3"}
        : (!flow.tensor<[8, 12], f32>) -> !flow.tensor<[8, 3, 4], f32>
    ```

    With ``pin``, the placement that the model's own code asks for (`irc.place`), it stays as it is
    until the program is sharded.
    """

    name = "flow.reshape"
    pin = opt_text_field()


@flow_op
class TransposeOp(ShapeOp):
    """``result.shape[i] = x.shape[perm[i]]``."""

    name = "flow.transpose"
    perm = integers_field()


@flow_op
class BroadcastOp(ShapeOp):
    """Stretch to the result's shape, aligned right as numpy does."""

    name = "flow.broadcast"


@flow_op
class SliceOp(ShapeOp):
    """``x[starts[i]:stops[i]:steps[i]]`` in each dim; stop -1 is the end; steps are positive."""

    name = "flow.slice"
    starts = integers_field()
    stops = integers_field()
    steps = integers_field()


@flow_op
class ConcatOp(FlowOp):
    """Join the operands along ``dim``."""

    name = "flow.concat"
    dim = integer_field()


@flow_op
class PadOp(FlowOp):
    """Add ``low`` and ``high`` elements of ``value`` in each dim; negative amounts crop."""

    name = "flow.pad"
    x = operand(0)
    low = integers_field()
    high = integers_field()
    value = number_field()


CUT = "cut"
"""The attribute of a slice to a size that a trace names. Where that happens to be the whole dim, at
some sizes, the slice is kept, so that plans for all sizes have the same steps."""


@flow_op
class ExternOp(FlowOp):
    """Any library op: ``target`` (``aten::cummax``, ``onnx::LSTM``), run as it is.

    ``arguments`` is JSON: a list of positional and a dict of keyword arguments, in which
    ``{"operand": 0}`` stands for an operand; ``rule`` is an optional sharding rule.
    """

    name = "flow.extern"
    target = text_field()
    arguments = text_field()
    rule = opt_text_field()


@flow_op
class FusionOp(FlowOp):
    """A group of ops that become one kernel: block arguments are the operands, yield the results.

    Made by pass ``fuse``; the body is flow ops on whole local tensors and sees nothing from
    outside.
    """

    name = "flow.fusion"
    assembly_format: ClassVar[str | None] = (
        "`(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs) $body"
    )
    kind = text_field()
    body = region_def("single_block")
    traits = traits_def(Pure(), RecursiveMemoryEffect())

    @staticmethod
    def build_fusion(
        inputs: Sequence[SSAValue],
        results: Sequence[Attribute],
        body: Block,
        *,
        kind: str,
        loc: str,
        id: str,
    ) -> FusionOp:
        """Build a fusion around a block that ends in ``flow.yield``."""
        op = FusionOp(
            operands=[list(inputs)],
            result_types=[list(results)],
            properties={"kind": StringAttr(kind)},
            regions=[Region(body)],
        )
        op.attributes["loc"] = StringAttr(loc)
        op.attributes["id"] = StringAttr(id)
        return op


@flow_op
class YieldOp(FlowOp):
    """End a region and give its values."""

    name = "flow.yield"
    assembly_format: ClassVar[str | None] = (
        "`(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)"
    )
    traits = traits_def(IsTerminator())

    def verify_(self) -> None:
        parent = self.parent_op()
        if isinstance(parent, FusionOp) and [v.type for v in self.inputs] != [
            v.type for v in parent.outputs
        ]:
            raise VerifyException("flow.yield gives other types than its flow.fusion")


CORE: list[type[FlowOp]] = [
    PointwiseOp, ContractOp, ReduceOp, ReshapeOp, TransposeOp, BroadcastOp,
    SliceOp, ConcatOp, PadOp, ExternOp, FusionOp, YieldOp,
]  # fmt: skip
"""The ops that are defined here; :mod:`irc.dialects.flow_ops` has all."""


def loc_of(op: Operation) -> str:
    """Return the user's source line of an op, ``unknown`` where none is known."""
    attr = op.attributes.get("loc")
    return attr.data if isinstance(attr, StringAttr) else "unknown"


def phase_of(op: Operation) -> str:
    """Return what part of a training step an op belongs to; empty where nobody said."""
    attr = op.attributes.get("phase") or op.properties.get("phase")
    return attr.data if isinstance(attr, StringAttr) else ""


def id_of(op: Operation) -> str:
    """Return the op's id, or the empty text."""
    attr = op.attributes.get("id")
    return attr.data if isinstance(attr, StringAttr) else ""


def carry(new: Operation, old: Operation, *, part: int = 0) -> Operation:
    """Give ``new`` the source line and id of the op that it replaces.

    An id names a value: `irc check` holds every value against the one that had its id in the
    captured program. Where several ops take the place of one, the op that computes the old value
    carries the id itself, and each step on the way is a ``part`` of its own, which is compared
    with nothing. As for ``silu(x) = x * sigmoid(x)``::

        carry(sigmoid, silu, part=1)  # n2.1
        carry(product, silu)  # n2

    Args:
        new: changed, and returned.
        old: the op that it stands for, whole or in part.
        part: 0 for the op that computes the value of ``old``; 1, 2, ... for the steps before it.
    """
    for key in ("loc", "id"):
        if key in old.attributes:
            new.attributes[key] = old.attributes[key]
    if part and id_of(old):
        new.attributes["id"] = StringAttr(f"{id_of(old)}.{part}")
    return new
