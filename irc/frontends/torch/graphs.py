"""Graphs that other parts of torch give (Dynamo, AOTAutograd) as programs over flat tensors."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from irc.frontends.torch.assemble import Argument, Assembly, Result, assemble
from irc.frontends.torch.export import is_plain, settle, transforms
from irc.frontends.torch.fresh_writes import renew
from irc.frontends.torch.idle_dropout import drop_idle
from irc.frontends.torch.open_sizes import NumberedSizes, OpenSizes, open_sizes
from irc.frontends.torch.result_memory import Lies, placed, return_too
from irc.frontends.torch.sizes import SizeNames
from irc.frontends.torch.tensor_memory import memory_of_node

AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
"""Calls between which torch casts operands by itself: AOTAutograd writes the casts out."""


@dataclass(frozen=True)
class FlatProgram:
    """A program whose inputs and results are those of a graph, by position.

    Attributes:
        assembly: the program.
        inputs: positions of the graph's arguments that are inputs of the program, in its order.
        held: positions of those that are its parameters, by name.
        open: the sizes that the graph leaves open, if it was to keep them; the assembly is then the
            one for the sizes that the graph was traced with.
        symbolic: positions of the arguments that :attr:`open` reads sizes from: its inputs.
        results: per output of the graph where it comes from: ``("result", i)`` of the program,
            ``("view", (i, view))`` of one's memory, ``("argument", i)`` of the call itself,
            ``("argument view", (i, view))`` of its memory, ``("constant", value)``.
    """

    assembly: Assembly
    inputs: tuple[int, ...]
    held: Mapping[str, int]
    results: tuple[tuple[str, Any], ...]
    open: OpenSizes | None = None
    symbolic: tuple[int, ...] = ()


def flat_program(
    module: GraphModule,
    held: Mapping[int, tuple[str, torch.Tensor]],
    source: str,
    *,
    visible: int | None = None,
    keep_open: bool = False,
    outline: bool = True,
    refused: set[Node] | None = None,
) -> FlatProgram:
    """Translate a functional ATen graph of tensors; its output node may change.

    Args:
        module: the graph; every placeholder has a fake tensor as its meta data.
        held: positions of the arguments that are parameters: name and value.
        source: what the graph is, for reports.
        visible: so many outputs, by default all, lie in memory as those of the graph.
        keep_open: give the program for the sizes of the trace, and the way to those for others.
        outline: make functions of repeated layers, whose arguments and results are contiguous.
        refused: takes the nodes that cannot be translated, where an error is raised for them.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    arguments: dict[Node, Argument] = {}
    for index, node in enumerate(placeholders):
        if not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if is_token(node):
            arguments[node] = Argument("constant", node.name, torch.empty(0))
        elif index in held:
            name, value = held[index]
            arguments[node] = Argument("parameter", name, value.detach())
        elif node.users:
            arguments[node] = Argument("input", _input_name(node, index))
    flat, _ = torch.utils._pytree.tree_flatten(_output(module.graph).args[0])
    results, computed = _results(flat, placeholders)
    results, computed = _as_in_eager(results, computed, visible)
    named = [(node, Result("output", f"output{i}")) for i, node in enumerate(computed)]

    def assembled(names: SizeNames) -> Assembly:
        return assemble(
            module, arguments, named, names, source=source, outline=outline, refused=refused
        )

    symbolic: tuple[int, ...] = ()
    opened_sizes = None
    if keep_open:
        symbolic = tuple(i for i, node in enumerate(placeholders) if _gives_sizes(node))
        named_inputs = [(_input_name(n, i), n.meta["val"]) for i, n in enumerate(placeholders)
                 if i in symbolic]  # fmt: skip
        opened_sizes = open_sizes(
            module, named_inputs, lambda values: assembled(NumberedSizes(values)).program
        )
        names: SizeNames = NumberedSizes(
            opened_sizes.whole(opened_sizes.read(_hints(named_inputs)))
        )
    else:
        names = SizeNames({})
    assembly = assembled(names)
    used = {a.name for a in arguments.values()}
    return FlatProgram(
        assembly,
        tuple(
            i
            for i, node in enumerate(placeholders)
            if node in arguments and arguments[node].role == "input"
        ),
        {name: index for index, (name, _) in held.items() if name in used},
        results,
        opened_sizes,
        symbolic,
    )


def _gives_sizes(node: Node) -> bool:
    """True for a placeholder with a size that is open, or that is such a number itself."""
    value = node.meta.get("val")
    sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(size, torch.SymInt) for size in sizes)


def _hints(named_inputs: Sequence[tuple[str, Any]]) -> list[tuple[int, ...]]:
    """Return the sizes with which a graph was traced."""
    values = [v.shape if isinstance(v, torch.Tensor) else (v,) for _, v in named_inputs]
    return [tuple(s if isinstance(s, int) else s.node.hint for s in sizes) for sizes in values]


def is_token(node: Node) -> bool:
    """True for a placeholder that orders ops with effects: what is given for it means nothing."""
    return any(user.target is with_effects and user.args[0] is node for user in node.users)


def _results(
    flat: Sequence[Any], placeholders: Sequence[Node]
) -> tuple[tuple[tuple[str, Any], ...], list[Node]]:
    computed: list[Node] = []
    results: list[tuple[str, Any]] = []
    for value in flat:
        if not isinstance(value, Node):
            results.append(("constant", value))
        elif value in placeholders:
            results.append(("argument", placeholders.index(value)))
        elif not isinstance(value.meta.get("val"), torch.Tensor):
            results.append(("constant", value.meta.get("val")))
        else:
            if value not in computed:
                computed.append(value)
            results.append(("result", computed.index(value)))
    return tuple(results), computed


