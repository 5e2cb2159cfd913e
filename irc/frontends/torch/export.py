"""torch.export, and what of it irc needs: a functional graph in ops that the table knows."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, TypeAlias, cast

import torch
from torch import nn
from torch._higher_order_ops.effects import (
    has_effects,  # pyright: ignore[reportUnknownVariableType]
)
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree

from irc.errors import IrcError, did_you_mean
from irc.frontends.torch.assumed_rows import without_skips
from irc.frontends.torch.detached_writes import keep_detached
from irc.frontends.torch.eager_refusals import as_eager_takes, is_known
from irc.frontends.torch.examples import bound
from irc.frontends.torch.expert_loops import merge_loops
from irc.frontends.torch.experts import whole_experts
from irc.frontends.torch.failures import depends_on_values
from irc.frontends.torch.flex import plain_flex_attention
from irc.frontends.torch.forward_mode import watched_forward_modes
from irc.frontends.torch.fresh_writes import renew, resized_in_order
from irc.frontends.torch.inner_gradients import is_about_gradients, taken_apart
from irc.frontends.torch.kinked_decompositions import kinked
from irc.frontends.torch.locations import location, user_frames
from irc.frontends.torch.own_backward import is_differentiated
from irc.frontends.torch.own_containers import containers_as_they_are, own_containers
from irc.frontends.torch.own_decompositions import OWN
from irc.frontends.torch.own_thread import own_thread
from irc.frontends.torch.repeat import expand, is_mark, stubbed
from irc.frontends.torch.stale_values import refuse_stale
from irc.frontends.torch.strided_writes import copy_into_strided
from irc.frontends.torch.table import row_of
from irc.frontends.torch.unfold_writes import unfold_by_slices
from irc.frontends.torch.unrecorded import unrecorded
from irc.frontends.torch.wrapped import cast_inside, inline, mark_autocast, turn_gradients_off

_EXPORT: Any = torch.export
"""Its decompositions have no types."""
_OP: Any = torch._ops.OpOverload
"""Of type Any: what an op returns would be unknown else."""

NEEDS_STATISTICS = ("aten::batch_norm", "aten::instance_norm")
"""Ops that move their running statistics, though their schema does not say so."""


FUNCTORCH = ("torch._functorch", "torch._C._functorch")
"""Where what transforms functions is defined."""


def as_module(target: nn.Module | Callable[..., Any]) -> nn.Module:
    """Return a module that calls ``target``."""
    if isinstance(target, nn.Module):
        return target
    module = nn.Module()
    # An attribute of the instance, not a method, so that torch reads the names of the function's
    # own arguments.
    module.forward = target if _has_signature(target) else _spoken_for(target)
    return module


def _has_signature(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function)
    except ValueError:  # a function of C, such as torch.erf
        return False
    return True


def _spoken_for(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def export(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    look: Callable[[ExportedProgram], object] = lambda _: None,
    whole: Collection[torch._ops.OpOverload] = (),
) -> ExportedProgram:
    """Trace a module once, and make the graph functional where it is not.

    ``look`` is called with the trace as it was, with its writes; ``whole`` are not taken apart.

    The graph that torch.export gives keeps attention, linear, norms and the like whole, and the
    table has rows for them. Tracing it again, to make it functional or to decompose it, doubles the
    time, so that happens only where an op writes to its operands or has no row but a decomposition.
    """
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        user_frames(),
        whole_experts(module),
        plain_flex_attention(),
        unrecorded(),
        watched_forward_modes(),
    ):
        warnings.simplefilter("ignore")
        source = module
        program, module, repeated = _traced(source, args, kwargs, dynamic_shapes, bool(whole))
        if transforms(program.graph_module):
            raise IrcError(
                "capture-failed",
                "torch.export keeps transforms of functions (vmap, grad, jvp) as they are",
                help='compile it with irc.compile or torch.compile(backend="irc"), which take them'
                " apart, or write them out",
            )
        look(program)
        if is_differentiated():
            with containers_as_they_are(source), own_thread():
                refuse_stale(program.graph_module, source, args, kwargs)
        if repeated:
            inline(program.graph_module, is_mark)
        settle(program.graph_module)
        if not repeated:
            merge_loops(program)
        renew(program.graph)
        unfold_by_slices(program.graph)
        copy_into_strided(program.graph)
        if repeated:
            expand(program, module)
            merge_loops(program)
        keep_detached(program.graph_module)
        if all(is_plain(node.target, node.args) for node in _calls(program.graph_module)):
            if torch.is_autocast_enabled("cpu"):
                mark_autocast(program.graph)  # no function, since it was on before
            return program
        if repeated:
            program, _ = _exported(module, args, kwargs, dynamic_shapes)
            look(program)
            settle(program.graph_module)
            unfold_by_slices(program.graph)
            copy_into_strided(program.graph)
            merge_loops(program)
            keep_detached(program.graph_module)
        if (resized := resized_in_order(program.graph)) is not None:
            raise IrcError(
                "capture-failed",
                "a tensor is resized in place to a memory format, while others may read it",
                location(resized),
                help="resize a clone, or use .to(memory_format=...)",
            )
        cast_inside(program.graph_module, lambda node: is_plain(node.target, node.args))
        table = decompositions(whole)
        return program.run_decompositions(table)  # pyright: ignore[reportUnknownMemberType]


def _traced(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    is_whole: bool,
) -> tuple[ExportedProgram, nn.Module, bool]:
    """Return a trace, the module that it is of, and whether layers are stubs.

    What takes gradients inside is another module then, unless a call has another way to be run.
    """
    try:
        program, repeated = _exported(module, args, kwargs, dynamic_shapes, stubbed)
        if not transforms(program.graph_module) or is_whole or dynamic_shapes is not None:
            return program, module, repeated
    except Exception as error:
        if is_whole or dynamic_shapes is not None or not is_about_gradients(error):
            raise
    with own_containers(module), own_thread():
        module = taken_apart(module, args, kwargs)
    program, _ = _exported(module, args, kwargs, None)
    return program, module, False


def _exported(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    around: Callable[[nn.Module], AbstractContextManager[bool]] = lambda _: nullcontext(False),
) -> tuple[ExportedProgram, bool]:
    """Return a trace, and what is entered around it."""
    entered = False

    def traced() -> ExportedProgram:
        nonlocal entered
        with around(module) as entered:
            program = torch.export.export(
                module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
        note_users(program.graph)
        turn_gradients_off(program.graph_module)
        return program

    with own_containers(module), own_thread():
        try:
            return traced(), entered
        except Exception as error:
            program = without_skips(traced) if depends_on_values(error) else None
            if program is None:
                raise
            return program, entered


def note_users(graph: Graph) -> None:
    """Let nodes know all their users: torch.export forgets some.

    Where it writes out what was traced with gradients off, the node that is a result there loses
    the users that it has among the others. What replaces a node asks for its users.
    """
    for node in graph.nodes:
        for operand in node.all_input_nodes:
            operand.users.setdefault(node)


def transforms(module: GraphModule) -> bool:
    """True for a graph that transforms functions (vmap, grad, jvp) and has not been taken apart."""
    return any(
        str(getattr(node.target, "__module__", "")).startswith(FUNCTORCH) for node in _calls(module)
    )


def _calls(module: GraphModule) -> Iterator[torch.fx.Node]:
    for child in module.modules():
        if isinstance(child, GraphModule):
            yield from (node for node in child.graph.nodes if node.op == "call_function")


def settle(module: GraphModule) -> None:
    """Drop in-place detaches, which change no values (torch.tensor in traced code makes them).

    And dropout that is off: it returns its operand itself, so that what writes to one writes to the
    other; to decompose it, torch takes it for a copy.
    """
    for node in list(_calls(module)):
        off = node.target is torch.ops.aten.dropout.default and node.args[2] is False
        if off or node.target is torch.ops.aten.detach_.default:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]  # it is a tensor's node
            node.graph.erase_node(node)


def is_plain(target: Any, args: tuple[Any, ...]) -> bool:
    """True for a call that the table or a library takes as it is: nothing but a value."""
    if not isinstance(target, _OP):
        return True
    if target._schema.is_mutable or has_effects(target) or _moves_statistics(target, args):
        return False
    return row_of(target) is not None or not _decomposes(target)


def _moves_statistics(target: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
    return target._schema.name in NEEDS_STATISTICS and args[3] is not None and bool(args[5])


@cache
def _decomposes(target: torch._ops.OpOverload) -> bool:
    name = target._schema.name
    if not name.startswith("aten::") or name.startswith("aten::_assert"):
        return False
    return target._can_decompose() or target in torch._decomp.core_aten_decompositions()  # type: ignore[attr-defined]  # not in stubs


LOOKING = frozenset({torch.ops.aten.binary_cross_entropy.default})
"""Ops whose kernels refuse some numbers: taken apart, they would answer.

