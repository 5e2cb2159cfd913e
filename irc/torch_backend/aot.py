"""Graphs with a backward, or that write: AOTAutograd makes them functional and splits them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis, TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._functorch._aot_autograd import runtime_wrappers
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from irc.calls.left import leave
from irc.calls.open_graph import OpenGraph, RefusedError
from irc.errors import IrcError
from irc.frontends.torch.classes import look_at_classes
from irc.frontends.torch.export import LOOKING, every_decomposition
from irc.frontends.torch.failures import of_error
from irc.frontends.torch.graphs import FlatProgram, flat_program
from irc.frontends.torch.idle_dropout import drop_idle
from irc.frontends.torch.result_memory import View
from irc.frontends.torch.saved_images import Turned, turn_given, turn_saved
from irc.frontends.torch.strided_writes import copy_into_strided_calls
from irc.frontends.torch.table import row_of
from irc.frontends.torch.unfold_writes import unfold_by_slices
from irc.pipeline import Options
from irc.torch_backend.compiled import Flat, runner_of
from irc.torch_backend.counts import count_left, counters
from irc.torch_backend.gradient_memory import mark_loose, mark_overlapping, resolving
from irc.torch_backend.own_gradients import tell_autograd
from irc.torch_backend.regions import by_parts, untouched_by_errors
from irc.torch_backend.saved_inputs import keep_copies, save_compared
from irc.torch_backend.twice import differentiable, is_random_or_cast

_OVERLOAD: Any = torch._ops.OpOverload
"""As Any: what isinstance says of it has arguments of unknown types."""


def compile_through_aot(
    gm: GraphModule, inputs: Sequence[Any], options: Options, *, keep_open: bool = False
) -> Flat:
    """Let AOTAutograd make the graph functional and, where gradients are wanted, split it.

    What of them cannot be compiled is run by torch: nodes that irc does not take as regions
    (:mod:`~irc.torch_backend.regions`), and a whole backward pass with a warning.

    Args:
        gm: a graph of Dynamo.
        inputs: a value for each placeholder; fake ones where sizes stay open.
        options: of the plans.
        keep_open: leave the sizes open.

    Raises:
        IrcError: the forward pass cannot be compiled.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import TracingContext
    from torch.utils._python_dispatch import _disable_current_modes

    drop_idle(gm)
    look_at_classes(gm)
    tell_autograd(gm)
    unfold_by_slices(gm.graph)
    copy_into_strided_calls(gm.graph)
    gm.recompile()
    # Backward may be compiled when it first runs, and another call may have come by then.
    own = None if options.record is None else options.record.of_this_call()
    late = replace(options, record=own)
    turned: list[Turned] = []
    is_traced = repeats = False
    results: list[int] = []

    def partition(joint: GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        results.append(num_fwd_outputs)
        save_compared(joint)
        return min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
        )

    def forward(graph: GraphModule, _: Sequence[Any]) -> Any:
        nonlocal is_traced, repeats
        is_traced = True
        counters["forward"] += 1
        # AOTAutograd calls this inside its fake tensor mode.
        context = TracingContext.try_get()
        seen = context.fw_metadata if context else None
        # Tokens of ops with effects come before what the caller sees.
        visible = len(seen.tokens) + seen.num_forward if seen else None
        if results:
            keep_copies(graph, gm, seen, results[-1])
        repeats = not is_random_or_cast(graph)
        with _disable_current_modes():
            refused: set[Node] = set()
            try:
                with untouched_by_errors(graph):
                    images = turn_saved(graph, None if keep_open else visible)
                    program = flat_program(
                        graph, {}, "aot forward", visible=visible, keep_open=keep_open,
                        outline=not images, refused=refused,
                    )  # fmt: skip
            except IrcError as error:
                if keep_open or not refused:
                    raise
                return _boxed(by_parts(graph, refused, error, options))
            turned.extend(images.values())
            run = runner_of(_shown_turned(program, images), options)
            around = _takes_memory(graph) and not images
            return _boxed(_for_other_memory(run, graph.forward, options) if around else run)

    def backward(graph: GraphModule, _: Sequence[Any]) -> Any:
        with _disable_current_modes():
            images = turn_given(graph, turned)
            mark_loose(graph)
            mark_overlapping(graph)
        refused: set[Node] = set()
        try:
            with _disable_current_modes():
                run = compiled_backward(graph, refused, outline=not images)
            counters["backward"] += 1
        except Exception as error:  # what it is, leave() decides
            counters["backward run by torch"] += 1
            leave("a backward pass", error, late)
            run = graph.forward
        return make_boxed_func(_turning(run, images) if images else run)

    def compiled_backward(graph: GraphModule, refused: set[Node], *, outline: bool) -> Flat:
        try:
            with untouched_by_errors(graph):
                program = flat_program(
                    graph, {}, "aot backward", keep_open=keep_open, outline=outline,
                    refused=refused,
                )  # fmt: skip
        except IrcError as error:
            if keep_open or not refused:
                raise
            return by_parts(graph, refused, error, late)
        run = _or_torch(runner_of(program, late), graph.forward, late)
        return resolving(run, graph, program)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch(\.|$)")
        compiler = aot_autograd(
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=forward,
            decompositions=_aot_decompositions(),
            partition_fn=partition,
        )
        try:
            run = _again_with_numbers(lambda: compiler(gm, list(inputs)))
            return differentiable(run, gm, lambda: repeats)
        except Exception as error:
            # Dynamo is to trace it again with more numbers fixed: no failure.
            if is_traced or isinstance(error, RestartAnalysis):
                raise
            if isinstance(error, IrcError) and error.code == "op-declaration":
                raise  # what a user declared of an op fails: no failure to trace
            first = str(error).strip().split("\n")[0]
            raise IrcError(
                "capture-failed",
                f"AOTAutograd does not trace a graph: {type(error).__name__}: {first}",
                of_error(error),
            ) from error


