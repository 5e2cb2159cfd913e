"""Loops over experts become one op each, so that experts can be planned, sharded and exported.

Such a loop takes the rows that chose an expert, computes them, and adds them to a result::

    for number, expert in enumerate(self.experts):
        rows, slot = torch.where(index == number)
        out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])

No graph has the sizes of its values. What it means has: it is ``irc::experts`` of the stacked
matrices (`irc.ops.experts`). A traced graph is searched for chains of such additions (`Chain`), and
each is replaced where every part of it is understood (`irc.frontends.torch.expert_rows`).

A bias of the first product is one more column of its matrix, which meets a column of ones; biases
of the last product are a product of their own, with the weight that each token gives each expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from irc.frontends.torch.expert_layer import Build, Member, combined
from irc.frontends.torch.expert_memory import activates_shared, is_seen
from irc.frontends.torch.expert_rows import Reader, aten, numbers, same

ZEROS = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
EMPTY = frozenset({aten.empty_like.default, aten.new_empty.default, aten.empty.memory_format})
SELECTIONS = frozenset({aten.where.default, aten.nonzero.default, aten.nonzero_numpy.default})
ADDING = frozenset({aten.index_add.default, aten.index_add_.default})
PUTTING = frozenset({aten.index_put.default, aten.index_put_.default})
IN_PLACE = frozenset({aten.index_add_.default, aten.index_put_.default})
SUMS = frozenset({aten.add.Tensor, aten.add_.Tensor})


@dataclass(frozen=True)
class Addition:
    """One expert's rows on their way into the result.

    Attributes:
        node: the op that gives the new result.
        before: the result so far.
        indices: of the rows.
        value: the rows.
        helpers: the sum and the rows so far of ``out[rows] += value``.
        sets: rows are set, not added to.
        once: no row may be there twice, since it would count once.
    """

    node: Node
    before: Node
    indices: list[Any]
    value: Node
    helpers: tuple[Node, ...] = ()
    sets: bool = False
    once: bool = False


@dataclass(frozen=True)
class Chain:
    """Additions to one result, each to what the one before gives."""

    additions: tuple[Addition, ...]

    @property
    def start(self) -> Node:
        """The result before the first."""
        return self.additions[0].before

    @property
    def end(self) -> Node:
        """The result after the last."""
        return self.additions[-1].node


def selects(graph: Graph) -> bool:
    """Return whether a graph has values whose sizes depend on a mask."""
    return any(node.target in SELECTIONS or _by_mask(node) for node in graph.nodes)


def is_of_loop(node: Node) -> bool:
    """Return whether a node selects rows in a graph that adds rows to a result more than once."""
    is_selection = node.target in SELECTIONS or _by_mask(node)
    return is_selection and any(len(chain.additions) > 1 for chain in chains(node.graph))


def _by_mask(node: Node) -> bool:
    if node.target is not aten.index.Tensor:
        return False
    return any(i is not None and i.meta["val"].dtype == torch.bool for i in node.args[1])  # type: ignore[union-attr]  # a list of nodes


def merge_loops(program: ExportedProgram) -> None:
    """Replace the loops over experts of a traced program."""
    if selects(program.graph):
        module: Any = program.graph_module
        with module._set_replace_hook(program.graph_signature.get_replace_hook()):
            merge(program.graph)
        module.recompile()


def merge(graph: Graph, only_none: bool = False) -> int:
    """Replace the loops over experts of a graph, and return how many there were.

    Args:
        graph: as torch.export gives it.
        only_none: leave out what the loops add, as if no token chose an expert.
    """
    merged = 0
    for ends in [[addition.node for addition in chain.additions] for chain in chains(graph)]:
        # What a loop reads may be what one before gave, in whose place another value is by now.
        chain = Chain(tuple(a for end in ends if (a := addition_of(end)) is not None))
        reader = Reader()
        members = _members(chain, reader)
        if members is None or _written_between(graph, chain, reader):
            continue
        if _is_shared(graph, chain) or activates_shared(reader.read):
            continue
        build = Build(graph, chain.end)
        replacement = chain.start if only_none else combined(build, members, *_result(chain, build))
        if replacement is None:
            continue
        chain.end.replace_all_uses_with(replacement, propagate_meta=False)
        _erase(graph, reader.read)
        merged += 1
    return merged


def chains(graph: Graph) -> list[Chain]:
    """Return the chains of a graph, each as long as it can be."""
    additions = [a for node in graph.nodes if (a := addition_of(node)) is not None]
    ending: dict[Node, list[Addition]] = {}
    for addition in additions:
        before = ending.pop(addition.before, None) if _only_in(addition) else None
        ending[addition.node] = [*(before or ()), addition]
    return [Chain(tuple(parts)) for parts in ending.values()]


def _only_in(addition: Addition) -> bool:
    """Return whether the result so far is read by an addition alone."""
    read = set(addition.before.users) - {addition.node}
    return read <= set(addition.helpers)


def addition_of(node: Node) -> Addition | None:
    """Return what an op adds to rows of a result; None where it is another op."""
    if node.target in ADDING and node.args[1] == 0 and not node.kwargs.get("alpha"):
        before, _, rows, value = node.args
        return Addition(node, before, [rows], value)  # type: ignore[arg-type]  # nodes
    if node.target not in PUTTING or node.kwargs:
        return None
    before, indices, value, adds = (*node.args, False)[:4]
    if adds:
        return Addition(node, before, indices, value)  # type: ignore[arg-type]  # nodes
    summed = _added_to(before, indices, value)
    if summed is not None:
        addend, *helpers = summed
        return Addition(node, before, indices, addend, tuple(helpers), once=True)  # type: ignore[arg-type]
    return Addition(node, before, indices, value, sets=True, once=True)  # type: ignore[arg-type]


def _added_to(before: Any, indices: Any, value: Any) -> tuple[Node, Node, Node] | None:
    """Return what ``out[rows] += value`` adds, the sum, and the rows so far."""
    if not isinstance(value, Node) or value.target not in SUMS or value.kwargs:
        return None
    for own, other in (value.args, value.args[::-1]):
        is_part = isinstance(own, Node) and own.target is aten.index.Tensor
        if is_part and own.args[0] is before and same(own.args[1], indices):  # type: ignore[union-attr]  # a node
            return other, value, own  # type: ignore[return-value]  # nodes
    return None


def _members(chain: Chain, reader: Reader) -> list[Member] | None:
    """Return what each addition of a chain computes; None where one of them is something else."""
    members: list[Member] = []
    for addition in chain.additions:
        chosen = reader.chosen(list(addition.indices))
        scaled = reader.scaled(addition.value)
        if chosen is None or scaled is None:
            return None
        mask, tokens = chosen
        expert = reader.expert(scaled[0])
        if expert is None or not same(expert.rows.mask, mask) or expert.rows.dims != tokens:
            return None
        if not all(same(weight.mask, mask) for weight in scaled[1]):
            return None
        if len(numbers(mask) or ()) - len(tokens) not in (0, 1) or len(set(tokens)) < len(tokens):
            return None
        reader.read |= {addition.node, addition.value, *addition.helpers}
        members.append(Member(mask, tokens, expert, scaled[1], reader.choice(mask), addition.once))
    return members


def _written_between(graph: Graph, chain: Chain, reader: Reader) -> bool:
    """Return whether something else is written to while the loop runs."""
    inside = False
    for node in graph.nodes:
        inside = inside or node in reader.read
        if node is chain.end:
            return False
        schema = getattr(node.target, "_schema", None)
        if inside and node not in reader.read and schema is not None and schema.is_mutable:
            return True
    return False


def _is_shared(graph: Graph, chain: Chain) -> bool:
    """Return whether others see what a loop writes before it ends, or a part of it alone."""
    nodes = [addition.node for addition in chain.additions]
    helpers = {helper for addition in chain.additions for helper in addition.helpers}
    own = helpers.union(nodes)
    if any(_is_tensor(user) and user not in own for helper in helpers for user in helper.users):
        return True
    if any(h.target is aten.add_.Tensor and h.args[0] not in helpers for h in helpers):
        return True
    writes = {node.target in IN_PLACE for node in nodes}
    return len(writes) > 1 or (True in writes and is_seen(graph, chain.start, nodes, helpers))


def _result(chain: Chain, build: Build) -> tuple[Node | None, bool, bool]:
    """Return what rows are added to (None: zeros), whether in place, and whether rows are set."""
    start = chain.start
    sets = any(addition.sets for addition in chain.additions)
    fresh = start.target in ZEROS or (sets and start.target in EMPTY)
    mine = {chain.additions[0].node, *chain.additions[0].helpers}
    if fresh and set(start.users) <= mine:
        return None, False, sets
    return start, chain.end.target in IN_PLACE, sets


def _erase(graph: Graph, loop: set[Node]) -> None:
    """Erase what only a loop needed: its ops, and what was asserted about its sizes."""
    dependent = {node for node in loop if node.target in SELECTIONS or numbers(node) is None}
    for node in graph.nodes:
        if any(operand in dependent for operand in node.all_input_nodes) and not _is_tensor(node):
            dependent.add(node)
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or node.users:
            continue
        asserts = node in dependent and not _is_tensor(node)
        if asserts or node in loop or not is_impure(node):
            graph.erase_node(node)


def _is_tensor(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor | list | tuple)


def is_impure(node: Node) -> bool:
    """Return whether an op does more than give its results."""
    schema = getattr(node.target, "_schema", None)
    return node.is_impure() or (schema is not None and schema.is_mutable)
