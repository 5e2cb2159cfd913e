"""Gradients of gradients, and of graphs that are kept.

AOTAutograd compiles first derivatives alone. Where they are asked for with ``create_graph=True``,
the graph is run again, by torch, and differentiated; a graph that draws random numbers or writes
into its inputs would be another then, and is refused, as is one of which that is not known.

A graph that is kept with ``retain_graph=True`` is gone back through as often as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch.fx import GraphModule, Node

from irc.errors import IrcError
from irc.runtime.once import once
from irc.torch_backend.compiled import Flat
from irc.torch_backend.counts import counters

HELD = "_irc_inputs"
"""Where the node of a call has its inputs, and the versions that they had, until it is let go."""

WHAT = (
    "gradients of a compiled function are differentiated, which draws random numbers, writes into "
    "its arguments, returns views of them or of each other, or runs under autocast"
)
WHY = "torch would run it again for that, and it might not be the same"
ADVICE = "call it uncompiled where gradients have gradients: irc.original(function)"


def is_random_or_cast(graph: GraphModule) -> bool:
    """Return whether a graph draws random numbers, or runs under autocast.

    Args:
        graph: of a forward pass, as AOTAutograd gives it, while it is compiled.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return True
    return any(map(_draws, graph.graph.nodes))


def _is_repeatable(metadata: Any) -> bool:
    """Return whether a graph gives the same again, and one result for each of the caller's.

    Args:
        metadata: what AOTAutograd knows of a forward pass.
    """
    if metadata.tokens or metadata.num_intermediate_bases:
        return False
    if any(each.mutates_data or each.mutates_metadata for each in metadata.input_info):
        return False
    return all(each.output_type.name == "non_alias" for each in metadata.output_info)


def _draws(node: Node) -> bool:
    """Return whether a node draws random numbers, or calls an op that does, to have them again."""
    called = (node.target, *node.args)
    return any(torch.Tag.nondeterministic_seeded in getattr(each, "tags", ()) for each in called)


def differentiable(run: Flat, graph: GraphModule, repeats: Callable[[], bool]) -> Flat:
    """Return what runs a graph, whose gradients have gradients.

    Args:
        run: runs it, with autograd's node of AOTAutograd.
        graph: of torch's functions, as torch runs it.
        repeats: says whether it gives the same again where it writes nothing.
    """
    is_told = False

    def told(*args: Any) -> Any:
        nonlocal is_told
        results = run(*args)
        for each in results:
            node = getattr(each, "grad_fn", None)
            if _is_of_graph(node) and not any(_made(arg) is node for arg in args):
                if not is_told:
                    is_told = True
                    _tell(node._forward_cls, graph, repeats())
                setattr(node, HELD, (args, [*map(_version, args)]))
                break
        return results

    return told


def _made(arg: Any) -> object:
    """Return autograd's node that has made an argument; a result that is it has the same."""
    return arg.grad_fn if isinstance(arg, torch.Tensor) else None


def _is_of_graph(node: Any) -> TypeGuard[Any]:
    """True for autograd's node of a graph, this one or another."""
    function = getattr(node, "_forward_cls", None)
    return isinstance(getattr(function, "metadata", None), ViewAndMutationMeta)


def _tell(function: Any, graph: GraphModule, repeats: bool) -> None:
    """Let autograd's function of a graph know how it is differentiated twice."""
    plain = function.backward

    def backward(ctx: Any, *result_gradients: Any) -> Any:
        inputs, versions = getattr(ctx, HELD, ((), ()))
        if not torch.is_grad_enabled():
            keeps = torch._C._autograd._get_current_graph_task_keep_graph  # type: ignore[attr-defined]
            if not keeps():
                ctx.__dict__.pop(HELD, None)
            return plain(ctx, *result_gradients)
        if repeats and len(inputs) == len(ctx.needs_input_grad):
            # This version of torch gives them in a list, for functions that ask for that.
            boxed = getattr(function, "boxed_grads_call", False)
            _ = ctx.saved_tensors  # torch's error where they were written to, or are gone
            _check_versions(inputs, versions)
            return _by_torch(ctx, graph, inputs, result_gradients[0] if boxed else result_gradients)
        return tuple(once(plain(ctx, *result_gradients), WHAT, WHY, ADVICE, near=inputs))

    repeats = repeats and _is_repeatable(function.metadata)
    # Plans write into no argument: torch need not refuse to keep what a backward pass reads.
    function.metadata.bw_donated_idxs = []
    function.backward = staticmethod(backward)


def _version(value: Any) -> int | None:
    """Return how often a tensor was written to; None of what does not know."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return None
    return value._version


def _check_versions(inputs: Sequence[Any], versions: Sequence[int | None]) -> None:
    """Refuse to run a graph again on inputs that were written to since.

    Eager needs what it saved alone, which may be the values before: they are gone here.

    Raises:
        IrcError: ``not-differentiable``.
    """
    if any(_version(x) != before for x, before in zip(inputs, versions, strict=True)):
        raise IrcError(
            "not-differentiable",
            "gradients of a compiled function are differentiated, of which an argument or a "
            "parameter has been modified by an inplace operation since the call",
            because=WHY,
            help=f"write to it behind that, or to a copy; or {ADVICE}",
        )


def _by_torch(
    ctx: Any, graph: GraphModule, inputs: Sequence[Any], result_gradients: Sequence[Any]
) -> Any:
    counters["backward run by torch"] += 1
    with torch.enable_grad():
        results = graph.forward(*inputs)
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, result_gradients, strict=True)
            if isinstance(result, torch.Tensor) and result.requires_grad and gradient is not None
        ]
        wanted = [i for i, needs in enumerate(ctx.needs_input_grad) if needs]
        gradients: list[torch.Tensor | None] = [None] * len(inputs)
        if pairs and wanted:
            every = torch.autograd.grad(
                [result for result, _ in pairs],
                [inputs[i] for i in wanted],
                [gradient for _, gradient in pairs],
                create_graph=True,
                allow_unused=True,
            )
            for i, each in zip(wanted, every, strict=True):
                gradients[i] = each
    return tuple(gradients)