def _as_in_eager(
    results: tuple[tuple[str, Any], ...], computed: list[Node], visible: int | None
) -> tuple[tuple[tuple[str, Any], ...], list[Node]]:
    """Let results lie in memory as the graph's (:mod:`irc.frontends.torch.result_memory`).

    Dynamo has told callers of strides, and they may write to an output of which another is a view.

    Returns:
        the results, and the nodes that the program is to compute for them.
    """
    seen = [value for kind, value in results[:visible] if kind == "result"]
    shown = [computed[position] for position in dict.fromkeys(seen)]
    places = dict(zip(shown, placed(shown), strict=True))
    laid: list[tuple[str, Any]] = []
    for kind, value in results:
        if kind != "result":
            laid.append((kind, value))
            continue
        node = computed[value]
        place = places.get(node, Lies(node))
        laid.append(("result", place.source) if place.view is None
                    else ("view", (place.source, place.view)))  # fmt: skip
    wanted = [v if kind == "result" else v[0] for kind, v in laid if kind in ("result", "view")]
    order = {node: i for i, node in enumerate(dict.fromkeys(wanted)) if node.op != "placeholder"}
    order = {node: i for i, node in enumerate(order)}
    return_too([*order], computed)
    return tuple(_numbered(kind, value, order) for kind, value in laid), list(order)


def _numbered(kind: str, value: Any, order: Mapping[Node, int]) -> tuple[str, Any]:
    if kind == "result":
        return kind, order[value]
    if kind != "view":
        return kind, value
    node, view = value
    if node.op != "placeholder":
        return kind, (order[node], view)
    placeholders = [each for each in node.graph.nodes if each.op == "placeholder"]
    return "argument view", (placeholders.index(node), view)


def _share_memory(graph: Graph) -> bool:
    """True where two outputs lie in one memory: which value is its last one, renewing forgets."""
    flat, _ = torch.utils._pytree.tree_flatten(_output(graph).args[0])
    places = Counter(memory_of_node(node) for node in dict.fromkeys(flat) if isinstance(node, Node))
    return any(times > 1 for storage, times in places.items() if storage is not None)


def _output(graph: Graph) -> Node:
    (output,) = (node for node in graph.nodes if node.op == "output")
    return output


def returns_inputs(module: GraphModule) -> bool:
    """True for a graph of which an output is a view of an input: a write to one changes both."""
    own = {memory_of_node(node) for node in module.graph.nodes if node.op == "placeholder"} - {None}
    flat, _ = torch.utils._pytree.tree_flatten(_output(module.graph).args[0])
    outputs = [node for node in flat if isinstance(node, Node) and node.op != "placeholder"]
    return any(memory_of_node(node) in own for node in outputs)


def _input_name(node: Node, index: int) -> str:
    source = getattr(node, "_dynamo_source", None)
    return f"{source_name(source) if source is not None else node.name}.{index}"


def source_name(source: Any) -> str:
    """Return the dotted name of what Dynamo reads an input from.

    >>> source_name("L['self']._modules['layers']._modules['0']._parameters['weight']")
    'layers.0.weight'
    """
    text = source if isinstance(source, str) else str(getattr(source, "name", source))
    if callable(getattr(source, "name", None)) and not isinstance(source, str):
        text = source.name()
    parts = re.findall(r"\['([^']*)'\]|\.([A-Za-z]\w*)", text)
    named = [a or b for a, b in parts if (a or b) not in ("self", "modules")]
    return ".".join(named) or re.sub(r"\W+", "_", text) or "input"


def pre_dispatch(module: GraphModule, fakes: Sequence[torch.Tensor]) -> GraphModule | None:
    """Trace a graph of torch functions to whole ATen ops; None where AOTAutograd has to do it.

    That is where it writes to operands, runs graphs of its own (control flow, checkpoints) or
    transforms functions (vmap, grad).

    The result is what torch.export gives: attention, linear and norms stay whole.
    """
    if transforms(module):
        return None

    drop_idle(module)

    def run(*tensors: torch.Tensor) -> Any:
        with preserve_node_meta():
            return Interpreter(module).run(*tensors)

    mode = (
        next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
        or FakeTensorMode()
    )
    # In the mode, so that what the graph makes by itself (arange) is fake too; numbers that it
    # writes into tensors are not.
    with (
        warnings.catch_warnings(),
        torch.no_grad(),
        mode,
        mock.patch.object(mode, "allow_non_fake_inputs", True),
    ):
        warnings.simplefilter("ignore")
        try:
            traced = make_fx(run, pre_dispatch=True, _error_on_data_dependent_ops=True)(*fakes)
        except Exception:
            return None
    settle(traced)
    if renew(traced.graph) and _share_memory(traced.graph):
        return None
    calls = [node for node in traced.graph.nodes if node.op == "call_function"]
    for node in calls:
        if node.target is torch._C._set_grad_enabled:
            traced.graph.erase_node(node)
        elif node.target in AUTOCAST or not is_plain(node.target, node.args) or _runs_graphs(node):
            return None
    return traced


def _runs_graphs(node: Node) -> bool:
    """True for control flow: what runs graphs, or writes to what they are given."""
    target = node.target
    return isinstance(target, torch._ops.HigherOrderOperator) and target is not with_effects
