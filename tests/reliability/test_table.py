"""The table of this folder's README names every test, and only tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^\| ([SR]\d\d) \| .+ \| `(test_\w+\.py)::(test_\w+)` \|$", re.MULTILINE)
DEFINED = re.compile(r"^def (test_([sr]\d\d)_\w+)", re.MULTILINE)


def rows() -> dict[str, tuple[str, str]]:
    """Return the file and the test of each id that the README lists."""
    text = (HERE / "README.md").read_text(encoding="utf-8")
    return {name: (file, test) for name, file, test in ROW.findall(text)}


def test_each_test_has_a_row() -> None:
    tests = {
        number.upper(): (path.name, name)
        for path in HERE.glob("test_*.py")
        for name, number in DEFINED.findall(path.read_text(encoding="utf-8"))
    }
    assert rows() == tests
