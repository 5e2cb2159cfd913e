"""What ``irc compile`` and ``irc explain plan`` say of a host program and its regions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from irc.dialects.builder import functions
from irc.dialects.flow import ExternOp
from irc.errors import printable
from irc.plan.host import HostPlan
from irc.plan.open_sizes import shown
from irc.plan.schema import Kernels
from irc.report.sizes import open_line
from irc.report.table import table
from irc.runtime.host import host_module


@dataclass(frozen=True)
class RegionLine:
    """One region in a table: its name, who calls it, what it runs, its sizes."""

    name: str
    called_by: str
    kernels: str
    sizes: str


def host_summary(plan: HostPlan, cluster: str, source: str) -> str:
    """Describe a plan in some lines."""
    planned = plan.regions.values()
    kernels = sum(len(each.plan.kernels) for each in planned)
    alone = {n: each.reason for n, each in plan.facts.regions.items() if each.reason}
    weights = sum(t.numel() * t.element_size() for t in plan.weights.values())
    arena = max((each.plan.arena_bytes for each in planned), default=0)
    sizes = ", ".join(f"{each.name}" for each in plan.facts.symbols)
    lines = [
        ("program", source),
        ("mesh", f"one device (1 rank), priced for {cluster}"),
        ("host", _counted(host_ops(plan))),
        ("regions", f"{len(plan.facts.regions)}, {kernels} kernels for cpu"),
        (
            "op by op",
            "; ".join(f"{n}: {printable(why)[:200]}" for n, why in alone.items()) or "none",
        ),
        ("open sizes", sizes or "none"),
        ("weights", f"{weights / 2**20:.2f} MiB"),
        ("arena", f"{arena / 2**20:.2f} MiB for the largest region"),
        ("hash", plan.hash[:16]),
    ]
    return "\n".join(f"{name:<12}{text}" for name, text in lines)


def host_ops(plan: HostPlan) -> Counter[str]:
    """Count the ops that the host runs, by name."""
    return Counter(
        op.target.rpartition("::")[2]
        for name, func in functions(host_module(plan)).items()
        if name not in plan.facts.regions
        for op in func.body.block.ops
        if isinstance(op, ExternOp)
    )


def explain_host(plan: HostPlan, folder: str, *, as_json: bool = False) -> str:
    """Say what the host runs, and what each region is."""
    rows = region_lines(plan)
    if as_json:
        facts = {
            "host": dict(host_ops(plan)),
            "regions": [vars(row) for row in rows],
            "op by op": {n: e.reason for n, e in plan.facts.regions.items() if e.reason},
            "sizes": [each.name for each in plan.facts.symbols],
            "conditions": [shown(each) for each in plan.facts.conditions],
        }
        return json.dumps(facts, indent=1)
    lines = ["The host program runs", f"  {_counted(host_ops(plan))}", "", "Regions"]
    lines += table(
        ("region", "in", "kernels", "sizes"),
        [(row.name, row.called_by, row.kernels, row.sizes) for row in rows],
    )
    alone = [(n, each.reason) for n, each in plan.facts.regions.items() if each.reason]
    if alone:
        lines += ["", "Run op by op, for want of a plan"]
        lines += [f"  {name}: {printable(reason)}" for name, reason in alone]
    lines += ["", "Hold for the sizes of inputs that the plan serves"]
    lines += [f"  {shown(c)}   {c.where}".rstrip() for c in plan.facts.conditions] or ["  all"]
    lines += ["", "The program, with the ops of each region", f"  {folder}/host.mlir"]
    lines += ["One region", f"  irc explain plan {folder}/regions/NAME"]
    return "\n".join(lines)


def region_lines(plan: HostPlan) -> list[RegionLine]:
    """Return a line for each region: who calls it, what it runs."""
    callers: dict[str, list[str]] = {}
    for name, func in functions(host_module(plan)).items():
        for op in func.body.block.ops:
            if op.name == "func.call":
                callee = str(op.properties["callee"]).lstrip("@")
                callers.setdefault(callee, []).append(name)
    rows: list[RegionLine] = []
    for name in plan.facts.regions:
        region = plan.regions.get(name)
        kernels, sizes = "none", ""
        if region is not None:
            calls = [c for a in region.plan.actions if isinstance(a, Kernels) for c in a.calls]
            kernels = f"{len(region.plan.kernels)}, {len(calls)} launches"
            sizes = "fixed" if region.sized is None else open_line(region.sized.sizes)
        rows.append(RegionLine(name, ", ".join(callers.get(name, [])), kernels, sizes))
    return rows


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing"