A program for several devices has them in parts that can be sharded all the same.
"""


def decompositions(
    whole: Collection[torch._ops.OpOverload] = (),
) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """Return how to take apart the ops that have no row and are not to stay ``whole``."""
    return {
        op: function
        for op, function in every_decomposition().items()
        if op not in whole and not (isinstance(op, _OP) and _stays(op))
    }


def _stays(op: Any) -> bool:
    return op._schema.name not in NEEDS_STATISTICS and row_of(op) is not None


def every_decomposition() -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
    """Return ways to take ops apart: torch's, of ops that libraries add too, and irc's own."""
    return _listed(len(torch._C._dispatch_get_all_op_names()))


@cache
def _listed(_registered: int) -> Mapping[torch._ops.OperatorBase, Callable[..., Any]]:
    # To go through all ops takes 60 to 200 ms: once, and again when an op was added.
    every: dict[Any, Callable[..., Any]] = _EXPORT.default_decompositions().materialize()
    every = {**every, **kinked(every), **OWN}
    return {
        op: as_eager_takes(op, how) if isinstance(op, _OP) and is_known(op) else how
        for op, how in every.items()
    }


def shape_specs(
    forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[Any, list[Any]]:
    """Return dynamic shapes as torch.export takes them, and per leaf of the arguments.

    Args:
        forward: what takes the arguments, for their names.
        args: positional arguments.
        kwargs: keyword arguments.
        dynamic_shapes: None, or per argument name what its dims are: names, ``torch.export.Dim``,
            None.

    Raises:
        IrcError: ``option-value`` for an argument or a dim that there is not.
    """
    if dynamic_shapes is None:
        return None, [None] * len(pytree.tree_leaves((args, kwargs)))
    dims: dict[str, Any] = {}

    def dim(spec: Any) -> Any:
        return dims.setdefault(spec, Dim(spec)) if isinstance(spec, str) else spec

    shapes: Mapping[str, Any] | Sequence[Any] = pytree.tree_map(dim, dynamic_shapes)
    if isinstance(shapes, Mapping):
        bound_arguments = bound(forward, args, kwargs)
        variable = next(
            (
                p.name
                for p in bound_arguments.signature.parameters.values()
                if p.kind is p.VAR_KEYWORD
            ),
            "",
        )
        extra = {name: shapes.get(name) for name in bound_arguments.arguments.get(variable, {})}
        if not variable:
            _check_names(shapes, list(bound_arguments.signature.parameters))
        spec = {
            name: extra if name == variable else shapes.get(name)
            for name in bound_arguments.arguments
        }
        per_argument = {**{k: v for k, v in spec.items() if k != variable}, **extra}
    else:
        spec = shapes
        if len(shapes) != len(args) + len(kwargs):
            raise _no_dynamic(f"{len(shapes)} arguments", f"the call has {len(args) + len(kwargs)}")
        per_argument = dict(zip([*range(len(args)), *kwargs], shapes, strict=True))
    leaves: list[Any] = []
    for value, one in zip((*args, *kwargs.values()), per_argument.values(), strict=True):
        leaves += _per_leaf(value, one)
    return spec, leaves


Dims: TypeAlias = Mapping[Any, Any] | Sequence[Any] | None
"""What a user says of the dims of an argument, or of the arguments in it."""

WRITE = 'write dynamic={"x": {0: "batch"}} for dim 0 of an input x'


def _no_dynamic(what: str, because: str, instead: str = WRITE) -> IrcError:
    what = f"dynamic says something of {what}"
    return IrcError("option-value", what, because=because, help=instead)


def _check_names(dynamic_shapes: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in dynamic_shapes:
        if name not in names:
            because = f"what is compiled takes {', '.join(names)}"
            raise _no_dynamic(f"'{name}'", because, did_you_mean(str(name), names))


def _check_dims(value: torch.Tensor, spec: Dims) -> None:
    """Refuse dims that a tensor does not have."""
    has = f"the tensor has {value.dim()} dims"
    if isinstance(spec, Mapping):
        for dim in spec:
            if not isinstance(dim, int) or not 0 <= dim < value.dim():
                raise _no_dynamic(f"dim {dim!r}", has)
    elif isinstance(spec, Sequence) and len(spec) != value.dim():
        raise _no_dynamic(f"{len(spec)} dims", has)


def _per_leaf(value: Any, spec: Dims) -> list[Any]:
    if isinstance(value, torch.Tensor):
        _check_dims(value, spec)
        return [spec]
    children = pytree.tree_leaves(value, is_leaf=lambda x: x is not value)
    if len(children) == 1 and children[0] is value:
        return [None]
    parts: Sequence[Any]
    if isinstance(spec, Mapping):
        parts = (
            [spec.get(key) for key in cast("Mapping[Any, Any]", value)]
            if isinstance(value, Mapping)
            else [*spec.values()]
        )
    else:
        parts = [None] * len(children) if spec is None else [*spec]
    return [
        leaf for child, part in zip(children, parts, strict=True) for leaf in _per_leaf(child, part)
    ]
