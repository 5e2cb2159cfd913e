"""What runs a compiled graph, with the parameters of each call."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from irc.calls.direct import Launch, launch
from irc.calls.noted import noted_plan, noting
from irc.calls.open_graph import OpenGraph
from irc.frontends.torch.graphs import FlatProgram
from irc.pipeline import Options
from irc.plan.libraries import fall_backs
from irc.plan.load import LoadedPlan
from irc.runtime.executors import executor_of
from irc.runtime.prepared import Store
from irc.torch_backend.counts import counters

Flat: TypeAlias = Callable[..., Sequence[Any]]
"""Called with a graph's arguments; gives its outputs."""

MAX_MODULES = 64
"""Modules of one form whose parameters stay bound to one graph."""


def runner_of(program: FlatProgram, options: Options) -> Flat:
    """Return what runs a program: planned for its sizes, or for those of each call."""
    if program.open is None or not program.open.places:
        return CompiledGraph(program, options)
    return OpenGraph(
        program, options, lambda flat, plan, store: CompiledGraph(flat, options, plan, store)
    )


class CompiledGraph:
    """A compiled graph: flat tensors in, the graph's outputs out."""

    def __init__(
        self,
        program: FlatProgram,
        options: Options,
        plan: LoadedPlan | None = None,
        store: Store | None = None,
    ) -> None:
        self._flat = program
        self._store = store
        self._inputs = program.inputs
        self._held = tuple(program.held.items())
        self._direct = [kind for kind, _ in program.results] == ["result"] * len(
            program.results
        ) and [value for _, value in program.results] == list(range(len(program.results)))
        self._first = _first_places(program.results)
        self._tensors = program.assembly.program.tensors
        self._executors: OrderedDict[tuple[int, ...], Launch] = OrderedDict()
        self._lock = threading.Lock()
        bound = tuple(self._tensors[name].data_ptr() for name, _ in self._held)
        if any(kind in ("result", "view") for kind, _ in program.results):
            self._plan = plan or noted_plan(program.assembly.program, options)
            for name, times in fall_backs(self._plan.plan).items():
                counters[f"library {name}"] += times
            with noting(options.record):
                executor = self._launch(self._tensors)
        else:
            executor = _nothing
        self._executors[bound] = executor
        # One tuple: another thread sees parameters and executor of one call, or of another.
        self._latest = bound, executor

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run on the graph's arguments."""
        executor = self._bound_to(args) if self._held else self._latest[1]
        outputs = executor([args[i] for i in self._inputs])
        if self._direct:
            return outputs
        shown: list[Any] = []
        for i, (kind, value) in zip(self._first, self._flat.results, strict=True):
            is_new = i == len(shown)
            shown.append(_shown(kind, value, outputs, args) if is_new else shown[i])
        return tuple(shown)

    def _launch(self, tensors: Mapping[str, torch.Tensor]) -> Launch:
        store = Store(is_watched=True) if self._store is None else self._store
        return launch(executor_of(self._plan, tensors, store=store, draws=True))

    def _bound_to(self, args: Sequence[Any]) -> Launch:
        """Use the parameters of this call: Dynamo runs one graph for all modules of one form."""
        here = tuple(args[i].data_ptr() for _, i in self._held)
        bound, executor = self._latest
        if here == bound:
            return executor
        with self._lock:
            if here not in self._executors:
                counters["rebound"] += 1
                tensors = {**self._tensors, **{name: args[i].detach() for name, i in self._held}}
                self._executors[here] = self._launch(tensors)
                if len(self._executors) > MAX_MODULES:
                    self._executors.popitem(last=False)
            self._latest = here, self._executors[here]
            return self._executors[here]


def _shown(kind: str, value: Any, outputs: Sequence[Any], args: Sequence[Any]) -> Any:
    match kind:
        case "result":
            return outputs[value]
        case "view":
            return value[1].of(outputs[value[0]])
        case "argument":
            return args[value]
        case "argument view":
            return value[1].of(args[value[0]])
        case _:
            return value


def _first_places(results: Sequence[tuple[str, Any]]) -> list[int]:
    """Return where each result stands for the first time.

    A view that is given twice is one tensor, as in eager: autograd asks whether somebody else has a
    gradient, before it keeps it and adds to it in place.
    """
    keys = [(kind, value) if "view" in kind else i for i, (kind, value) in enumerate(results)]
    first: dict[Any, int] = {}
    return [first.setdefault(key, i) for i, key in enumerate(keys)]


def _nothing(_: Sequence[torch.Tensor]) -> tuple[()]:
    return ()
