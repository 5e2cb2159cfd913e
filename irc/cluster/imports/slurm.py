"""Reads Slurm's ``topology.conf``: which nodes hang on which switch, and switches on which.

``SwitchName=leaf1 Nodes=node[01-16]`` and ``SwitchName=spine Switches=leaf[1-4]``: a tree
(``topology/tree``). Speeds are not in it that Slurm or anybody holds true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from math import prod

from irc.cluster.imports.node import unreadable

SOURCE = "Slurm's topology.conf"
MOST_NODES = 1 << 16
NAME = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
"""One entry of a list: commas inside brackets do not end it."""
RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


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
        if len(levels) > len(below) + 1:
            raise unreadable(SOURCE, f"switches hang on each other: {', '.join(sorted(held)[:4])}")
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
    >>> names_of("rack[0-1]n[1-2]")
    ('rack0n1', 'rack0n2', 'rack1n1', 'rack1n2')
    """
    if NAME.sub("", text).strip(","):
        raise unreadable(SOURCE, f"a list of nodes is '{text}'")
    names: list[str] = []
    for entry in NAME.findall(text):
        parts = [_numbers(part) for part in re.split(r"(\[[^\[\]]*\])", entry) if part]
        if prod(map(len, parts)) > MOST_NODES:
            raise unreadable(SOURCE, f"'{entry}' names more than {MOST_NODES} nodes")
        names += ("".join(each) for each in product(*parts))
    return tuple(names)


def _numbers(part: str) -> list[str]:
    """Return what a part of a name stands for: itself, or each number of its brackets."""
    if not part.startswith("["):
        return [part]
    numbers: list[str] = []
    for text in part[1:-1].split(","):
        match = RANGE.fullmatch(text)
        first, last = (match[1], int(match[2] or match[1])) if match else ("", 0)
        if match is None or not 0 <= last - int(first) < MOST_NODES:
            raise unreadable(SOURCE, f"a range of nodes is '{text}'")
        numbers += (f"{number:0{len(first)}}" for number in range(int(first), last + 1))
    return numbers
