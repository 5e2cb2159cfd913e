"""Pieces of a layer of experts: the degree chosen against 1 and 2, over FSMoE's grid of layers.

    python -m tests.benchmarks.expert_degrees [--quick] [--json FILE]

Of each of the 1458 layers of ``fsmoe_grid.py`` on each of FSMoE's two clusters, forward and
backward, pass ``chunk-experts`` chooses a degree by price; then the program of each degree is
ordered and simulated, nothing runs. There is an expert a node. "shared": the GPUs of a node share
its inner dim; rows are gathered inside nodes, dispatched between them, and go back the same way
(FSMoE gathers behind the dispatch, which sends an eighth of that between nodes; irc does not).
"copies": each GPU holds the whole expert and sends its own tokens, as many bytes between nodes and
as much arithmetic as in FSMoE. The best of all is by trying 1, 2, 4, 8 and 16 ("gap": how much
longer the chosen one takes). --quick takes every 97th layer.

The choice and the times go by one simulator, and a layer is all of its program here: what is tried
takes as long as it was priced, to the last bit. So the chosen degree is the best one by
construction, but for cuts that save next to nothing; "won" and "gap" hold no more than that the
choice is made and the pass gives the program that was priced. What pieces are worth is said by
"strict" and "x of"; that prices are right is not, nor that a cluster would agree.

Layers are priced by the rows that are expected, as the kernels of a whole plan are.

A layer counts as won where the chosen degree takes less time than both 1 and 2, by a thousandth at
least; where it is 1 or 2 itself, it has to take no more than the other, by a thousandth at most.
"strict" counts only those that beat both.

Targets: won in 95 % of layers, of each cluster, placement and direction; the gap at most 2 %.
Issue 23 asks that the chosen degree "beats degrees 1 and 2 in 95 %", which "strict" says and no
choice can reach: of many layers 1 or 2 is the best.
"""

# pyright: basic
from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from xdsl.dialects.builtin import ModuleOp

from irc.cost.model import ClusterCost
from irc.dialects.builder import entry, functions
from irc.passes.chunk_experts import ChunkExpertsPass
from irc.pipeline import run_passes
from irc.sharding.expert_layers import expert_layer
from irc.sharding.mesh import mesh_of
from irc.simulate.block import BlockTimes
from irc.simulate.expert_degrees import ExpertChooser
from tests.benchmarks.fsmoe_grid import NUM_LAYERS, TESTBEDS, Testbed, layers
from tests.passes.expert_programs import Layer, program

WON, GAP, CLOSE = 0.95, 0.02, 1e-3
DEGREES = (1, 2, 4, 8, 16)


class Way(NamedTuple):
    """How a layer is placed, and in which direction it runs."""

    copies: bool
    gradient: bool

    def __str__(self) -> str:
        return f"{'copies' if self.copies else 'shared'} {'back' if self.gradient else 'forth'}"


WAYS = tuple(Way(copies, gradient) for copies in (False, True) for gradient in (False, True))


class Case(NamedTuple):
    """A layer in one direction.

    Attributes:
        chosen: degree by price.
        seconds: by degree, simulated; that of ``chosen`` among them.
    """

    chosen: int
    seconds: dict[int, float]

    @property
    def is_strict(self) -> bool:
        """Whether the chosen degree beats 1 and 2."""
        least = min(self.seconds[1], self.seconds[2])
        return self.seconds[self.chosen] < least * (1 - CLOSE)

    @property
    def is_won(self) -> bool:
        """Whether it beats both, or is the better one of them."""
        least = min(self.seconds[1], self.seconds[2])
        equal = self.chosen in (1, 2) and self.seconds[self.chosen] <= least * (1 + CLOSE)
        return self.is_strict or equal

    @property
    def gap(self) -> float:
        """How much longer the chosen degree takes than the best."""
        return self.seconds[self.chosen] / min(self.seconds.values()) - 1


class Timed(NamedTuple):
    """A program of a layer, and what prices it on a cluster."""

    module: ModuleOp
    cost: ClusterCost
    times: BlockTimes


def timed(layer: Layer, testbed: Testbed, way: Way, degree: int = 1) -> Timed:
    """Return the program of a layer in so many pieces, and its prices."""
    own, mesh, whole = testbed.placed(layer, copies=way.copies)
    module = program(own, mesh, gradient=way.gradient)
    if degree > 1:
        run_passes(module, [ChunkExpertsPass(degree=degree)])
    cost = ClusterCost(testbed.cluster, mesh_of(module), within=whole, alone=True)
    return Timed(module, cost, BlockTimes(cost, functions(module), whole))


def case(layer: Layer, testbed: Testbed, way: Way) -> Case:
    """Choose a degree, as the pass does, and simulate it and others."""
    module, cost, times = timed(layer, testbed, way)
    (experts,) = (each for op in module.walk() if (each := expert_layer(op)) is not None)
    choice = ExpertChooser(cost, times).choice(experts)
    chosen = 1 if choice is None else choice.degree
    seconds: dict[int, float] = {}
    for degree in sorted({*DEGREES, chosen}):
        cut = timed(layer, testbed, way, degree)
        seconds[degree] = cut.times.end(entry(cut.module).body.block)
    return Case(chosen, seconds)


def row(name: str, way: Way, cases: list[Case]) -> dict[str, Any]:
    """Sum up one cluster and way."""
    count = len(cases)
    return {
        "cluster": name,
        "way": str(way),
        "layers": count,
        "won": sum(each.is_won for each in cases) / count,
        "strict": sum(each.is_strict for each in cases) / count,
        "over_1": geometric_mean(c.seconds[1] / c.seconds[c.chosen] for c in cases),
        "over_2": geometric_mean(c.seconds[2] / c.seconds[c.chosen] for c in cases),
        "gap": max(each.gap for each in cases),
        "degrees": dict(sorted(Counter(each.chosen for each in cases).items())),
    }


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every 97th layer")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    heads = ("layers", "won", "strict", "x of 1", "x of 2", "gap")
    print("cluster  experts     " + "".join(f"{h:>8}" for h in heads) + "  layers by degree")
    rows: list[dict[str, Any]] = []
    for (name, testbed), way in product(TESTBEDS.items(), WAYS):
        grid = list(layers(testbed))
        assert len(grid) == NUM_LAYERS
        # Layers that differ in heads alone, or come to the same tokens, are simulated once.
        known = cache(lambda layer, on=testbed, by=way: case(layer, on, by))
        own = row(name, way, [known(each) for each in grid[:: 97 if args.quick else 1]])
        rows.append(own)
        print(f"{name:<9}{own['way']:<12}{own['layers']:>8}{own['won']:>8.1%}{own['strict']:>8.1%}"
              f"{own['over_1']:>8.3f}{own['over_2']:>8.3f}{own['gap']:>8.2%}  "
              + ", ".join(f"{d}: {n}" for d, n in own["degrees"].items()),
              flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    met = all(each["won"] >= WON and each["gap"] <= GAP for each in rows)
    won, gap = min(each["won"] for each in rows), max(each["gap"] for each in rows)
    print(f"won in at least {won:.1%} (target {WON:.0%}), gap at most {gap:.2%}"
          f" (target {GAP:.0%}): {'all met' if met else 'MISSED'}")  # fmt: skip
    return not met


if __name__ == "__main__":
    sys.exit(main())
