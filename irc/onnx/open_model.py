"""A model whose sizes are open: one import, and one plan with polynomials for its numbers.

The first sizes that a session meets get a plan of their own, the best for them. With the second
sizes the model is opened: plans are made at a few sizes, and what they have in common serves all
(:mod:`irc.calls.open_plans`); a call at new sizes then puts numbers in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from irc.calls.open_check import differs
from irc.calls.open_plans import OpenPlans, Work
from irc.dialects.bound_sizes import bound_module
from irc.dialects.builder import arguments, entry
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source
from irc.frontends.onnx.sizes import SizeTable
from irc.frontends.onnx.trace import (
    Fixed,
    OpenProgram,
    disagreement,
    places_of,
    read_values,
    stated_shapes,
    trace,
)
from irc.interpret.dynamic import run_dynamic
from irc.pipeline import Options, make_plan
from irc.program import Program
from irc.runtime.array_call import array_call
from irc.runtime.executors import executor_of
from irc.runtime.onnx_ops.values import as_item, as_tensor
from irc.runtime.prepared import Store

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Call: TypeAlias = Callable[[Sequence[Any]], list[Any]]

HINTS = (5, 7, 11, 13, 17, 19, 23, 29)
"""What stands for a size of 1 or 0 while a model is traced: those would broadcast."""
LAST = 31
"""What stands for all sizes of 1 after those."""


@dataclass(frozen=True)
class Report:
    """What a session made of the sizes of its model.

    Attributes:
        open: names of sizes that any number serves, with where each stands.
        fixed: sizes that are numbers in the compiled program, and what needs them so.
        conditions: what holds for the sizes that it serves.
        work: what was done for the sizes so far.
        refused: why sizes had to be compiled by themselves.
        hosted: where values decide sizes, branches or trips: what runs op by op, and why.
    """

    open: tuple[str, ...] = ()
    fixed: tuple[Fixed, ...] = ()
    conditions: tuple[str, ...] = ()
    work: tuple[Work, ...] = ()
    refused: tuple[str, ...] = ()
    hosted: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"open: {', '.join(self.open) or 'none'}"]
        lines += [f"fixed: '{each.name}' = {each.number}: {each.reason}" for each in self.fixed]
        lines += [f"holds for: {text}" for text in self.conditions]
        for work in self.work:
            lines.append(
                f"plans made: {work.planned}, sizes put in: {work.bound}, kernels for all sizes: "
                f"{work.shared}, for one size: {work.emitted}"
            )
            lines += [f"  {reason}" for reason in work.reasons]
        lines += [f"compiled by itself: {text}" for text in self.refused]
        lines += [f"host program: {text}" for text in self.hosted]
        return "\n".join(lines)


@dataclass
class OpenModel:
    """Runs a model for all sizes that its trace admits.

    Args:
        traced: the import.
        threads: of kernels.
    """

    traced: OpenProgram
    threads: int | None = None
    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        known = frozenset(self.traced.places) | frozenset(self.traced.quotients)
        self.compiles = is_planned(self.traced.program, known)
        self._plans = OpenPlans(
            self.traced, self.program_at, Options(), check=partial(differs, store=self.store)
        )
        self._calls = 0

    @property
    def work(self) -> Work:
        """What was done for sizes so far."""
        return self._plans.work

    def refused(self, shapes: Shapes) -> str | None:
        """Say why the trace is not for some shapes; None where it is."""
        values = read_values(self.traced.places, shapes)
        return disagreement(self.traced.shapes, shapes, values) or self.traced.refused(values)

    def program_at(self, values: Mapping[str, int]) -> Program:
        """Return the program for numbers."""
        return at_values(self.traced, values)

    def at(self, shapes: Shapes) -> Call:
        """Return what runs the model for shapes that are not refused."""
        values = read_values(self.traced.places, shapes)
        if not self.compiles:
            return interpreted(self.program_at(values))
        self._calls += 1
        if self._calls == 1:
            loaded = make_plan(self.program_at(values), Options(), keep_ir=False)
        else:
            loaded = self._plans.at(values)
        executor = executor_of(
            loaded, self.traced.program.tensors, num_threads=self.threads, store=self.store
        )
        return array_call(executor)


@dataclass
class OpenModels:
    """The traces of one model: one, and more where sizes are fixed in it.

    Args:
        source: the model, with the types of its inputs as the file states them.
        threads: of kernels.
    """

    source: Source
    threads: int | None = None
    models: list[OpenModel] = field(default_factory=list[OpenModel])
    refused: list[str] = field(default_factory=list[str])
    _prepared: Source | None = None

    def known_for(self, shapes: Shapes) -> OpenModel | None:
        """Return the trace that there is for some shapes; None where there is none yet."""
        return next((model for model in self.models if model.refused(shapes) is None), None)

    def model_for(self, shapes: Shapes) -> OpenModel | None:
        """Return a trace for some shapes; None where they have to be compiled by themselves."""
        if (known := self.known_for(shapes)) is not None:
            return known
        model = self._traced(shapes)
        if model is None:
            return None
        reason = model.refused(shapes)
        if reason is not None:
            self._note(reason)
            return None
        self.models.append(model)
        return model

    def _traced(self, shapes: Shapes) -> OpenModel | None:
        try:
            return self._trace(shapes)
        except IrcError as error:
            self._note(str(error))
            return None

    def _trace(self, shapes: Shapes) -> OpenModel | None:
        if self._prepared is None:
            self._prepared = prepare(self.source)
        table = SizeTable()
        stated = stated_shapes(self._prepared.model.graph.input, table)
        places, lonely = places_of(stated, table)
        if lonely or set(stated) != set(shapes) or not places:
            self._note("an input has sizes that cannot be read off its shape")
            return None
        values = read_values(places, shapes)
        if (wrong := disagreement(stated, shapes, values)) is not None:
            self._note(wrong)
            return None
        spare = iter(HINTS)
        hints = {n: v if v > 1 else next(spare, LAST) for n, v in values.items()}
        traced = trace(self._prepared, hints, dynamic=True)
        if any(values[name] != each.number for name, each in traced.fixed.items()):
            # A size of 1 that has to be a number is that number.
            again = {n: Fixed(e.name, values[n], e.reason) for n, e in traced.fixed.items()}
            traced = trace(self._prepared, hints, again, dynamic=True)
        return OpenModel(traced, self.threads)

    def _note(self, reason: str) -> None:
        if reason not in self.refused:
            self.refused.append(reason)

    def report(self) -> Report:
        """Say what became of the sizes."""
        fixed = {(f.name, f.number): f for m in self.models for f in m.traced.fixed.values()}
        opened = dict.fromkeys(m.traced.said(n) for m in self.models for n in m.traced.places)
        shown = (m.traced.shown(c) for m in self.models for c in m.traced.conditions)
        return Report(
            tuple(opened),
            tuple(fixed.values()),
            tuple(dict.fromkeys(shown)),
            tuple(m.work for m in self.models if m.compiles),
            tuple(self.refused),
        )


def at_values(traced: OpenProgram, values: Mapping[str, int]) -> Program:
    """Return an imported program for numbers of its sizes."""
    program, full = traced.program, traced.extended(values)
    return Program(bound_module(program.module, full), program.tensors, program.source)


def is_planned(program: Program, known: frozenset[str]) -> bool:
    """True where all values are tensors whose sizes follow from the shapes of the inputs."""
    module = program.module
    values = (*entry(module).body.block.args, *(r for op in module.walk() for r in op.results))
    return all(
        isinstance(v.type, TensorType)
        and all(isinstance(d, int) or d.names() <= known for d in v.type.shape)
        for v in values
    )


def interpreted(program: Program) -> Call:
    """Return a function that runs a program of sizes that only the run knows."""
    places = [
        (role == "input", name, isinstance(value.type, TensorType))
        for role, name, value in arguments(entry(program.module))
    ]

    def call(values: Sequence[Any]) -> list[Any]:
        remaining = iter(values)
        bound = [
            program.tensors[name]
            if not fed
            else as_tensor(next(remaining))
            if flow
            else next(remaining)
            for fed, name, flow in places
        ]
        return [as_item(value) for value in run_dynamic(program.module, bound)]

    return call
