"""Compiling one graph of Dynamo, for the sizes of its inputs or for all that they may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from irc.calls.left import leave
from irc.calls.noted import note_left
from irc.calls.trial import is_tried, noted, tried
from irc.collection import collection_held
from irc.errors import IrcError
from irc.frontends.torch.eager_refusals import of_other_dtype, refused
from irc.frontends.torch.foreign_calls import calls_foreign
from irc.frontends.torch.graphs import flat_program, pre_dispatch, returns_inputs, source_name
from irc.frontends.torch.kinds import peculiar_argument
from irc.frontends.torch.linear_loss import stream_losses
from irc.frontends.torch.own_thread import own_thread
from irc.frontends.torch.real_writes import writes
from irc.frontends.torch.tensor_memory import memory_of
from irc.frontends.torch.unseen_casts import has_unseen_cast
from irc.pipeline import Options
from irc.process_wide import deep_recursion
from irc.record import FallBack
from irc.torch_backend.aot import compile_through_aot
from irc.torch_backend.compiled import Flat, runner_of
from irc.torch_backend.counts import count_left, counters, first_line
from irc.torch_backend.eager_graph import forward_of
from irc.torch_backend.regions import (
    Part,
    by_parts,
    divided,
    note_region,
    untouched_by_errors,
)

Compile: TypeAlias = Callable[[GraphModule, Sequence[Any]], Flat]
"""Compiles a graph of Dynamo."""


PECULIAR = "it has tensors that are not dense, or of a subclass"
"""Why torch runs a part of a graph."""

GLOBAL_STATE = ("_set_grad_enabled", "_enter_autocast", "_exit_autocast")
"""What nodes after it run under: a graph with such is not cut."""


@collection_held()
@deep_recursion()
@own_thread()
def compile_graph(
    gm: GraphModule,
    inputs: Sequence[Any],
    options: Options,
    *,
    fakes: Sequence[Any] | None = None,
) -> Flat:
    """Compile a graph for the sizes of its inputs, or with ``fakes`` for all that those admit.

    What irc does not take of it, or fails on, torch runs.

    Args:
        gm: torch functions over placeholders.
        inputs: a value for each placeholder.
        options: of the plans.
        fakes: what Dynamo knows of each placeholder, with its symbols for open sizes.

    Raises:
        IrcError: for what the user chose; with ``fakes`` for all that the graph is refused for.
    """
    try:
        run, changes = _compiled(gm, inputs, options, fakes)
        run = _counting(gm, inputs, options, _with_drawn(gm, inputs, run))
        if fakes is None and is_tried(options):
            if calls_foreign(gm):
                return noted(run)

            def told(why: str) -> None:
                note_left(options, FallBack("timing", "a graph", why, first_line(gm)))

            return tried(run, forward_of(gm), copies=changes, held=_held(gm), told=told)
        return run
    except Exception as error:  # what it is, leave() decides
        if fakes is not None:
            raise
        leave("a graph", error, options)
        counters["graphs run by torch"] += 1
        return forward_of(gm)


def _held(gm: GraphModule) -> list[torch.Tensor]:
    """Return the tensors that a graph has for attributes, as those of an optimizer."""
    attributes = [attrgetter(node.target)(gm) for node in gm.graph.find_nodes(op="get_attr")]
    return list({id(x): x for x in attributes if isinstance(x, torch.Tensor)}.values())


def _with_drawn(gm: GraphModule, inputs: Sequence[Any], run: Flat) -> Flat:
    """Cast numbers that Dynamo draws from a generator of Python's for a call.

    They come in float64, where its trace has the default dtype.
    """
    from torch._dynamo.source import RandomValueSource

    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    drawn = [
        (i, value.dtype)
        for i, (node, value) in enumerate(zip(placeholders, inputs, strict=True))
        if isinstance(getattr(node, "_dynamo_source", None), RandomValueSource)
        and isinstance(value, torch.Tensor)
    ]
    if not drawn:
        return run

    def cast(*args: Any) -> Any:
        arguments = [*args]
        for i, dtype in drawn:
            arguments[i] = arguments[i].to(dtype)
        return run(*arguments)

    return cast


def _counting(gm: GraphModule, inputs: Sequence[Any], options: Options, run: Flat) -> Flat:
    """Count writes to arguments that share memory, as autograd wants to be told of them.

    AOTAutograd makes such arguments views of one that it makes, and writes to that. What it makes
    is for arguments that lie in their memory as these do, which Dynamo does not guard: torch runs
    the graph for others.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    memories = [memory_of(x) if _is_counted(x) else None for x in inputs]
    shared = {each for each, n in Counter(memories).items() if n > 1 and each is not None}
    written = {_written(node) for node in gm.graph.nodes if _is_write(node)}
    places = [
        i
        for i, (node, memory) in enumerate(zip(placeholders, memories, strict=True))
        if memory in shared and node in written
    ]
    if not places:
        return run
    sharing = [i for i, memory in enumerate(memories) if memory in shared]
    lying = [_lies(inputs[i]) for i in sharing]

    def counted(*args: Any) -> Any:
        if [_lies(args[i]) for i in sharing] != lying:
            count_left(options, "graph", "arguments share memory otherwise than at compile time")
            return gm.forward(*args)
        told = [args[i] for i in places if _is_counted(args[i])]
        before = [each._version for each in told]
        results = run(*args)
        for each, was in zip(told, before, strict=True):
            if each._version == was:
                torch.autograd.graph.increment_version(each)
        return results

    return counted


