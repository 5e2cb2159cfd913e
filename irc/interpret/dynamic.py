"""The interpreter of level flow for programs whose sizes are known only as they run.

Names of sizes get their numbers from the inputs, and from the results of library ops that decide
one (how many elements are not zero). Opaque values are whatever the library gives. Bodies of If,
Loop and Scan are functions of the module, which the library calls as often as the values say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation

from irc.dialects.builder import arguments, entry, functions
from irc.dialects.flow import ExternOp, FlowOp
from irc.dialects.size import Dim, bind, symbol
from irc.dialects.types import TensorType, is_float
from irc.errors import IrcError
from irc.interpret.walk import run_block
from irc.runtime import library
from irc.runtime.dtypes import dtypes
from irc.runtime.onnx_ops.run import PREFIX, decoded, functions_of, run_extern
from irc.runtime.onnx_ops.values import FLOW, as_tensor

if TYPE_CHECKING:
    import torch

Regions: TypeAlias = Callable[[CallOp, "list[Any]", Mapping[str, int]], "list[Any] | None"]
"""Runs a call of a function that is compiled, on its operands, with the numbers of the sizes.

It gives None where the function's ops are to be run one by one.
"""

WEIGHTS = frozenset({"parameter", "buffer", "constant"})
"""Roles of arguments that are not given by the caller of a body."""


def is_static(module: ModuleOp) -> bool:
    """True where every value is a tensor whose sizes are numbers: what a plan can be made of."""
    values = (*entry(module).body.block.args, *(r for op in module.walk() for r in op.results))
    return all(
        isinstance(v.type, TensorType) and all(isinstance(d, int) for d in v.type.shape)
        for v in values
    )


def run_dynamic(
    module: ModuleOp,
    inputs: Sequence[Any],
    *,
    wide: bool = False,
    weights: Mapping[str, torch.Tensor] | None = None,
    regions: Regions | None = None,
) -> list[Any]:
    """Run the entry; opaque inputs and outputs are numpy arrays, lists or None.

    Args:
        module: level flow.
        inputs: all arguments in order.
        wide: compute floats in float64; library ops of ONNX take and give their own.
        weights: those of bodies, by name.
        regions: runs the functions that are compiled.

    Raises:
        IrcError: ``input-mismatch`` where two inputs disagree about a size.
    """
    program = HostProgram(module, weights or {}, regions, wide=wide)
    return program.run(entry(module), inputs, {})


class HostProgram:
    """The functions of a module, ready to be called.

    Args:
        module: level flow.
        weights: those of bodies, by name.
        regions: runs the functions that are compiled.
        wide: compute floats in float64.
    """

    def __init__(
        self,
        module: ModuleOp,
        weights: Mapping[str, torch.Tensor],
        regions: Regions | None = None,
        *,
        wide: bool = False,
    ) -> None:
        self.functions = functions(module)
        self.regions = regions
        self.wide = wide
        self._weights = weights
        self._roles: dict[str, list[tuple[str, bool]]] = {}

    def call(self, name: str, items: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """Run a function on what its caller gives; weights are added.

        Args:
            name: of the function.
            items: tensors, arrays and other items.
            sizes: the numbers of sizes that the caller knows.
        """
        func = self.functions[name]
        if name not in self._roles:
            self._roles[name] = [(n, role in WEIGHTS) for role, n, _ in arguments(func)]
        rest = iter(items)
        inputs = [self._weights[n] if stored else next(rest) for n, stored in self._roles[name]]
        return self.run(func, inputs, sizes)

    def run(self, func: FuncOp, inputs: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """Run a function on all of its arguments."""
        block, known = func.body.block, Sizes(self, sizes)
        values = [
            self._argument(argument.type, value)
            for argument, value in zip(block.args, inputs, strict=True)
        ]
        for argument, value in zip(block.args, values, strict=True):
            known.learn(argument.type, value)
        return run_block(block, values, self.functions, known.step, called=known.called)

    def _argument(self, kind: Attribute, value: Any) -> Any:
        if not isinstance(kind, TensorType):
            return value
        # The library gives arrays.
        is_array = isinstance(value, np.ndarray)
        return self.widened(as_tensor(cast("Any", value)) if is_array else value)

    def widened(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor in float64, where the program computes so."""
        return value.double() if self.wide and value.is_floating_point() else value


