"""The steps of a host program's functions, prepared: looked up once, run at every call."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from irc.errors import IrcError
from irc.plan.host_code import Call, Fill, Function, HostCode, Library, Node, Step
from irc.plan.json_text import corrupt
from irc.runtime.host_shapes import Known, Shape, no_rows, shape_of
from irc.runtime.onnx_ops.run import PREFIX, decoded, functions_of, kernels, run_items
from irc.runtime.onnx_ops.values import Item

if TYPE_CHECKING:
    from irc.runtime.host_calls import HostCalls

Run: TypeAlias = Callable[[list[Item], Known], None]
"""Runs a step: reads and writes values by their numbers."""


class Prepared:
    """A function whose steps are ready to run."""

    def __init__(self, calls: HostCalls, function: Function, arrays: Sequence[Item]) -> None:
        self._calls = calls
        self._shapes = [shape_of(each) for each in function.inputs]
        self._stored = [(slot, arrays[number]) for slot, number in function.stored]
        self._rest = [None] * (function.values - len(function.inputs))
        self._steps = [self._step(step) for step in function.steps]
        self._outputs = function.outputs

    def run(self, inputs: Sequence[Item], sizes: Known) -> list[Item]:
        """Run on what a caller gives, with the sizes that it knows."""
        known, values = dict(sizes), [*inputs, *self._rest]
        for index, shape in enumerate(self._shapes):
            if shape is not None:
                values[index] = value = np.asarray(values[index])
                shape.learn(value, known)
        for slot, array in self._stored:
            values[slot] = array
        for step in self._steps:
            step(values, known)
        return [values[slot] for slot in self._outputs]

    def _step(self, step: Step) -> Run:
        match step:
            case Fill():
                return _fill(step)
            case Call():
                return self._call(step)
            case Node():
                return self._node(step)
            case Library():
                return self._library(step)

    def _call(self, step: Call) -> Run:
        name, inputs, call = step.function, step.inputs, self._calls.call
        result_shapes = [shape_of(each) for each in step.stated]
        outputs = list(zip(step.outputs, result_shapes, strict=True))

        def run(values: list[Item], known: Known) -> None:
            results = call(name, [values[slot] for slot in inputs], known, result_shapes)
            _write(outputs, results, values, known)

        return run

    def _node(self, step: Node) -> Run:
        target, inputs = step.target, step.inputs
        positions, options = decoded(step.arguments)
        if problem := _problem(step, options, positions, self._calls.code):
            raise corrupt(f"{target[:80]} {problem}", step.loc)
        result_shapes = [shape_of(each) for each in step.stated]
        outputs = list(zip(step.outputs, result_shapes, strict=True))
        wanted = [None if each is None else each.dtype for each in step.stated]
        missing = [None] * len(wanted)
        has_bodies, calls = bool(functions_of((positions, options))), self._calls

        def run(values: list[Item], known: Known) -> None:
            operands = [values[slot] for slot in inputs]
            if not has_bodies:
                results = run_items(target, (positions, options), operands, wanted)
            else:
                rows = partial(no_rows, result_shapes, known)
                own = {**options, "attributes": {**options["attributes"], "empty": rows}}

                def body(name: str, items: list[Item]) -> list[Item]:
                    return calls.functions[name].run(items, known)

                results = run_items(target, (positions, own), operands, wanted, body)
            _write(outputs, [*results, *missing[len(results) :]], values, known)

        return run

    def _library(self, step: Library) -> Run:
        inputs, library = step.inputs, self._calls.regions.library
        result_shapes = [shape_of(each) for each in step.stated]
        outputs = list(zip(step.outputs, result_shapes, strict=True))

        def run(values: list[Item], known: Known) -> None:
            shapes = [
                [-1 if n is None else n for n in each.numbers(known)]
                for each in result_shapes
                if each
            ]
            results = library(step, [values[slot] for slot in inputs], shapes)
            _write(outputs, results, values, known)

        return run


def _write(
    outputs: Sequence[tuple[int, Shape | None]],
    results: list[Item],
    values: list[Item],
    known: Known,
) -> None:
    for (slot, shape), value in zip(outputs, results, strict=True):
        if shape is not None:
            shape.learn(value, known)
        values[slot] = value


def _problem(step: Node, options: Any, positions: Any, code: HostCode) -> str | None:
    """Say what of an op's arguments cannot be; None where all can."""
    try:
        return _problem_of(step, options, positions, code)
    except (AttributeError, LookupError, TypeError, ValueError):
        return "has arguments of another form"


def _problem_of(step: Node, options: Any, positions: Any, code: HostCode) -> str | None:
    if step.target.removeprefix(PREFIX) not in kernels():
        return "is no op that irc has"
    if not isinstance(options.get("version"), int):
        return "is of no opset"
    bodies: list[dict[str, Any]] = [
        a for a in options["attributes"].values() if isinstance(a, dict) and "function" in a
    ]
    for body in bodies:
        if body["function"] not in code.functions:
            return f"calls {body['function'][:40]!r}, which there is not"
    places = [place["operand"] for place in positions if place is not None]
    places += [place for _, place in options.get("captures", ())]
    places += [place for body in bodies for place in body.get("captures", ())]
    if any(type(place) is not int or not 0 <= place < len(step.inputs) for place in places):
        return "reads an operand that there is not"
    return None


def _fill(step: Fill) -> Run:
    shape, slot = Shape(step.stated), step.output
    element = np.frombuffer(base64.b64decode(step.data), shape.dtype)

    def run(values: list[Item], known: Known) -> None:
        sizes = [n for n in shape.numbers(known) if n is not None]
        if len(sizes) != len(step.stated.shape):
            raise IrcError("input-mismatch", "a constant has sizes that nothing decided yet")
        values[slot] = np.full(sizes, element[0], shape.dtype)

    return run
