"""Hugging Face architectures, forward and backward, on meshes (4) and (2,2): are the numbers right?

Each model is unmodified, small, with random weights. Its evaluation forward and its training graph
(loss and the gradients of all parameters) are captured, planned by the search without a hint, and
run twice: on virtual ranks in float64, and as plans on four gloo processes in float32.

Targets (exit status 1 when one is missed):
  virtual ranks    outputs, loss and gradients differ from torch's by at most 1e-9
  four processes   the same by at most 1e-4
  architectures    right in all of this on both meshes: at least 20 (of a choice: all of it)

Differences are relative to the largest number of a tensor. Seconds are those of the processor:
capture of both graphs and differentiation, and the search for the training graph. `split` counts
the ops of the training graph that an axis splits; `whole` is the share of its FLOPs that every rank
computes again; `fall-back` that of ops that have no other way, by name.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import transformers

from irc.errors import IrcError
from tests.models.zoo import measure, processes
from tests.models.zoo.measure import FIRM, MESHES, error
from tests.models.zoo.model import Model
from tests.models.zoo.processes import ROUGH
from tests.models.zoo.table import ZOO

QUICK = ("llama", "bert", "convnext")
WANTED = 20
SHOWN = 1e-4
"""Share of FLOPs; a loss divides one number by another, which nothing can split."""


@dataclass(frozen=True)
class Row:
    """One architecture on one mesh; fields are the columns."""

    name: str
    parameters: int
    mesh: str
    ops: int
    split: int
    blocks: int
    capture_s: float
    plan_s: float
    forward: float
    gradient: float
    whole: float
    fallen: dict[str, float]
    collectives: dict[str, int]

    def __str__(self) -> str:
        moved = " ".join(f"{count} {kind}" for kind, count in sorted(self.collectives.items()))
        large = [f"{name} {share:.2%}" for name, share in self.fallen.items() if share >= SHOWN]
        fallen = " ".join(large) or f"none of {SHOWN:.2%}"
        return (
            f"{self.name:<12}{self.parameters:>8} {self.mesh:<15}{self.ops:>6}{self.split:>6}"
            f"{self.blocks:>7}{self.capture_s:>8.1f}{self.plan_s:>7.1f}{self.forward:>9.1e}"
            f"{self.gradient:>9.1e}{self.whole:>7.1%}  {fallen}; {moved}"
        )


HEADER = (
    f"{'architecture':<12}{'weights':>8} {'mesh':<15}{'ops':>6}{'split':>6}{'blocks':>7}"
    f"{'capture':>8}{'plan':>7}{'forward':>9}{'gradient':>9}{'whole':>7}  fall-back; collectives"
)


def rows(model: Model, wanted: measure.Reference, *, cluster: str, part: float | None) -> list[Row]:
    """Plan a model on each mesh and run it on virtual ranks."""
    graphs, table = measure.graphs(model), list[Row]()
    for mesh in MESHES:
        forward = measure.plan(graphs.forward, mesh, cluster=cluster, part=part)
        training = measure.plan(graphs.training, mesh, cluster=cluster, part=part)
        outputs = measure.run(forward, graphs.arguments["forward"], mesh)
        gradients = measure.run(training, graphs.arguments["training"], mesh)
        row = Row(
            model.name,
            graphs.parameters,
            mesh,
            training.ops,
            training.split,
            training.blocks,
            graphs.capture_s,
            training.plan_s,
            error(measure.of_role(outputs, "output").values(), wanted.outputs),
            measure.training_error(gradients, wanted),
            training.whole,
            {**forward.fallen, **training.fallen},
            training.collectives,
        )
        print(row, flush=True)
        table.append(row)
    return table


def in_processes(models: Sequence[Model], wanted: dict[str, measure.Reference]) -> dict[str, float]:
    """Run models on four processes; return the worst error of each."""
    worst: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="irc-zoo-") as place:
        folder = Path(place)
        for model in models:
            processes.save_plans(model, folder)
        for name, why in processes.run_saved(folder):
            print(f"{name} on four processes: {why}", file=sys.stderr)
        for model in models:
            try:
                errors = [
                    processes.errors(model, mesh, folder, wanted[model.name]) for mesh in MESHES
                ]
            except FileNotFoundError:
                worst[model.name] = float("inf")
            else:
                worst[model.name] = max(one.worst for one in errors)
                shown = ", ".join(f"{m}: {e}" for m, e in zip(MESHES, errors, strict=True))
                print(f"{model.name:<12}four processes  {shown}", flush=True)
    return worst


def main() -> int:
    """Print the table; return 1 where a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--models", metavar="A,B", help="only these")
    parser.add_argument("--cluster", default=measure.CLUSTER, help="what prices the plans")
    parser.add_argument("--stored", type=float, help="a device stores this part of the weights")
    parser.add_argument("--virtual", action="store_true", help="no runs on four processes")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    names = args.models.split(",") if args.models else list(QUICK) if args.quick else list(ZOO)
    table: list[Row] = []
    wanted: dict[str, measure.Reference] = {}
    print(HEADER)
    for name in names:
        try:
            wanted[name] = measure.reference(ZOO[name])
            table += rows(ZOO[name], wanted[name], cluster=args.cluster, part=args.stored)
        except (IrcError, ValueError, RuntimeError, KeyError, AssertionError) as failure:
            print(f"{name:<12} {type(failure).__name__}: {failure}", flush=True)
    good = {name: [row for row in table if row.name == name] for name in names}
    right = [
        name
        for name, of_name in good.items()
        if len(of_name) == len(MESHES)
        and all(max(row.forward, row.gradient) <= FIRM for row in of_name)
    ]
    real: dict[str, float] = {}
    if not args.virtual:
        real = in_processes([ZOO[name] for name in right], wanted)
        right = [name for name in right if real[name] <= ROUGH]
    if args.json:
        figures = {"rows": [asdict(row) for row in table], "processes": real, "right": right}
        Path(args.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return summary(names, right, table, real, chosen=bool(args.quick or args.models))


def summary(
    names: Sequence[str],
    right: Sequence[str],
    table: Sequence[Row],
    real: dict[str, float],
    *,
    chosen: bool,
) -> int:
    """Print the line of figures; return 1 where the target is missed."""
    needed = len(names) if chosen else WANTED
    if not table:
        print(f"zoo: 0 of {len(names)} architectures right (target {needed}): MISSED")
        return 1
    wrong = [name for name in names if name not in right]
    slowest = max((row.capture_s + row.plan_s, row.name, row.mesh) for row in table)
    fallen = max((sum(row.fallen.values()), row.name) for row in table)
    print(
        f"zoo: {len(right)} of {len(names)} architectures right on both meshes (target {needed}),"
        f" worst float64 {max(max(r.forward, r.gradient) for r in table):.1e}"
        f" (target {FIRM:.0e}),"
        + (f" four processes {max(real.values()):.1e} (target {ROUGH:.0e})," if real else "")
        + f" most FLOPs fallen back {fallen[0]:.2%} ({fallen[1]}),"
        f" slowest capture and plan {slowest[0]:.1f} s ({slowest[1]} on {slowest[2]}):"
        f" {'MISSED' if len(right) < needed else 'met'}"
        + (f"; wrong: {', '.join(wrong)}" if wrong else "")
    )
    return 1 if len(right) < needed else 0


if __name__ == "__main__":
    sys.exit(main())
