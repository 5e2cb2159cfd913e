"""The rooms and floors of irc, drawn from its imports into ``irc/README.md``.

    python -m tests.house          # writes the picture anew

A room is a package or module right below ``irc``. It stands on a floor above all rooms that it
imports; rooms that import each other share one. Of the arrows those are shown that do not follow
from others (the transitive reduction).
"""

from __future__ import annotations

import ast
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import grimp
import networkx as nx

if TYPE_CHECKING:
    Graph = nx.DiGraph[str]

ROOT = Path(__file__).parents[1]
MAP = ROOT / "irc" / "README.md"
BEGIN, END = "<!-- drawn by python -m tests.house -->\n```text\n", "```\n<!-- end -->"
WIDTH = 100


@cache
def imports() -> Graph:
    """Return which module of irc imports which, without what is for type checkers alone."""
    built = grimp.build_graph("irc", exclude_type_checking_imports=True, cache_dir=None)
    graph: Graph = nx.DiGraph()
    for module in built.modules - {"irc"}:
        graph.add_node(module)
        imported = built.find_modules_directly_imported_by(module) - {"irc"}
        graph.add_edges_from((module, other) for other in imported)
    return graph


def rooms() -> Graph:
    """Return which room imports which."""
    graph: Graph = nx.DiGraph()
    for module, other in imports().edges:
        here, there = (name.split(".")[1] for name in (module, other))
        graph.add_node(here)
        if here != there:
            graph.add_edge(here, there)
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Return the sets of nodes that reach each other."""
    return [set(each) for each in nx.strongly_connected_components(graph) if len(each) > 1]


def picture() -> str:
    """Return the table of floors, the top one first."""
    whole = nx.condensation(rooms())
    arrows = nx.transitive_reduction(whole)
    members = {node: sorted(whole.nodes[node]["members"]) for node in whole}
    floor: dict[int, int] = {}
    for node in reversed(list(nx.topological_sort(whole))):
        floor[node] = 1 + max((floor[below] for below in whole.successors(node)), default=0)
    lines = [f"{'floor':>5}  {'room':<14} what it is"]
    for node in sorted(whole, key=lambda node: (-floor[node], members[node])):
        below = sorted(name for each in arrows.successors(node) for name in members[each])
        for name in members[node]:
            lines += _row(floor[node], name, below if name == members[node][-1] else [])
    return "\n".join(lines) + "\n"


def _row(floor: int, name: str, below: list[str]) -> list[str]:
    path = ROOT / "irc" / name
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    words = (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n\n")[0]
    plain = re.sub(r":\w+:`|`", "", words).rstrip(".")
    text = textwrap.wrap(" ".join(plain.split()), WIDTH - 22)
    first, *rest = text
    lines = [f"{floor:>5}  {name:<14} {first}", *(f"{'':22}{line}" for line in rest)]
    if below:
        lines += textwrap.wrap(
            f"on {', '.join(below)}", WIDTH, initial_indent=" " * 22, subsequent_indent=" " * 25
        )
    return lines


def with_picture(text: str) -> str:
    """Return the text of the map with the picture of today in it."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{picture()}{END}{tail}"


if __name__ == "__main__":
    MAP.write_text(with_picture(MAP.read_text()))
