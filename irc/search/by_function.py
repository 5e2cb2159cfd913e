"""What a stage of a pipeline takes, function by function: the objective of its search, taken apart.

Every op and every boxing is in one of the functions that a schedule runs, and what another stage
sends is received for one, so that the objective is the sum of their seconds, each times how often
it runs in a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue, Use

from irc.dialects.builder import arguments
from irc.search.facts import call_counts
from irc.search.graph import Graph
from irc.sharding.boxing import Boxing
from irc.sharding.trees import Trees
from irc.training.stages import BOUNDARY

if TYPE_CHECKING:
    from irc.dialects.placement import Placement


@dataclass(frozen=True)
class FunctionSeconds:
    """A function of a stage.

    Attributes:
        runs: in a step.
        seconds: of one run, as the search prices its ops, its boxings and what it receives.
    """

    runs: int
    seconds: float


def seconds_by_function(
    graph: Graph, choice: Sequence[int], boxing: Boxing, trees: Trees
) -> dict[str, FunctionSeconds]:
    """Return what each function takes under a choice, by kind; of a stage of a pipeline."""
    facts = graph.facts
    assert facts.runs is not None
    totals = dict.fromkeys(dict.fromkeys(facts.kinds.values()), 0.0)
    calls = {
        kind: call_counts(facts.functions, {op: int(k == kind) for op, k in facts.kinds.items()})
        for kind in totals
    }
    for name, func in facts.functions.items():
        if name == "forward":
            continue
        ops = sum(_op_seconds(graph, op, choice) for op in func.body.block.ops)
        moved = sum(seconds for _, seconds in _boxed(graph, name, choice, boxing, trees))
        for kind, counts in calls.items():
            totals[kind] += counts[name] * (ops + moved)
    for op, kind in facts.kinds.items():
        totals[kind] += _op_seconds(graph, op, choice)
    for use, seconds in _boxed(graph, "forward", choice, boxing, trees):
        kind = facts.runs_in(*use)
        assert kind is not None
        totals[kind] += seconds
    for role, _, value in arguments(facts.functions["forward"]):
        # What comes from another stage is received for the first function that reads it.
        if role == BOUNDARY and (uses := facts.uses(value)):
            kind, node = facts.runs_in(value, uses[0]), graph.sources[value].node
            assert kind is not None
            totals[kind] += graph.problem.nodes[node].seconds[choice[node]]
    return {k: FunctionSeconds(facts.runs.count(k), s) for k, s in sorted(totals.items())}


def _op_seconds(graph: Graph, op: object, choice: Sequence[int]) -> float:
    if op not in graph.ops:
        return 0.0
    index, _ = graph.ops[op]  # type: ignore[index]  # an op
    return graph.problem.nodes[index].seconds[choice[index]]


def _boxed(
    graph: Graph, name: str, choice: Sequence[int], boxing: Boxing, trees: Trees
) -> Iterator[tuple[tuple[SSAValue, Use], float]]:
    """Yield the boxings of a function, each with the reader that it is for, and its seconds."""
    block = graph.functions[name].body.block
    values: list[SSAValue] = [*block.args, *(v for op in block.ops for v in op.results)]
    for value in values:
        groups = zip(graph.groups.get(value, ()), graph.nets.get(value, ()), strict=True)
        for group, net in groups:
            if net is None:
                continue
            source = graph.source(value, group[0])
            wanted: dict[Placement, Use] = {}
            for use in group:
                port = graph.reads[use.operation, use.index]
                if port is not source:
                    wanted.setdefault(port.placements[choice[port.node]], use)
            shape, dtype = graph.facts.kind(value)
            tree = trees.tree(shape, dtype, source.placements[choice[source.node]], wanted)
            for branch in reversed(tree.branches if tree else ()):
                use = wanted[branch.target]
                # What another copy is made from is there for the first reader of either.
                if branch.source not in wanted or _is_before(graph, use, wanted[branch.source]):
                    wanted[branch.source] = use
                seconds = boxing.seconds(shape, dtype, branch.source, branch.target)
                yield (value, use), seconds


def _is_before(graph: Graph, use: Use, other: Use) -> bool:
    place = graph.facts.place
    return place[use.operation] < place[other.operation]
