"""Reports on a terminal, and piped."""

import pytest

from irc.report.terminal import dressed, for_stdout

REPORT = "plan  p1\nmesh  two\n\nArguments\n  a long row\n\nCollectives\n  none"


def test_titles_are_bold_and_rows_are_not() -> None:
    shown = dressed(REPORT, 80, color=True)
    assert "\n\n\x1b[1mArguments\x1b[0m\n  a long row" in shown
    assert "\nmesh  two\n" in shown
    assert dressed(REPORT, 80, color=False) == REPORT


def test_rows_end_at_the_edge_and_say_so() -> None:
    lines = dressed(REPORT, 9, color=False).splitlines()
    assert lines[4] == "  a long~"
    assert "less -S" in lines[-1]
    assert max(map(len, lines[:-1])) <= 11


def test_a_pipe_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert for_stdout(REPORT) == REPORT
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "9")
    assert for_stdout(REPORT) == dressed(REPORT, 9, color=False)


def test_what_stands_at_the_margin_is_wrapped() -> None:
    line = "time        " + "many words " * 5
    assert dressed(line.strip(), 40, color=False) == (
        "time        many words many words many\n            words many words many words"
    )
