"""The interpreter of level flow for programs whose sizes are known only as they run.

Names of sizes get their numbers from the inputs, and from the results of library ops that decide
one (how many elements are not zero). Opaque values are whatever the library gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

from irc.dialects.builder import entry, functions
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.size import Dim, bind, symbol
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.interpret.walk import run_block
from irc.runtime import library
from irc.runtime.onnx_ops.run import PREFIX, decoded, run_extern

if TYPE_CHECKING:
    import torch


def is_static(module: ModuleOp) -> bool:
    """True where every value is a tensor whose sizes are numbers: what a plan can be made of."""
    values = (*entry(module).body.block.args, *(r for op in module.walk() for r in op.results))
    return all(
        isinstance(v.type, TensorType) and all(isinstance(d, int) for d in v.type.shape)
        for v in values
    )


def run_dynamic(module: ModuleOp, inputs: Sequence[Any]) -> list[Any]:
    """Run the entry; opaque inputs and outputs are numpy arrays, lists or None.

    Args:
        module: level flow.
        inputs: all arguments in order.

    Raises:
        IrcError: ``input-mismatch`` where two inputs disagree about a size.
    """
    func, sizes = entry(module), Sizes()
    for argument, value in zip(func.body.block.args, inputs, strict=True):
        sizes.learn(argument.type, value)
    return run_block(func.body.block, inputs, functions(module), sizes.step)


class Sizes:
    """The numbers behind the names, as far as the run has come."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def learn(self, kind: Attribute, value: Any) -> None:
        """Take the numbers for plain names from a value of this type, and hold it to the rest.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if not isinstance(kind, TensorType):
            return
        shape = tuple(value.shape)
        if len(shape) == kind.ndim:
            for dim, size in zip(kind.shape, shape, strict=True):
                if not isinstance(dim, int) and dim == _plain(dim):
                    self.known.setdefault(str(dim), size)
            if shape == tuple(bind(dim, self.known) for dim in kind.shape):
                return
        stated = ", ".join(str(bind(dim, self.known)) for dim in kind.shape)
        raise IrcError("input-mismatch", f"a value is {list(shape)}, the program says [{stated}]")

    def step(self, op: Operation, operands: list[torch.Tensor], path: str) -> list[Any]:
        """Run one op."""
        assert isinstance(op, FlowOp), op.name
        if isinstance(op, ExternOp) and op.target.data.startswith(PREFIX):
            found = self._library(op, operands)
        else:
            results = [self._result(value.type) for value in op.outputs]
            found = library.run(op.name, op.plain, operands, results)
            stated = library.dtypes()
            found = [
                t.to(stated[name]) if t.is_floating_point() else t
                for t, (_, name) in zip(found, results, strict=True)
            ]
        for result, value in zip(op.outputs, found, strict=True):
            self.learn(result.type, value)
        return found

    def _library(self, op: ExternOp, operands: Sequence[Any]) -> list[Any]:
        wanted = [v.type.dtype if isinstance(v.type, TensorType) else None for v in op.outputs]
        arguments = decoded(op.arguments.data)
        found = run_extern(op.target.data, arguments, operands, wanted)
        return found + [None] * (len(wanted) - len(found))

    def _result(self, kind: Attribute) -> tuple[tuple[int, ...], str]:
        assert isinstance(kind, TensorType)
        shape = [bind(dim, self.known) for dim in kind.shape]
        # A size that no input has and no op decided yet is one that the library op will decide.
        return tuple(d if isinstance(d, int) else -1 for d in shape), kind.dtype


def _plain(dim: Dim) -> Dim | None:
    text = str(dim)
    return symbol(text) if text.isidentifier() else None