class Sizes:
    """The numbers behind the names in one call of a function, as far as the run has come.

    Args:
        program: whose function it is.
        known: what the caller knows.
    """

    def __init__(self, program: HostProgram, known: Mapping[str, int]) -> None:
        self.program = program
        self.known = dict(known)

    def learn(self, kind: Attribute, value: Any) -> None:
        """Take the numbers for plain names from a value of this type, and hold it to the rest.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if not isinstance(kind, TensorType):
            return
        shape = tuple(value.shape)
        if shape == kind.shape:
            return
        if len(shape) == kind.ndim:
            for dim, size in zip(kind.shape, shape, strict=True):
                if not isinstance(dim, int) and dim == _plain(dim):
                    self.known.setdefault(str(dim), size)
            if shape == tuple(bind(dim, self.known) for dim in kind.shape):
                return
        stated = ", ".join(str(bind(dim, self.known)) for dim in kind.shape)
        raise IrcError("input-mismatch", f"a value is {list(shape)}, the program says [{stated}]")

    def called(self, op: CallOp, operands: list[Any]) -> list[Any] | None:
        """Run a call of a compiled function; None where there is none."""
        regions = self.program.regions
        outputs = None if regions is None else regions(op, operands, self.known)
        if outputs is not None:
            for result, value in zip(op.results, outputs, strict=True):
                self.learn(result.type, value)
        return outputs

    def step(self, op: Operation, operands: list[torch.Tensor], path: str) -> list[Any]:
        """Run one op."""
        assert isinstance(op, FlowOp), op.name
        if isinstance(op, ExternOp) and op.target.startswith(PREFIX):
            outputs = self._library(op, operands)
        else:
            results = [self._result(value.type) for value in op.outputs]
            outputs = library.run(op.name, op.plain, operands, results)
            stated = dtypes()
            outputs = [
                t.to(stated["f64" if self.program.wide else name]) if t.is_floating_point() else t
                for t, (_, name) in zip(outputs, results, strict=True)
            ]
        for result, value in zip(op.outputs, outputs, strict=True):
            self.learn(result.type, value)
        return outputs

    def _library(self, op: ExternOp, operands: Sequence[Any]) -> list[Any]:
        wide, stated = self.program.wide, dtypes()
        wanted = [v.type.dtype if isinstance(v.type, TensorType) else None for v in op.outputs]
        positions, options = decoded(op.arguments)
        inputs = list(operands)
        if functions_of((positions, options)):
            # Bodies take and give what the program computes with.
            wanted = ["f64" if wide and dtype and is_float(dtype) else dtype for dtype in wanted]
            rows = [
                self._no_rows(v.type, dtype) for v, dtype in zip(op.outputs, wanted, strict=True)
            ]
            options = {**options, "attributes": {**options["attributes"], "empty": rows}}
        elif wide:
            inputs = [
                x.to(stated[v.type.dtype]) if isinstance(v.type, TensorType) else x
                for x, v in zip(inputs, op.inputs, strict=True)
            ]

        def call(name: str, items: list[Any]) -> list[Any]:
            return self.program.call(name, items, self.known)

        outputs = run_extern(op.target, (positions, options), inputs, wanted, call)
        outputs = [
            value if dtype is None else self.program.widened(value)
            for value, dtype in zip(outputs, wanted, strict=False)
        ]
        return outputs + [None] * (len(wanted) - len(outputs))

    def _no_rows(self, kind: Attribute, dtype: str | None) -> np.ndarray[Any, Any] | None:
        """Return what a loop of no trips collects: a result of its type, without rows."""
        if dtype is None:
            return None
        shape, _ = self._result(kind)
        return np.zeros([0, *(max(n, 0) for n in shape[1:])], FLOW[dtype])

    def _result(self, kind: Attribute) -> tuple[tuple[int, ...], str]:
        assert isinstance(kind, TensorType)
        shape = [bind(dim, self.known) for dim in kind.shape]
        # A size that no input has and no op decided yet is one that the library op will decide.
        return tuple(d if isinstance(d, int) else -1 for d in shape), kind.dtype


def _plain(dim: Dim) -> Dim | None:
    text = str(dim)
    return symbol(text) if text.isidentifier() else None
