"""A mesh whose axis takes the ranks that there are, and the sizes that ranks share equally."""

from __future__ import annotations

import pytest

from irc.errors import IrcError
from irc.sharding.mesh import equal_shares, fit_mesh, parse_mesh


@pytest.mark.parametrize(
    ("text", "ranks", "wanted"),
    [
        ("data=auto", 3, "data=3"),
        ("data=auto", 1, "data=1"),
        (" tensor=2, data = auto ", 6, "tensor=2,data=3"),
        ("pipe=2,data=auto,tensor=2", 8, "pipe=2,data=2,tensor=2"),
        ("data=2,tensor=2", 3, "data=2,tensor=2"),
        ("", 3, ""),
        ("auto=2,data=auto", 4, "auto=2,data=2"),
    ],
)
def test_an_axis_takes_the_rest(text: str, ranks: int, wanted: str) -> None:
    assert fit_mesh(text, ranks) == wanted


@pytest.mark.parametrize(
    ("text", "ranks", "code", "said"),
    [
        ("data=auto,tensor=2", 3, "world-size", "3 processes were started"),
        ("data=auto,tensor=2", 3, "world-size", "start 2 or 4, or choose"),
        ("data=auto,tensor=2", 1, "world-size", "start 2, or choose"),
        ("data=auto,pipe=auto", 4, "mesh-syntax", "'data' and 'pipe' would both take"),
        ("auto=2,data=auto,", 4, "mesh-syntax", "'auto=2,data=auto,'"),
        ("data=auto,tensor", 4, "mesh-syntax", "'tensor' is not of the form"),
        ("data=auto,tensor=0", 4, "mesh-syntax", "sizes start at 1"),
        ("data=auto,data=2", 4, "mesh-syntax", "names repeat: data"),
        ("=auto", 4, "mesh-syntax", "identifier"),
    ],
)
def test_what_cannot_be_fitted(text: str, ranks: int, code: str, said: str) -> None:
    with pytest.raises(IrcError) as caught:
        parse_mesh(fit_mesh(text, ranks))
    assert caught.value.code == code
    assert said in f"{caught.value}"


def test_where_no_launcher_says_how_many_ranks_there_are() -> None:
    with pytest.raises(IrcError, match="here, write a number"):
        parse_mesh("data=auto")


@pytest.mark.parametrize(
    ("samples", "ranks", "said"),
    [
        (12, 5, "10 or 15 samples for 5, or 4 or 6 ranks for 12"),
        (5, 2, "4 or 6 samples for 2, or 1 or 5 ranks for 5"),
        (3, 4, "4 samples for 4, or 3 ranks for 3"),
        (1, 2, "2 samples for 2, or 1 rank for 1"),
    ],
)
def test_what_would_do_is_said(samples: int, ranks: int, said: str) -> None:
    assert equal_shares(samples, ranks) == said
