"""``irc explain plan PLAN --sizes``: which sizes are open, and why others are not."""

from __future__ import annotations

import json
from pathlib import Path

from irc.plan.input_sizes import InputSizes
from irc.plan.load import LoadedPlan, load_plan
from irc.plan.native import FOLDER, MANIFEST
from irc.plan.open_sizes import made_again, quotient_text, shown
from irc.plan.sizes import PlanSizes
from irc.report.table import table


def explain_sizes(folder: str | Path, *, as_json: bool = False) -> str:
    """Say which sizes of a plan any number serves, for which it was checked, and what is not so.

    Args:
        folder: the plan.
        as_json: print the facts as JSON.

    Raises:
        IrcError: for a folder that is no plan.
    """
    loaded = load_plan(folder)
    sizes = None if loaded.sized is None else loaded.sized.sizes
    if as_json:
        return json.dumps(_facts(loaded, sizes), indent=1)
    if sizes is None:
        return "all sizes of the plan are fixed"
    return write(loaded, sizes)


def open_line(sizes: PlanSizes | InputSizes) -> str:
    """Return the open sizes in one line.

    >>> from irc.plan.open_sizes import Symbol
    >>> symbols = (Symbol("B", "batch", 0, 0, 1, 128, 2),)
    >>> open_line(PlanSizes(symbols, ((((1, ("B",)),),),), (), (), (), ()))
    'batch 1..128'
    """
    return ", ".join(f"{each.name} {each.low}..{each.high}" for each in sizes.symbols)


def write(loaded: LoadedPlan, sizes: PlanSizes) -> str:
    """Lay out the facts for a terminal."""
    plan = loaded.plan
    inputs = [plan.buffers[index].name for index in plan.inputs]
    rows = [
        (each.name, f"dim {each.dim} of {inputs[each.input]}", f"{each.low} to {each.high}",
         str(each.example))
        for each in sizes.symbols
    ]  # fmt: skip
    lines = ["Open sizes", *table(("size", "read from", "checked for", "example"), rows)]
    if sizes.quotients:
        lines += ["", "Follow from them"]
        lines += [f"  {q.symbol} = {quotient_text(q)}" for q in sizes.quotients]
    lines += ["", "Hold for the sizes that the plan serves"]
    lines += [f"  {shown(c)}   {c.where}".rstrip() for c in sizes.conditions] or ["  nothing more"]
    lines += ["", "Fixed sizes"]
    lines += [f"  {f.name} = {f.number}: {f.reason}" for f in sizes.fixed] or ["  none"]
    count = len(plan.kernels) - len(sizes.kernels)
    lines += ["", f"Kernels: {count} of {len(plan.kernels)} are compiled once for all sizes"]
    lines += [f"  {made_again([kernel])}" for kernel in sizes.kernels]
    lines += ["", _without_torch(loaded, sizes)]
    return "\n".join(lines)


def _without_torch(loaded: LoadedPlan, sizes: PlanSizes) -> str:
    """Say whether the plan's folder holds a program of machine code."""
    if sizes.kernels:
        return "Without torch: no, kernels are compiled for each size"
    if loaded.folder is None or not (loaded.folder / FOLDER / MANIFEST).is_file():
        return "Without torch: no, the plan was compiled without a native program"
    return "Without torch: irc.runtime.load runs all of these sizes"


def _facts(loaded: LoadedPlan, sizes: PlanSizes | None) -> dict[str, object]:
    if sizes is None:
        return {"open": []}
    return {
        "open": [
            {"name": s.name, "input": s.input, "dim": s.dim, "low": s.low, "high": s.high}
            for s in sizes.symbols
        ],
        "conditions": [shown(each) for each in sizes.conditions],
        "fixed": {each.name: each.reason for each in sizes.fixed},
        "kernels": len(loaded.plan.kernels),
        "made_for_each_size": {each.name: each.reason for each in sizes.kernels},
    }