def _boxed(run: Flat) -> Callable[[list[Any]], Sequence[Any]]:
    """Return what takes the arguments of a forward pass as AOTAutograd gives them, in a list.

    It makes the first call under a mode that looks at what operators of packages return. Under any
    mode torch's own compute in other ways, some of them wrong: ``linalg.pinv`` of complex numbers
    is off by its own size.
    """
    is_first = True

    def boxed(args: list[Any]) -> Sequence[Any]:
        nonlocal is_first
        if is_first:
            is_first = False
            if isinstance(_get_current_dispatch_mode(), OF_THE_FIRST_CALL):
                with _pop_mode_temporarily():
                    return run(*args)
        return run(*args)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


OF_THE_FIRST_CALL = getattr(runtime_wrappers, "_AnalyzeCustomOpInputOutputMode", ())
"""The mode, where this version of torch has it."""


def _again_with_numbers(trace: Callable[[], Flat]) -> Flat:
    """Trace once more where AOTAutograd asks Dynamo to fix numbers that it had left open.

    Graphs have those as numbers already; what is left are the symbols of Dynamo's own trace.
    """
    fixed = TensorifyState.force_specializations
    before = set(fixed)
    try:
        return trace()
    except TensorifyScalarRestartAnalysis:
        return trace()
    finally:
        fixed.intersection_update(before)


def _shown_turned(program: FlatProgram, images: Mapping[int, Turned]) -> FlatProgram:
    """Return a program whose turned results are views with the dims in their own order."""
    results = list(program.results)
    for position, image in images.items():
        kind, value = results[position]
        assert kind == "result"
        view = View(image.shape, image.strides, 0, image.dtype)
        results[position] = ("view", (value, view))
    return replace(program, results=tuple(results))


def _turning(run: Flat, images: Mapping[int, tuple[int, ...]]) -> Flat:
    """Return what runs a graph that takes some arguments channels last."""

    def turned(*args: Any) -> Sequence[Any]:
        arguments = list(args)
        for position, order in images.items():
            arguments[position] = arguments[position].permute(order)
        return run(*arguments)

    return turned


def _or_torch(run: Flat, forward: Flat, options: Options) -> Flat:
    """Return what runs a backward pass; torch does for sizes that its own trace is not for."""

    def either(*args: Any) -> Sequence[Any]:
        try:
            return run(*args)
        except RefusedError as error:
            count_left(options, "backward", f"{error}")
            return forward(*args)

    return either if isinstance(run, OpenGraph) else run


def _takes_memory(graph: GraphModule) -> bool:
    """True for a graph that may take the memory of arguments which lie in each other's."""
    looks = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
    placeholders = graph.graph.find_nodes(op="placeholder")
    return any(user.target in looks for node in placeholders for user in node.users)


def _for_other_memory(run: Flat, forward: Flat, options: Options) -> Flat:
    """Return what runs a graph; torch does where such a memory has another length.

    Dynamo guards the sizes of the arguments, and not how much memory there is around them.
    """

    def either(*args: Any) -> Sequence[Any]:
        try:
            return run(*args)
        except IrcError as error:
            if error.code != "input-mismatch":
                raise
            count_left(options, "graph", "an argument lies in memory of another length")
            return forward(*args)

    return either


def _aot_decompositions() -> dict[Any, Callable[..., Any]]:
    return {
        op: fn
        for op, fn in every_decomposition().items()
        if op not in LOOKING and not (isinstance(op, _OVERLOAD) and row_of(op))
    }
