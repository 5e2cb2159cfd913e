"""The function under construction: its values, its literals and arguments, and what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import Attribute, Block, SSAValue

from irc.dialects.builder import FlowBuilder, argument_attrs
from irc.dialects.flow import ConcatOp
from irc.dialects.size import Dim, is_traced, symbol, terms_of
from irc.dialects.types import TensorType
from irc.errors import IrcError, printable
from irc.frontends.onnx.evaluate import evaluate
from irc.frontends.onnx.external import Array, to_torch
from irc.frontends.onnx.node import OPAQUE, Value, size_names
from irc.frontends.onnx.opaque import stored_opaque
from irc.frontends.onnx.result_types import FAILURES

if TYPE_CHECKING:
    import torch

LITERAL = 64
LITERAL_OF_ANY_SIZE = 8
"""The same, in a program whose sizes are open."""


class FunctionValues:
    """A block, a builder for it, and the tensors that its arguments stand for.

    Attributes:
        tensors: weights by the unique names of their arguments.
        backed_by: for each size that only the run knows, a result of the op that decides it.
        named: the numbers behind each name of a weight, in all functions of the program.
    """

    def __init__(self) -> None:
        self.block = Block()
        self.b = FlowBuilder(self.block)
        self.tensors: dict[str, torch.Tensor] = {}
        self.backed_by: dict[str, SSAValue] = {}
        self.named: dict[str, Array] = {}
        self.arg_attrs: list[DictionaryAttr] = []
        self._fresh = 0
        self._content: dict[SSAValue, torch.Tensor] = {}

    def ssa(self, value: Value) -> SSAValue:
        """Return a value as SSA: known numbers become a literal or an argument."""
        if value.ssa is None:
            assert value.known is not None
            here, self.b.loc = self.b.loc, value.loc or self.b.loc
            if value.dtype == OPAQUE:
                value.ssa = stored_opaque(self, value)
            elif value.known.dtype == object:
                value.ssa = self._sizes(value.known, value.dtype)
            else:
                value.ssa = self._literal(value, value.known)
            self.b.loc = here
        return value.ssa

    def fresh(self) -> int:
        """Return a number that no earlier call gave."""
        self._fresh += 1
        return self._fresh

    def _literal(self, value: Value, array: Array) -> SSAValue:
        flat = array.reshape(-1)
        # Float vectors differ between layers that are otherwise alike: as arguments, the layers
        # stay one block. Numbers that shape the program are literals.
        weight = value.role == "parameter" and value.dtype[0] in "fb" and flat.size > 1
        if value.dtype[0] != "c" and flat.size and not weight:
            # A table of which a call takes as much as it is long is no literal: its slices are.
            if flat.size <= (LITERAL_OF_ANY_SIZE if is_traced() else LITERAL):
                return self.b.constant(flat.tolist(), value.shape, value.dtype)
            if flat.strides == (0,) or (flat == flat[0]).all():
                return self.b.constant(flat[:1].tolist(), value.shape, value.dtype)
        return self.argument(value.role, value.name or "constant", array, value.dtype)

    def argument(self, role: str, name: str, array: Array, dtype: str) -> SSAValue:
        """Add an argument that holds these numbers."""
        name, count = printable(name), 0
        unique = name
        # Functions that read one weight call it by one name.
        while unique in self.tensors or self.named.get(unique, array) is not array:
            count += 1
            unique = f"{name}.{count}"
        self.named[unique] = array
        self.tensors[unique] = to_torch(array)
        ssa = self.add_argument(TensorType.of(array.shape, dtype), role, unique)
        self._content[ssa] = self.tensors[unique]
        return ssa

    def add_argument(self, kind: Attribute, role: str, name: str) -> SSAValue:
        """Add an argument."""
        self.arg_attrs.append(argument_attrs(role, name))
        return self.block.insert_arg(kind, len(self.block.args))

    def _sizes(self, array: Array, dtype: str) -> SSAValue:
        parts = [self.b.reshape(self.size(dim, dtype), (1,)) for dim in array.reshape(-1).tolist()]
        joined = parts[0] if len(parts) == 1 else self.b.op(ConcatOp, parts, dim=0)
        return self.b.reshape(joined, array.shape)

    def size(self, dim: Dim, dtype: str) -> SSAValue:
        """Return a size as a scalar value; a named one is counted, as the sum of that many ones."""
        if isinstance(dim, int):
            return self.b.scalar(dim, dtype)
        total: SSAValue | None = None
        for monomial, coefficient in terms_of(dim):
            names = [symbol(name) for name, power in monomial for _ in range(power)]
            ones = self.b.constant([coefficient], names, "i64")
            term = self.b.reduce("sum", ones, range(len(names)), keep_dims=False) if names else ones
            total = term if total is None else self.b.pointwise("add", total, term)
        assert total is not None
        return self.b.cast(total, dtype)

    def constant(self, array: Array, role: str = "constant", name: str = "constant") -> SSAValue:
        """Return computed numbers (indices, interpolation weights) as a value."""
        return self.ssa(Value.of_array(array, role=role, name=name))

    def evaluate(self, value: Value) -> Array | None:
        """Compute a value that no input reaches, or return None."""
        if value.ssa is None:
            return None
        try:
            content = evaluate(value.ssa, self._content)
        except FAILURES as error:
            said = printable(str(error)).partition("\n")[0][:200]
            raise IrcError(
                "onnx-invalid", "an operand follows from constants, and cannot be computed",
                because=f"{type(error).__name__}: {said}",
            ) from error  # fmt: skip
        return None if content is None else content.numpy()

    def content(self, value: SSAValue) -> tuple[Array, str] | None:
        """Return the numbers and name of an argument that holds weights."""
        if value not in self._content:
            return None
        attrs = self.arg_attrs[self.block.args.index(value)]
        return self._content[value].numpy(), attrs.data["name"].data

    def sweep(self, results: Sequence[SSAValue]) -> None:
        """Drop ops and weights that nothing reads: constants that were looked at, or folded."""
        kept, needed = set(results), set[str]()
        for value in results:
            needed |= _names_of(value)
        for op in reversed(list(self.block.ops)):
            decides = any(self.backed_by.get(name) in op.results for name in needed)
            if not decides and not any(result.uses or result in kept for result in op.results):
                op.detach()
                op.erase()
                continue
            for result in op.results:
                needed |= _names_of(result)
        for index in reversed(range(len(self.block.args))):
            argument = self.block.args[index]
            if argument in self._content and not argument.uses and argument not in kept:
                name = self.arg_attrs.pop(index).data["name"]
                del self.tensors[name.data]
                self.block.erase_arg(argument)


def _names_of(value: SSAValue) -> frozenset[str]:
    kind = value.type
    return size_names(kind.shape) if isinstance(kind, TensorType) else frozenset()
