"""``torch.compile(backend="irc")``: Dynamo's graphs to plans, backward through AOTAutograd.

Dynamo keeps what it cannot trace in Python (graph breaks) and guards what it specialised on; each
graph between breaks comes here. Sizes that Dynamo leaves open stay open where
they can (:mod:`irc.calls.open_graph`); else there is a plan per size.

Outputs that share memory with inputs or each other do so as in eager mode, and dims lie in memory
in eager's order. Random numbers come from irc's own counter; where it starts is drawn from torch's
generator at each call, so that ``torch.manual_seed`` makes runs repeatable.
"""

# pyright: basic
from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx import GraphModule, Node

from irc.calls.direct import Launch, launch
from irc.calls.open_graph import OpenGraph, RefusedError
from irc.calls.recompiles import Recompiles
from irc.collection import collection_held
from irc.errors import IrcError, did_you_mean
from irc.frontends.torch.export import every_decomposition
from irc.frontends.torch.graphs import (
    FlatProgram,
    flat_program,
    pre_dispatch,
    returns_inputs,
    source_name,
)
from irc.frontends.torch.linear_loss import stream_losses
from irc.frontends.torch.saved_images import Turned, turn_given, turn_saved
from irc.frontends.torch.table import row_of
from irc.pipeline import Options, make_plan
from irc.plan.libraries import fall_backs
from irc.plan.load import LoadedPlan
from irc.runtime.executors import executor_of
from irc.runtime.prepared import Store

Flat: TypeAlias = Callable[..., Sequence[Any]]

MAX_MODULES = 64
"""Modules of one form whose parameters stay bound to one graph."""

MAX_SIZES = 32
"""Plans kept for the sizes of one graph of open sizes."""

counters: Counter[str] = Counter()
"""What was done: graphs, forward, backward, ``backward run by torch``, ``library NAME``..."""


