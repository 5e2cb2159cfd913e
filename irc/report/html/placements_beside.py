"""Where the weights of two plans lie otherwise, along the model's own modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from irc.dialects.placement import Broadcast, Mesh
from irc.plan.any_plan import read_plan
from irc.plan.host import HostPlan
from irc.plan.parts import PartsPlan
from irc.report.html.element import Child, Element, code, e, table
from irc.report.html.placements import placed_on
from irc.report.module_tree import ROLES, plan_arguments
from irc.report.table import counted, size
from irc.report.weights import NUMBER, Argument, merged_names

SHOWN = 200
"""Rows of all tables together."""


@dataclass(frozen=True)
class Laid:
    """The weights of a plan by name, and the mesh on which they lie: of stages, that of each."""

    weights: dict[str, Argument]
    mesh: Mesh

    def parts(self, name: str) -> tuple[object, ...]:
        """Return how a weight is cut: for each axis that does so its name, its size and how."""
        placement = self.weights[name].placement
        cut = () if placement is None else placement.axes
        return tuple(
            (axis, self.mesh.size(axis), placed)
            for axis, placed in cut
            if not isinstance(placed, Broadcast) and self.mesh.size(axis) > 1
        )


@dataclass
class _Module:
    """A module that has, or holds modules that have, weights that lie otherwise."""

    rows: list[list[str]] = field(default_factory=list[list[str]])
    children: dict[str, _Module] = field(default_factory=dict[str, "_Module"])

    @property
    def count(self) -> int:
        return sum(map(len, self.rows)) + sum(each.count for each in self.children.values())


def laid_in(folder: str | Path) -> Laid:
    """Return the weights of a plan of any kind; of a host program, whose ranks are one, none.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``.
    """
    plan = read_plan(folder)
    if isinstance(plan, HostPlan):
        return Laid({}, Mesh(()))
    if isinstance(plan, PartsPlan):
        mesh, loaded = plan.part_mesh, [each for part in plan.parts for each in part.values()]
    else:
        mesh, loaded = plan.plan.device_mesh, [plan]
    every = (one for each in loaded for one in plan_arguments(each.plan))
    return Laid({one.name: one for one in every if one.role in ROLES}, mesh)


def placements_beside(own: Laid, theirs: Laid, names: Sequence[str]) -> list[Element]:
    """Return which weights of both plans lie otherwise, along the tree of modules.

    Args:
        own: the weights of the plan.
        theirs: those of the other.
        names: of the plans.
    """
    common = [name for name in own.weights if name in theirs.weights]
    if not common:
        return []
    other = [name for name in common if own.parts(name) != theirs.parts(name)]
    elements = [e("h3", "What lies otherwise")]
    if not other:
        elements.append(e("p", f"Nothing: {counted(len(common), 'weight')} of both lie alike."))
        return elements
    alike: dict[object, list[str]] = {}
    for name in other:
        one = own.weights[name]
        key = (NUMBER.sub("#", name), one.shape, own.parts(name), theirs.parts(name))
        alike.setdefault(key, []).append(name)
    root = _Module()
    for group in list(alike.values())[:SHOWN]:
        _at(root, merged_names(group).rpartition(".")[0]).rows.append(group)
    said = f"{len(other):,} of {counted(len(common), 'weight')} of both lie otherwise"
    if (left := sum(map(len, list(alike.values())[SHOWN:]))) > 0:
        said += f", of which {left:,} are not shown here: irc diff has all"
    elements.append(e("p", f"{said}. Modules that differ in their numbers alone are one."))
    elements.append(e("div", _tree("model", root, own, theirs, names), class_="tree"))
    return elements


def _at(root: _Module, path: str) -> _Module:
    here = root
    for part in path.split(".") if path else ():
        here = here.children.setdefault(part, _Module())
    return here


def _tree(name: str, module: _Module, own: Laid, theirs: Laid, names: Sequence[str]) -> Element:
    line = e(
        "span",
        e("span", name, class_="module"),
        e("span", f"{module.count:,}", class_="amount"),
        class_="row",
    )
    return e(
        "details",
        e("summary", line),
        _table(module.rows, own, theirs, names) if module.rows else None,
        (_tree(each, child, own, theirs, names) for each, child in module.children.items()),
        open=True,
    )


def _table(
    groups: Sequence[Sequence[str]], own: Laid, theirs: Laid, names: Sequence[str]
) -> Element:
    rows: list[Sequence[Child]] = []
    for group in groups:
        one = own.weights[group[0]]
        cells: list[Child] = [code(merged_names(group)), code(f"{one.dtype}{list(one.shape)}")]
        for side in (own, theirs):
            held = sum(side.weights[name].bytes_per_rank for name in group)
            cells += [_lies(side, group[0]), size(held)]
        rows.append(cells)
    heads = ("weight", "type", names[0], "a rank holds", names[1], "a rank holds")
    return table(heads, rows, right="lllrlr", label="Weights that lie otherwise")


def _lies(side: Laid, name: str) -> Child:
    one = side.weights[name]
    if not side.mesh.names:
        return "whole, on one device"
    placed = placed_on(one.placement, len(one.shape), side.mesh)
    return [e("div", axis, " ", shown) for axis, shown in zip(side.mesh.names, placed, strict=True)]
