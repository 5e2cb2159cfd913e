"""Lowering a host program from its text form to the steps that the driver runs.

Constants are made here, once, with what follows from them alone; so is what the driver looks up.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from irc.dialects.builder import arguments, functions
from irc.dialects.flow import ExternOp, FlowOp, loc_of
from irc.dialects.literals import ConstantOp
from irc.dialects.types import TensorType
from irc.errors import InternalError
from irc.interpret.dynamic import WEIGHTS
from irc.plan.host import HostFacts
from irc.plan.host_code import Call, Fill, Function, HostCode, Library, Node, Stated, Step
from irc.plan.open_sizes import polynomial_of
from irc.runtime import library
from irc.runtime.dtypes import dtypes
from irc.runtime.onnx_ops.run import PREFIX
from irc.runtime.onnx_ops.values import Item, as_item

MAX_FOLDED = 1 << 22
"""Elements of a constant that is made before the first call; a larger one is made in each."""

ON_ARRAYS = {"onnx::NonZero": 13}
"""Ops that decide sizes and run in torch elsewhere, and the opset whose kernel runs them here."""


def host_code(
    module: ModuleOp, facts: HostFacts, weights: Mapping[str, Any]
) -> tuple[HostCode, list[Item]]:
    """Return a host program as steps, and the arrays that it reads: weights and constants.

    Args:
        module: level flow, outlined.
        facts: names its regions and sizes.
        weights: torch tensors by name.
    """
    known = functions(module)
    arrays: list[Item] = []
    numbers: dict[str, int] = {}
    lowered = {
        name: _Lowering(func, known, facts, weights, arrays, numbers).run()
        for name, func in known.items()
        if name not in facts.regions
    }
    code = HostCode(
        facts.inputs, facts.outputs, lowered, tuple(facts.regions),
        facts.symbols, facts.quotients, facts.conditions,
    )  # fmt: skip
    return code, arrays


class _Lowering:
    """One function; ``arrays`` and ``numbers`` (of weights, by name) are those of the program."""

    def __init__(
        self,
        func: FuncOp,
        known: Mapping[str, FuncOp],
        facts: HostFacts,
        weights: Mapping[str, Any],
        arrays: list[Item],
        numbers: dict[str, int],
    ) -> None:
        self._func, self._known, self._facts = func, known, facts
        self._weights, self._arrays, self._numbers = weights, arrays, numbers
        self._slots: dict[SSAValue, int] = {}
        self._names: dict[SSAValue, str] = {}
        self._constants: dict[SSAValue, Any] = {}
        self._stored: dict[int, int] = {}
        self._steps: list[Step] = []

    def run(self) -> Function:
        """Lower the function."""
        inputs: list[Stated | None] = []
        for role, name, value in arguments(self._func):
            if role in WEIGHTS:
                self._names[value] = name
            else:
                self._slots[value] = len(inputs)
                inputs.append(stated(value.type))
        outputs: tuple[int, ...] | None = None
        for op in self._func.body.block.ops:
            if isinstance(op, ReturnOp):
                outputs = self._read(op.operands)
            elif isinstance(op, CallOp):
                self._call(op)
            else:
                self._op(op)
        if outputs is None:
            raise InternalError("a function of a host program ends without func.return")
        return Function(
            tuple(inputs), tuple(sorted(self._stored.items())), tuple(self._steps), outputs,
            len(self._slots),
        )  # fmt: skip

    def _read(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        return tuple(self._slot(value) for value in values)

    def _slot(self, value: SSAValue) -> int:
        """Return the number of a value; what is stored becomes one where it is first read."""
        if value in self._slots:
            return self._slots[value]
        if value in self._names:
            name = self._names[value]
            if name not in self._numbers:
                self._numbers[name] = len(self._arrays)
                self._arrays.append(as_item(self._weights[name]))
            number = self._numbers[name]
        else:
            number = len(self._arrays)
            self._arrays.append(as_item(self._constants[value]))
        slot = self._slots[value] = len(self._slots)
        self._stored[slot] = number
        return slot

    def _written(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        for value in values:
            self._slots[value] = len(self._slots)
        return tuple(self._slots[value] for value in values)

    def _call(self, op: CallOp) -> None:
        name = op.callee.string_value()
        roles = [role for role, _, _ in arguments(self._known[name])]
        operands = [v for v, role in zip(op.operands, roles, strict=True) if role not in WEIGHTS]
        inputs = self._read(operands)
        types = tuple(stated(result.type) for result in op.results)
        self._steps.append(Call("call", name, inputs, self._written(op.results), types))

    def _op(self, op: Operation) -> None:
        assert isinstance(op, FlowOp), op.name
        types = tuple(stated(result.type) for result in op.outputs)
        if isinstance(op, ExternOp) and (node := _on_arrays(op)) is not None:
            inputs = self._read(op.inputs)
            target, text = node
            outputs = self._written(op.outputs)
            self._steps.append(Node("node", target, text, inputs, outputs, types, loc_of(op)))
            return
        if not isinstance(op, ExternOp) and self._fold(op):
            return
        if isinstance(op, ConstantOp) and (fill := self._fill(op)) is not None:
            self._steps.append(fill)
            return
        inputs = self._read(op.inputs)
        outputs = self._written(op.outputs)
        self._steps.append(
            Library("library", op.name, inputs, outputs, types, op.plain, loc_of(op))
        )

    def _fold(self, op: FlowOp) -> bool:
        """Compute what follows from constants alone, where its sizes are numbers."""
        results: list[tuple[tuple[int, ...], str]] = []
        for value in op.outputs:
            kind = value.type
            if not isinstance(kind, TensorType):
                return False
            shape = tuple(dim for dim in kind.shape if isinstance(dim, int))
            if len(shape) != kind.ndim or np.prod(shape) > MAX_FOLDED:
                return False
            results.append((shape, kind.dtype))
        if any(value not in self._constants for value in op.inputs):
            return False
        operands = [self._constants[value] for value in op.inputs]
        tensors = library.run(op.name, op.plain, operands, results)
        for value, tensor, (_, dtype) in zip(op.outputs, tensors, results, strict=True):
            wanted = dtypes()[dtype]
            self._constants[value] = tensor.to(wanted) if tensor.is_floating_point() else tensor
        return True

    def _fill(self, op: ConstantOp) -> Fill | None:
        (value,) = op.outputs
        types = stated(value.type)
        if types is None or len(op.value) != 1:
            return None
        (element,) = library.run(op.name, op.plain, [], [((1,), types.dtype)])
        data = base64.b64encode(as_item(element).tobytes()).decode("ascii")
        (output,) = self._written([value])
        return Fill("fill", output, types, data)


def _on_arrays(op: ExternOp) -> tuple[str, str] | None:
    """Return the target and the arguments of an op that has a kernel on arrays; None without."""
    target, text = op.target, op.arguments
    if target.startswith(PREFIX):
        return target, text
    if target in ON_ARRAYS:
        positions, _ = json.loads(text)
        options: Mapping[str, Any] = {"version": ON_ARRAYS[target], "attributes": {}}
        return f"{PREFIX}{target.removeprefix('onnx::')}", json.dumps([positions, options])
    return None


def stated(kind: Attribute) -> Stated | None:
    """Return what a type says; None for what is no tensor."""
    if not isinstance(kind, TensorType):
        return None
    return Stated(kind.dtype, tuple(polynomial_of(dim) for dim in kind.shape))