def compile_fx(gm: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Flat:
    """Compile a graph of Dynamo: what ``torch.compile(backend="irc")`` calls.

    Args:
        gm: torch functions over placeholders.
        example_inputs: a value for each placeholder.
        kwargs: what the user gave as ``options=`` and ``mode=``.

    Raises:
        IrcError: an option is unknown, or the graph cannot be compiled.
    """
    options = _options(kwargs)
    counters["graphs"] += 1
    if _is_open(gm, example_inputs):
        return _Specialising(gm, options)
    return _static(gm, example_inputs, options)


def _options(given: dict[str, Any]) -> Options:
    known = ("target", "verify_each", "passes")
    chosen = {**(given.get("options") or {})}
    for name in (*chosen, *(k for k in given if k not in ("options", "mode"))):
        if name not in known:
            raise IrcError(
                "option-unknown",
                f"backend 'irc' has no option '{name}'",
                help=did_you_mean(name, known),
            )
    return Options(**chosen)


@collection_held()
def _static(
    gm: GraphModule,
    inputs: Sequence[Any],
    options: Options,
    *,
    fakes: Sequence[Any] | None = None,
) -> Flat:
    """Compile a graph for the sizes of its inputs, or with ``fakes`` for all that those admit."""
    keep_open = fakes is not None
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        if not keep_open:
            gm = stream_losses(gm)[0]
        return _through_aot(gm, fakes or inputs, options, keep_open=keep_open)
    traced = pre_dispatch(gm, _fakes(gm, inputs) if fakes is None else fakes)
    if traced is None or returns_inputs(traced):
        return _through_aot(gm, fakes or inputs, options, keep_open=keep_open)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    held = {
        i: (source_name(getattr(node, "_dynamo_source", node.name)), value)
        for i, (node, value) in enumerate(zip(placeholders, inputs, strict=True))
        if isinstance(value, nn.Parameter) and value.is_contiguous()
    }
    counters["forward"] += 1
    return _runner(flat_program(traced, held, "dynamo", keep_open=keep_open), options)


def _runner(program: FlatProgram, options: Options) -> Flat:
    """Return what runs a program: planned for its sizes, or for those of each call."""
    if program.open is None or not program.open.places:
        return _Compiled(program, options)
    return OpenGraph(
        program, options, lambda flat, plan, store: _Compiled(flat, options, plan, store)
    )


def _through_aot(
    gm: GraphModule, inputs: Sequence[Any], options: Options, *, keep_open: bool = False
) -> Flat:
    """Let AOTAutograd make the graph functional and, where gradients are wanted, split it."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import TracingContext
    from torch.utils._python_dispatch import _disable_current_modes

    turned: list[Turned] = []

    def forward(graph: GraphModule, _: Sequence[Any]) -> Any:
        counters["forward"] += 1
        # AOTAutograd calls this inside its fake tensor mode.
        context = TracingContext.try_get()
        visible = context.fw_metadata.num_forward if context and context.fw_metadata else None
        with _disable_current_modes():
            images = turn_saved(graph, None if keep_open else visible)
            turned.extend(images.values())
            program = flat_program(
                graph, {}, "aot forward", visible=visible, keep_open=keep_open, outline=not images
            )
            return make_boxed_func(_runner(_shown_turned(program, images), options))

    def backward(graph: GraphModule, _: Sequence[Any]) -> Any:
        with _disable_current_modes():
            images = turn_given(graph, turned)
        try:
            with _disable_current_modes():
                program = flat_program(
                    graph, {}, "aot backward", visible=0, keep_open=keep_open, outline=not images
                )
                run: Flat = _or_torch(_runner(program, options), graph.forward)
            counters["backward"] += 1
        except IrcError as error:
            counters["backward run by torch"] += 1
            warnings.warn(
                f"torch runs this backward pass, because irc cannot compile it: {error}",
                stacklevel=2,
            )
            run = graph.forward
        return make_boxed_func(_turning(run, images) if images else run)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        compiler = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=forward,
            decompositions=_aot_decompositions(),
            partition_fn=min_cut_rematerialization_partition,
        )
        return compiler(gm, list(inputs))


def _shown_turned(program: FlatProgram, images: Mapping[int, Turned]) -> FlatProgram:
    """Return a program whose turned results are views with the dims in their own order."""
    results = list(program.results)
    for position, image in images.items():
        kind, value = results[position]
        assert kind == "result"
        results[position] = ("view", (value, image.shape, image.strides, 0))
    return replace(program, results=tuple(results))


def _turning(run: Flat, images: Mapping[int, tuple[int, ...]]) -> Flat:
    """Return what runs a graph that takes some arguments channels last."""

    def turned(*args: Any) -> Sequence[Any]:
        given = list(args)
        for position, order in images.items():
            given[position] = given[position].permute(order)
        return run(*given)

    return turned


def _or_torch(run: Flat, forward: Flat) -> Flat:
    """Return what runs a backward pass; torch does for sizes that its own trace is not for."""

    def either(*args: Any) -> Sequence[Any]:
        try:
            return run(*args)
        except RefusedError:
            counters["backward run by torch"] += 1
            return forward(*args)

    return either if isinstance(run, OpenGraph) else run


def _aot_decompositions() -> dict[Any, Callable[..., Any]]:
    return {
        op: fn
        for op, fn in every_decomposition().items()
        if not (isinstance(op, torch._ops.OpOverload) and row_of(op))
    }


class _Compiled:
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
        self._tensors = program.assembly.program.tensors
        self._seed = self._tensors.get("seed")
        self._executors: OrderedDict[tuple[int, ...], Launch] = OrderedDict()
        self._lock = threading.Lock()
        bound = tuple(self._tensors[name].data_ptr() for name, _ in self._held)
        if any(kind in ("result", "view") for kind, _ in program.results):
            self._plan = plan or make_plan(program.assembly.program, options, keep_ir=False)
            for name, times in fall_backs(self._plan.plan).items():
                counters[f"library {name}"] += times
            executor: Launch = launch(executor_of(self._plan, self._tensors, store=store))
        else:
            executor = _nothing
        self._executors[bound] = executor
        # One tuple: another thread sees parameters and executor of one call, or of another.
        self._latest = bound, executor

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run on the graph's arguments."""
        executor = self._bound_to(args) if self._held else self._latest[1]
        if self._seed is not None:
            self._seed.random_()
        found = executor([args[i] for i in self._inputs])
        if self._direct:
            return found
        return tuple(_shown(kind, value, found, args) for kind, value in self._flat.results)

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
                executor = executor_of(self._plan, tensors, store=self._store)
                self._executors[here] = launch(executor)
                if len(self._executors) > MAX_MODULES:
                    self._executors.popitem(last=False)
            self._latest = here, self._executors[here]
            return self._executors[here]


def _shown(kind: str, value: Any, found: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
    match kind:
        case "result":
            return found[value]
        case "view":
            return found[value[0]].as_strided(*value[1:])
        case "argument":
            return args[value]
        case _:
            return value


def _nothing(_: Sequence[torch.Tensor]) -> tuple[()]:
    return ()


class _Specialising:
    """A graph of open sizes: a plan per combination of sizes that is called."""

    def __init__(self, gm: GraphModule, options: Options) -> None:
        self._gm = gm
        self._options = options
        self._known: OrderedDict[tuple[Any, ...], Flat] = OrderedDict()
        self._refused = ""
        self._opened: dict[tuple[Any, ...], Flat | None] = {}
        self._recompiles = Recompiles()
        self._lock = threading.RLock()
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._names = [source_name(getattr(n, "_dynamo_source", n.name)) for n in placeholders]
        self._numbers = [i for i, node in enumerate(placeholders) if _items(node)]

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run the plan for these sizes."""
        opened = self._opened_for(args)
        if opened is not None:
            try:
                return opened(*args)
            except RefusedError as refused:
                self._refused = str(refused)
        return self._specialised(args)

    def _opened_for(self, args: Sequence[Any]) -> Flat | None:
        """Return what runs any sizes, if that could be made and admits those of a call."""
        key = (torch.is_grad_enabled(), *(args[i].item() for i in self._numbers))
        with self._lock:
            if key not in self._opened:
                self._opened[key] = self._open(args)
            return self._opened[key]

    def _open(self, args: Sequence[Any]) -> Flat | None:
        """Trace with the symbols of Dynamo; None where that cannot be."""
        placeholders = [node for node in self._gm.graph.nodes if node.op == "placeholder"]
        given = [node.meta.get("example_value") for node in placeholders]
        if any(value is None for value in given):
            return None
        graph = _with_numbers(self._gm, args, sizes=False) if self._numbers else self._gm
        try:
            found = _static(graph, args, self._options, fakes=given)
        except (IrcError, RuntimeError) as error:
            self._refused = str(error)
            return None
        counters["opened"] += 1
        return found

    def _specialised(self, args: Sequence[Any]) -> Sequence[Any]:
        grad = torch.is_grad_enabled()
        sizes = (tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args)
        key = (grad, *sizes, *(args[i].item() for i in self._numbers))
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._add(key, args)
            self._known.move_to_end(key)
        return found(*_tensors(args))

    def _add(self, key: tuple[Any, ...], args: Sequence[Any]) -> Flat:
        counters["specialised"] += 1
        if self._known:
            resized = self._resized(next(reversed(self._known)), key)
            because = f" ({self._refused})" if self._refused else ""
            self._recompiles.add(f"other sizes: {resized}{because}", resized)
        found = _static(_with_numbers(self._gm, args), _tensors(args), self._options)
        self._known[key] = found
        if len(self._known) > MAX_SIZES:
            self._known.popitem(last=False)
        return found

    def _resized(
        self, was: tuple[Any, ...], now: tuple[Any, ...]
    ) -> tuple[str, int, int, int] | None:
        """Return the first tensor of another size than in a call before: name, dim, both sizes."""
        for name, old, new in zip(self._names, was[1:], now[1:], strict=False):
            if isinstance(old, tuple) and isinstance(new, tuple):
                for dim, (a, b) in enumerate(zip(old, new, strict=False)):
                    if a != b:
                        return name, dim, a, b
        return None


def _tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    return [arg for arg in args if isinstance(arg, torch.Tensor)]


def _is_open(gm: GraphModule, inputs: Sequence[Any]) -> bool:
    values = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    return any(
        not isinstance(value, torch.Tensor)
        or any(isinstance(size, torch.SymInt) for size in value.shape)
        for value in (*values, *inputs)
        if value is not None
    )


def _with_numbers(gm: GraphModule, args: Sequence[Any], *, sizes: bool = True) -> GraphModule:
    """Return a copy of a graph with its numbers in place of the placeholders for them.

    Args:
        gm: the graph.
        args: of a call.
        sizes: also sizes, not only the numbers that Dynamo has wrapped into tensors.
    """
    from copy import copy

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    old, new = ([n for n in g.nodes if n.op == "placeholder"] for g in (gm.graph, graph))
    for was, node, value in zip(old, new, args, strict=True):
        if hasattr(was, "_dynamo_source"):  # a copy loses it: its name in the user's terms
            node._dynamo_source = was._dynamo_source
        if sizes:
            node.meta.pop("example_value", None)
        if sizes and not isinstance(value, torch.Tensor):
            node.replace_all_uses_with(value)
            graph.erase_node(node)
        for item in _items(node) if isinstance(value, torch.Tensor) else ():
            number: Any = value.item()
            item.replace_all_uses_with(number)
            graph.erase_node(item)
    return GraphModule(copy(gm), graph)


def _items(placeholder: Node) -> list[Node]:
    """Return where a graph takes the number out of a tensor that Dynamo has wrapped it in."""
    return [n for n in placeholder.users if n.op == "call_method" and n.target == "item"]


def _fakes(gm: GraphModule, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Return fake tensors for a graph's arguments: those of Dynamo where there are any."""
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    known = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    if all(isinstance(value, FakeTensor) for value in known):
        return known
    mode = detect_fake_mode(list(inputs)) or FakeTensorMode(
        allow_non_fake_inputs=True, static_shapes=True
    )
    return [mode.from_tensor(value, static_shapes=True) for value in inputs]
