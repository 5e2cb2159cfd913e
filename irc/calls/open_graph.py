"""A graph of Dynamo or AOTAutograd whose sizes are open: one trace, a bound plan for each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import torch

from irc.calls.open_plans import OpenPlans, Work
from irc.frontends.torch.graphs import FlatProgram
from irc.frontends.torch.open_sizes import NumberedSizes
from irc.frontends.torch.result_memory import View
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.runtime.driver import BySizes
from irc.runtime.prepared import Store

Bind: TypeAlias = Callable[[FlatProgram, LoadedPlan | None, Store], Callable[..., Sequence[Any]]]
"""Makes what runs a program of numbers, given its plan and what is prepared of its weights."""


class RefusedError(Exception):
    """A call's sizes are not those that a trace is for: it has to be compiled by itself."""


class OpenGraph:
    """Runs a graph on the arguments that Dynamo gives it, tensors and numbers.

    Args:
        flat: the program, with sizes left open.
        options: of the pipeline.
        bind: makes what runs it for one size.
    """

    def __init__(self, flat: FlatProgram, options: Options, bind: Bind) -> None:
        assert flat.open is not None
        self._flat, self._open, self._bind = flat, flat.open, bind
        self._plans = OpenPlans(flat.open, flat.open.program_at, options)
        self._bound = BySizes(self._make)
        self._store = Store(is_watched=True)

    @property
    def work(self) -> Work:
        """What was done so far."""
        return self._plans.work

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run on arguments.

        Raises:
            RefusedError: the trace is not for their sizes.
        """
        return self._bound.at(self._shapes(args))(*args)

    def _shapes(self, args: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
        inputs = [args[i] for i in self._flat.symbolic]
        return tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else (int(x),) for x in inputs)

    def _make(self, shapes: Sequence[Sequence[int]]) -> Callable[..., Sequence[Any]]:
        values = self._open.read(shapes)
        if (reason := self._open.refused(values, shapes)) is not None:
            raise RefusedError(reason)
        numbers = NumberedSizes(self._open.whole(values))
        results = tuple((kind, _number(value, numbers)) for kind, value in self._flat.results)
        computes = any(kind in ("result", "view") for kind, _ in results)
        plan = self._plans.at(values) if computes else None
        return self._bind(replace(self._flat, results=results), plan, self._store)


def _number(value: Any, numbers: NumberedSizes) -> Any:
    if isinstance(value, View):
        return value.numbered(lambda size: _number(size, numbers))
    if isinstance(value, tuple):
        return tuple(_number(part, numbers) for part in cast("tuple[Any, ...]", value))
    symbolic = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
    return numbers.number(value) if symbolic else value
