"""The map of the house, irc/README.md: its picture, its road and its lists are the code's."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from irc.dialects.flow_ops import Flow
from irc.ops import names
from tests.house import MAP, ROOT, circles, imports, rooms, with_picture

ROAD = """
import sys

import torch
from torch import nn

import irc

entered = {}


def enter(frame, event, _):
    code = frame.f_code
    if event == "call" and not code.co_name.startswith("<"):
        entered.setdefault(code.co_filename)


def compile(width):
    model = nn.Sequential(nn.Linear(width, 8), nn.GELU())
    x = torch.randn(4, width)
    with torch.no_grad():
        fast = irc.compile(model)
        fast(x), fast(x)


compile(8)  # what is imported on the way is no part of it
sys.setprofile(enter)
compile(24)
sys.setprofile(None)
print(*entered, sep="\\n")
"""


def part(name: str) -> str:
    """Return what stands between a mark of the map and its end."""
    text = MAP.read_text().partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    assert text, name
    return text


def test_the_picture_is_that_of_the_imports() -> None:
    text = MAP.read_text()
    assert text == with_picture(text), "python -m tests.house draws it anew"


def test_no_file_imports_another_in_a_circle() -> None:
    assert circles(imports()) == []


def test_rooms_that_import_each_other() -> None:
    """These two circles of rooms are known; others are not to come."""
    assert sorted(map(sorted, circles(rooms()))) == [
        ["dialects", "ops"],
        ["frontends", "interpret", "runtime"],
    ]


def test_a_planted_circle_is_seen() -> None:
    graph = imports().copy()
    graph.add_edge("irc.errors", "irc.calls.compiled")
    assert any({"irc.errors", "irc.calls.compiled"} <= each for each in circles(graph))


def test_links_lead_to_files() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", MAP.read_text()):
        assert (MAP.parent / link).resolve().exists(), link


def test_the_road_is_the_one_that_a_call_goes() -> None:
    """Each step begins with a file that is entered after that of the step before."""
    done = subprocess.run(
        [sys.executable, "-c", ROAD], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    entered = [str(Path(line).resolve()) for line in done.stdout.splitlines()]
    steps = re.findall(r"^\d+\. \[[^]]+\]\(([^)]+\.py)\)", part("road"), re.MULTILINE)
    assert len(steps) == len(re.findall(r"^\d+\. ", part("road"), re.MULTILINE)) > 10
    places = [entered.index(str((MAP.parent / step).resolve())) for step in steps]
    assert places == sorted(places), list(zip(steps, places, strict=True))
    for file in re.findall(r"\]\(([^)]+\.py)\)", part("road")):
        if "auto_shard" not in file:  # on a mesh alone
            assert str((MAP.parent / file).resolve()) in entered, file


ADDITIONS = re.findall(r"^\| [^|]+ \| `([^`]+)` \| (.+) \|$", part("additions"), re.MULTILINE)


@pytest.mark.parametrize(("name", "files"), ADDITIONS, ids=[name for name, _ in ADDITIONS])
def test_an_addition_touches_these_files(name: str, files: str) -> None:
    """Those that have the name in quotes, and the one that is called by it."""
    assert touched(name) == set(re.findall(r"`([^`]+\.py)`", files))


# Those that no kernel is written by hand for, and no pass treats by itself.
ORDINARY = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "digamma", "erfinv", "exp2",
    "hypot", "log10", "log2", "sinh",
)  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_a_pointwise_function_stands_in_one_file(name: str) -> None:
    (file,) = touched(name)
    assert file.startswith("irc/ops/functions/")


def touched(name: str) -> set[str]:
    """Return the files of the product that have a name in quotes, or that are called by it."""
    quoted = re.compile(rf"[\"'](flow\.)?{re.escape(name)}[\"']")
    own = f"{name.replace('-', '_')}.py"
    return {
        str(path.relative_to(ROOT))
        for top in ("irc", "passes", "backends")
        for path in (ROOT / top).rglob("*.py")
        if not path.is_relative_to(ROOT / "irc" / "passes")
        and not path.is_relative_to(ROOT / "irc" / "backends")
        and (path.name == own or quoted.search(path.read_text()))
    }


def test_names_without_the_ir_are_those_of_ops() -> None:
    stated = {value for key, value in vars(names).items() if key.isupper()}
    of_flow = {name for name in stated if name.startswith("flow.")}
    assert of_flow and of_flow <= {op.name for op in Flow.operations}


EXEMPT = ("dialects", "ops", "passes", "backends")
"""Where ops are defined; the last two are links to the folders beside ``irc``."""
READS = (".inputs[", ".plain[")
"""Reads by a place or a key: an op of the IR is read by its names (:mod:`irc.dialects.fields`)."""
NAME = re.compile(r"(flow\.|irc::)[\w.]*")
"""Names of ops. What runs without the IR, where xDSL need not be there
(tests/native/test_clean.py), has those of :mod:`irc.ops.names`."""


LONGEST = 500
"""Lines of a file of the product; one of 400 is to be thought about."""


def test_no_file_is_too_long() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for top in ("irc", "passes", "backends")
        for path in (ROOT / top).rglob("*.py")
        if path.resolve() == path
    }
    assert len(lengths) > 500
    assert {name: count for name, count in lengths.items() if count > LONGEST} == {}


def product() -> Iterator[Path]:
    """Yield the files of the product in which no ops are defined."""
    for top in ("irc", "passes", "backends"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if not any(path.is_relative_to(ROOT / "irc" / room) for room in EXEMPT):
                yield path


@pytest.mark.parametrize("read", READS)
def test_ops_are_read_by_name(read: str) -> None:
    assert [path for path in product() if read in path.read_text()] == []


def test_no_op_is_named_as_text() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value}"
        for path in product()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and NAME.fullmatch(node.value)
    ]
    assert places == []