def _lies(value: torch.Tensor) -> tuple[object, int]:
    """Return where in its memory a tensor starts, and of how many bytes that is."""
    return value.storage_offset(), value.untyped_storage().nbytes()


def _is_counted(value: object) -> bool:
    """True for a tensor with memory, whose writes autograd counts."""
    if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, nn.Parameter):
        return False
    if value.layout is not torch.strided or value.is_inference():
        return False
    return not is_functorch_wrapped_tensor(value)


def _is_write(node: Node) -> bool:
    return node.op.startswith("call") and bool(node.args) and writes(node.target, node.kwargs)


def _may_write(node: Node) -> bool:
    """True for what writes by its name, of lists of tensors too: ``torch._foreach_mul_``."""
    if not node.op.startswith("call"):
        return False
    name = getattr(node.target, "__name__", str(node.target))
    return _is_write(node) or (name.endswith("_") and not name.endswith("__"))


def _written(node: Node) -> Node | None:
    """Return the argument whose memory a write is to, by what its operand is a view of."""
    value = operand = node.args[0]
    while isinstance(value, Node) and value.op.startswith("call") and value.args:
        value = value.args[0]
    if not isinstance(value, Node) or not isinstance(operand, Node):
        return None
    # First arguments lead through copies too, which lie elsewhere.
    here, there = (memory_of(each.meta.get("example_value")) for each in (operand, value))
    return value if here == there else None


def compile_around(
    gm: GraphModule, inputs: Sequence[Any], options: Options, compiled: Compile
) -> Flat | None:
    """Compile a graph that has tensors which no program has: around what takes or gives those.

    Args:
        gm: torch functions over placeholders.
        inputs: a value for each placeholder.
        options: of the plans.
        compiled: compiles a graph without such tensors, for values of its placeholders.

    Returns:
        What runs it; None where all tensors are plain, and gradients are recorded everywhere or
        nowhere.
    """
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    known = dict(zip(placeholders, inputs, strict=True))
    calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
    left = {node for node in calls if _is_peculiar(node, known)}
    if not torch.is_grad_enabled() and (recording := next(filter(_records, calls), None)):
        # What is compiled without gradients records none.
        count_left(options, "graph", "a part of it records gradients by enable_grad", recording)
        return forward_of(gm)
    if not left:
        return None
    first = next(node for node in calls if node in left)
    if any(getattr(n.target, "__name__", "") in GLOBAL_STATE for n in gm.graph.nodes):
        count_left(options, "graph", f"{PECULIAR}, and it sets autograd or autocast", first)
        return forward_of(gm)

    def run_of(part: Part) -> Flat:
        if part.is_left:
            return part.module.forward
        examples = [known.get(node, node.meta.get("example_value")) for node in part.inputs]
        return compiled(part.module, examples)

    return divided(gm, left, run_of, lambda part: note_region(options, PECULIAR, part))


def _is_peculiar(node: Node, known: Mapping[Node, Any]) -> bool:
    near = (node, *node.all_input_nodes)
    values = [n.meta.get("example_value") for n in near] + [known.get(n) for n in near]
    leaves = pytree.tree_leaves(values)
    return any(peculiar_argument(value, "cpu") is not None for value in leaves)


def _records(node: Node) -> bool:
    """True for a node whose result autograd knows the making of."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _compiled(
    gm: GraphModule, inputs: Sequence[Any], options: Options, fakes: Sequence[Any] | None
) -> tuple[Flat, bool]:
    """Return what runs a graph, and whether it may write to its inputs or record gradients."""
    keep_open = fakes is not None
    departing = next(filter(_departs, gm.graph.nodes), None)
    if departing is not None or has_unseen_cast(gm.graph.nodes):
        # It raises its error, or has its dtypes.
        count_left(options, "graph", "eager refuses a call of it, or has other dtypes", departing)
        return forward_of(gm), True
    if torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad for x in inputs
    ):
        if not keep_open:
            gm = stream_losses(gm)[0]
        return compile_through_aot(gm, fakes or inputs, options, keep_open=keep_open), True
    # What such a trace does to tensors that the graph holds, it does.
    is_pure = not (_held(gm) and any(map(_may_write, gm.graph.nodes)))
    traced = pre_dispatch(gm, _fakes(gm, inputs) if fakes is None else fakes) if is_pure else None
    if traced is None or returns_inputs(traced):
        return compile_through_aot(gm, fakes or inputs, options, keep_open=keep_open), True
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    held = {
        i: (source_name(getattr(node, "_dynamo_source", node.name)), value)
        for i, (node, value) in enumerate(zip(placeholders, inputs, strict=True))
        if isinstance(value, nn.Parameter) and value.is_contiguous()
    }
    counters["forward"] += 1
    refused: set[Node] = set()
    try:
        with untouched_by_errors(traced):
            program = flat_program(traced, held, "dynamo", keep_open=keep_open, refused=refused)
    except IrcError as error:
        if keep_open or not refused:
            raise
        own = [node for node in traced.graph.nodes if node.op == "placeholder"]
        names = {own[i]: held[i] for i in held}
        return by_parts(traced, refused, error, options, names), False
    return runner_of(program, options), False


def _departs(node: Node) -> bool:
    """True for a call that eager refuses, or gives in other dtypes than the trace has."""
    if not node.op.startswith("call"):
        return False
    call, traced = (node.target, node.args, node.kwargs), node.meta.get("example_value")
    return refused(*call) is not None or of_other_dtype(*call, traced) is not traced


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
