"""Nothing from outside breaks out of a comment or a name."""

import pytest

from irc.kernels.source import Source, identifier, quoted, wrapped

NASTY = [
    "a\n#include <x>",
    "end */ int x;",
    "tail \\",
    "trigraph ??/",
    "\x7f\x1b[2J",
    '"""\nimport os',
    "größe",
]


@pytest.mark.parametrize("name", NASTY)
def test_a_name_in_a_comment_is_one_printable_line(name: str) -> None:
    shown = quoted(name)
    assert shown.isascii() and shown.isprintable()
    assert not shown.endswith("\\") and "??/" not in shown


def test_a_long_name_is_cut() -> None:
    assert len(quoted("x" * 1000)) < 100


@pytest.mark.parametrize("name", ["if", "tl", "k-1", "größe", "x" * 500, "3", ""])
def test_identifiers_are_valid_and_distinct(name: str) -> None:
    symbol = identifier(name)
    assert symbol.isidentifier() and symbol.isascii() and symbol.startswith("kernel_")
    assert identifier(name + "-") != symbol


def test_lines_are_indented_and_wrapped() -> None:
    source = Source("  ")
    with source.block("f() {", "}"):
        source.line("a;\nb;")
    assert str(source) == "f() {\n  a;\n  b;\n}\n"
    assert wrapped(["aaaa", "bbbb", "cccc"], 10) == ["aaaa, bbbb", "cccc"]
