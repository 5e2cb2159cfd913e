"""Reads the matrix that ``nvidia-smi topo -m`` prints.

A row and a column stand for each GPU and each network card; a cell says what joins two of them:
``NV18`` is 18 NVLinks, ``PIX``, ``PXB``, ``PHB``, ``NODE`` and ``SYS`` are PCIe, farther and
farther apart. Behind NVSwitches each pair has all links of a GPU; where GPUs are wired to each
other, a GPU's links are divided among its peers.
"""

from __future__ import annotations

import re
from collections import Counter

from irc.cluster.imports.node import Node, unreadable

SOURCE = "what nvidia-smi topo -m printed"
CELL = re.compile(r"X|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS|SOC|C2C")
MOST_LINKS = 18
"""NVLinks of a GPU, of all kinds so far."""
HELP = "save it with: nvidia-smi topo -m > node.txt"


def is_matrix(text: str) -> bool:
    """Whether a text looks like the matrix."""
    return re.search(r"^\s*GPU0\s+X\b", text, re.MULTILINE) is not None


def read_matrix(text: str) -> Node:
    """Return the node that a matrix describes; it names no kind of GPU and no speed of a port.

    Raises:
        IrcError: ``cluster-import``.
    """
    # Where a terminal is the reader, the heads are underlined.
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    head = next((line.split() for line in lines if line.split()[0] == "GPU0"), list[str]())
    heads = [word for word in head if re.fullmatch(r"(GPU|NIC|mlx5_)[0-9]+", word)]
    rows = [line.split() for line in lines if re.match(r"\s*GPU[0-9]+\s+(X|[A-Z])", line)]
    rows = [row for row in rows if len(row) > 1 and CELL.fullmatch(row[1])]
    gpus = sum(word.startswith("GPU") for word in heads)
    if not gpus or len(rows) != gpus:
        raise unreadable(
            SOURCE, f"its matrix has {gpus} columns and {len(rows)} rows of GPUs", HELP
        )
    wires: dict[tuple[int, int], int] = {}
    for number, row in enumerate(rows):
        if row[0] != f"GPU{number}" or len(row) <= gpus or row[1 + number] != "X":
            raise unreadable(SOURCE, f"row {number} of the matrix is {' '.join(row)}", HELP)
    for number, row in enumerate(rows):
        cells = row[1 : 1 + gpus]
        for other in range(number + 1, gpus):
            if CELL.fullmatch(cells[other]) is None:
                raise unreadable(SOURCE, f"row {number} has a cell '{cells[other]}'", HELP)
            if cells[other] != rows[other][1 + number]:
                raise unreadable(
                    SOURCE, f"GPU{number} and GPU{other} differ about each other", HELP
                )
            if cells[other].startswith("NV"):
                wires[number, other] = int(cells[other][2:])
    cards = sum(not word.startswith("GPU") for word in heads)
    if switched := _switched(wires, gpus):
        return Node(SOURCE, gpus, switched=switched, ports=(None,) * cards)
    return Node(SOURCE, gpus, wires=wires, ports=(None,) * cards)


def _switched(wires: dict[tuple[int, int], int], gpus: int) -> int:
    """Return the links of a GPU to switches: every pair has as many, more than can be divided.

    Of two GPUs it is all the same: the one pair has them.

    >>> _switched({(0, 1): 18, (0, 2): 18, (1, 2): 18}, 3), _switched({(0, 1): 4}, 2)
    (18, 4)
    >>> _switched({(0, 1): 4, (0, 2): 4, (1, 2): 4}, 3)
    0
    """
    counts, used = set(wires.values()), Counter[int]()
    for pair, count in wires.items():
        used.update(dict.fromkeys(pair, count))
    everywhere = len(wires) == gpus * (gpus - 1) // 2 and len(counts) == 1
    return counts.pop() if everywhere and (gpus == 2 or max(used.values()) > MOST_LINKS) else 0
