"""The mesh, and how weights lie on it, along the model's own modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from irc.dialects.placement import Broadcast, Mesh, Partial, Placement, Split
from irc.report.html.element import Element, bar, code, e, key, section, table
from irc.report.module_tree import Module, Weights
from irc.report.notation import dtensor, oneflow, part_text
from irc.report.table import counted, seconds, size

MOST_DRAWN = 64
"""Ranks of a mesh that are drawn one by one."""
MOST_STRIPES = 8
OPEN_CHILDREN = 8
"""A module with so few children shows them at once."""


def placements_section(
    mesh: Mesh, roles: Mapping[str, str], tree: Module, unit: str, note: str = ""
) -> Element:
    """Return the section.

    Args:
        mesh: of the plan, or of one of its parts.
        roles: what each axis is for, where that is known.
        tree: of the model's modules.
        unit: call or step.
        note: what is to be said of the figures.
    """
    lead = (
        "The modules of the model, with their weights and what their kernels take"
        f" on one rank in a {unit}; modules that differ in their numbers alone are one."
    )
    children: list[Element | None] = []
    if mesh.num_ranks > 1:
        children += [_mesh(mesh, roles), _notation()]
    if note:
        children.append(e("p", note, class_="note"))
    children.append(key([("compute", f"compute a {unit}"), ("comm", "collectives"),
                         ("weight", "weights of a rank")]))  # fmt: skip
    children.append(e("div", _module(tree, tree, mesh, depth=0), class_="tree"))
    return section("placements", "Mesh and placements", lead, children)


def _mesh(mesh: Mesh, roles: Mapping[str, str]) -> Element:
    rows = [(e("strong", axis), counted(n, "rank"), roles.get(axis, "")) for axis, n in mesh.axes]
    facts = table(("axis", "size", "what it is for"), rows, label="Axes of the mesh")
    if mesh.num_ranks > MOST_DRAWN or len(mesh.axes) > 3:
        return facts
    return e("div", facts, ranks_picture(mesh), class_="beside")


def ranks_picture(mesh: Mesh) -> Element:
    """Draw the ranks: the last axis to the right, the one before it down, the first as blocks."""
    axes = [size for _, size in mesh.axes]
    blocks, rows, columns = ([1, 1, 1, *axes])[-3:]
    cell, gap = 30, 14
    width, height = columns * cell, blocks * (rows * cell + gap) - gap
    svg = e("svg", viewBox=f"0 0 {width + 2} {height + 2}", width=width + 2, height=height + 2,
            role="img", aria_label=f"ranks of the mesh {mesh}", class_="mesh")  # fmt: skip
    for rank, (b, r, c) in enumerate(product(range(blocks), range(rows), range(columns))):
        x, y = c * cell + 1, b * (rows * cell + gap) + r * cell + 1
        where = ", ".join(f"{name} {n}" for name, n in mesh.coordinates(rank).items())
        svg.append(e("rect", e("title", f"rank {rank}: {where}"), x=x, y=y, width=cell - 3,
                     height=cell - 3, rx=3, class_="rank"))  # fmt: skip
        svg.append(e("text", str(rank), x=x + (cell - 3) / 2, y=y + 18, class_="middle"))
    return svg


def _notation() -> Element:
    samples = [("S(0)", Split(0), "rows are split over the axis"),
               ("S(1)", Split(1), "columns are split"),
               ("B", Broadcast(), "each rank has the whole"),
               ("P", Partial(), "each rank has a term of a sum")]  # fmt: skip
    return e(
        "ul",
        (
            e("li", picture(placed, 2, 4), " ", code(text), f" {words}")
            for text, placed, words in samples
        ),
        class_="key",
    )


def picture(placed: object, ndim: int, ranks: int) -> Element:
    """Draw how an axis holds a tensor: what its first rank has of it is filled."""
    box = 18
    svg = e("svg", e("rect", x=0.5, y=0.5, width=box - 1, height=box - 1, rx=2, class_="whole"),
            viewBox=f"0 0 {box} {box}", class_="sbp", aria_hidden="true")  # fmt: skip
    inner = box - 4
    if isinstance(placed, Split):
        count = min(max(ranks, 2), MOST_STRIPES)
        part, across = inner / count, placed.dim == ndim - 1 and ndim > 1
        x, y, w, h = (2, 2, part, inner) if across else (2, 2, inner, part)
        svg.append(e("rect", x=x, y=y, width=w, height=h, class_="split"))
        for i in range(1, count):
            at = 2 + i * part
            line = (
                {"x1": at, "x2": at, "y1": 2, "y2": box - 2}
                if across
                else {"x1": 2, "x2": box - 2, "y1": at, "y2": at}
            )
            svg.append(e("line", **line))
    elif isinstance(placed, Partial):
        svg.append(e("rect", x=2, y=2, width=inner, height=inner, class_="partial"))
        svg.append(e("path", d=f"M{box / 2} 5V13M5 {box / 2}H13", class_="plus"))
    else:
        svg.append(e("rect", x=2, y=2, width=inner, height=inner, class_="split"))
    return svg


def _module(module: Module, root: Module, mesh: Mesh, depth: int) -> Element:
    """Return a module: a line that opens, with its weights and its children."""
    taken = module.all
    line = e(
        "span",
        e("span", module.name, class_="module"),
        e("span", seconds(taken.compute_s) if taken.compute_s else "", class_="amount"),
        e("span", bar(taken.compute_s, root.all.compute_s, "compute"),
          bar(taken.comm_s, max(root.all.comm_s, root.all.compute_s), "comm")
          if taken.comm_s else None,
          class_="bars"),
        e("span", size(module.num_bytes) if module.num_bytes else "", class_="amount"),
        e("span", bar(module.num_bytes, root.num_bytes, "weight"), class_="bars"),
        class_="row",
    )  # fmt: skip
    if not module.children and not module.weights:
        return e("div", line, class_="leaf")
    few = len(module.children) <= OPEN_CHILDREN
    facts = [f"reads and writes {size(taken.num_bytes)}"] if taken.num_bytes else []
    if taken.comm_s:
        facts.append(f"collectives {seconds(taken.comm_s)}")
    own = module.own.compute_s
    if own and module.children:
        facts.append(f"{seconds(own)} in kernels of no module inside it")
    return e(
        "details",
        e("summary", line),
        e("p", ", ".join(facts), class_="note") if facts else None,
        _weights(module.weights, mesh) if module.weights else None,
        (_module(child, root, mesh, depth + 1) for child in module.children.values()),
        open=depth == 0 or (few and depth == 1),
    )


def _weights(rows: Sequence[Weights], mesh: Mesh) -> Element:
    heads = ["weight", "type", *mesh.names, "a rank holds"]
    right = "ll" + "l" * len(mesh.names) + "r"
    cells = [
        (
            e("div", code(row.names), _notations(row.first.placement, mesh)),
            code(f"{row.first.dtype}{list(row.first.shape)}"),
            *placed_on(row.first.placement, len(row.first.shape), mesh),
            size(row.num_bytes),
        )
        for row in rows
    ]
    return table(heads, cells, right=right, label="Weights and how they lie")


def placed_on(placement: Placement | None, ndim: int, mesh: Mesh) -> list[Element]:
    """Return for each axis of a mesh how it holds a tensor of so many dims."""
    held = {} if placement is None else dict(placement.axes)
    cells: list[Element] = []
    for axis, ranks in mesh.axes:
        placed = held.get(axis, Broadcast())
        shown = picture(placed, ndim, ranks)
        cells.append(e("span", shown, " ", code(part_text(placed)), class_="placed"))
    return cells


def _notations(placement: Placement | None, mesh: Mesh) -> Element | None:
    if placement is None or not mesh.names:
        return None
    return e("small", f"OneFlow {oneflow(placement)}, DTensor {dtensor(placement, mesh)}")
