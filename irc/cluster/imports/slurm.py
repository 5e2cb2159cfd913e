"""Reads Slurm's ``topology.conf``: which nodes hang on which switch, and switches on which.

``SwitchName=leaf1 Nodes=node[01-16]`` and ``SwitchName=spine Switches=leaf[1-4]``: a tree
(``topology/tree``). Speeds are not in it that Slurm or anybody holds true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from irc.cluster.imports.node import unreadable

SOURCE = "Slurm's topology.conf"
MOST_NODES = 1 << 16
BRACKETS = re.compile(r"([^,\[\]]*)(?:\[([0-9,-]+)\])?([^,\[\]]*)(?:,|$)")


def is_switches(text: str) -> bool:
    """Whether a text looks like such a file."""
    return re.search(r"^\s*SwitchName\s*=", text, re.MULTILINE | re.IGNORECASE) is not None


def read_switches(text: str) -> tuple[int, ...]:
    r"""Return the nodes of one group of each level, innermost first; the last level holds all.

    >>> read_switches("SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]\n"
    ...     "SwitchName=top Switches=a,b")
    (4, 8)

    Raises:
        IrcError: ``cluster-import``; among others where groups of a level differ in size, which
            link levels of a cluster cannot say.
    """
    nodes: dict[str, tuple[str, ...]] = {}
    below: dict[str, tuple[str, ...]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = dict(re.findall(r"(\w+)\s*=\s*(\S+)", line.partition("#")[0]))
        words = {key.lower(): value for key, value in words.items()}
        for name in names_of(words.get("switchname", "")):
            if "switches" in words:
                below[name] = names_of(words["switches"])
            elif "nodes" in words:
                nodes[name] = names_of(words["nodes"])
    if not nodes:
        raise unreadable(SOURCE, "no switch has nodes")
    levels = [nodes]
    while len(levels[-1]) > 1:
        held = levels[-1]
        upper = {
            name: tuple(node for each in switches for node in held.get(each, ()))
            for name, switches in below.items()
            if any(each in held for each in switches)
        }
        if not upper or {node for each in upper.values() for node in each} != {
            node for each in held.values() for node in each
        }:
            raise unreadable(
                SOURCE, f"no switch joins {', '.join(sorted(held)[:4])}", "add the one above them"
            )
        levels.append(upper)
    return tuple(_size(level) for level in levels)


def _size(level: Mapping[str, tuple[str, ...]]) -> int:
    sizes = {len(set(each)): name for name, each in level.items()}
    if len(sizes) > 1:
        some = ", ".join(f"{name} has {size}" for size, name in sorted(sizes.items())[:3])
        raise unreadable(
            SOURCE,
            f"switches of one level have different numbers of nodes: {some}",
            "write the part of it that you plan for",
        )
    return next(iter(sizes))


def names_of(text: str) -> tuple[str, ...]:
    """Return the names that a list of Slurm means.

    >>> names_of("a[01-03,7],b")
    ('a01', 'a02', 'a03', 'a7', 'b')
    """
    names: list[str] = []
    for before, ranges, after in BRACKETS.findall(text):
        if not ranges:
            names += [f"{before}{after}"] if before or after else []
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not first or (last and int(last) - int(first) >= MOST_NODES):
                raise unreadable(SOURCE, f"a range of nodes is '{part}'")
            names += [
                f"{before}{number:0{len(first)}}{after}"
                for number in range(int(first), int(last or first) + 1)
            ]
    return tuple(names)
