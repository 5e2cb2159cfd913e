"""``IRC_LOGS`` prints facts as they happen, by loggers that programs can route."""

# pyright: basic
from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import irc
from irc import logs
from irc.errors import IrcError
from irc.logs import TOPIC_NAMES, topics_of
from irc.record import TOPICS

NOTES = """
from irc.record import FallBack, Record, Recompile
record = Record()
record.note(FallBack("break", "Python runs a part of 'f'", "a branch", "net.py:3"))
record.note(Recompile("'x' has dtype f64"))
"""


@pytest.fixture
def levels() -> Iterator[None]:
    """Loggers are the process's: they are put back."""
    yield
    for name in TOPIC_NAMES:
        logging.getLogger(f"irc.{name}").setLevel(logging.NOTSET)
    logs._read = None


@pytest.mark.parametrize(
    ("value", "told"),
    [("fallback", ["fallback"]), ("all", ["fallback", "recompile"]), ("graph", []), ("", [])],
)
def test_a_topic_is_printed_to_stderr_a_line_a_fact(value: str, told: list[str]) -> None:
    env = {**os.environ, "IRC_LOGS": value}
    ended = subprocess.run(
        [sys.executable, "-c", NOTES], env=env, capture_output=True, text=True, check=True
    )
    lines = ended.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"irc.{name}" for name in told]
    assert not told or lines[0].endswith("break: Python runs a part of 'f': a branch --> net.py:3")


def test_an_unknown_topic_is_refused_with_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("IRC_LOGS", "graph,falback")
    with pytest.raises(IrcError, match="no topic 'falback'") as caught:
        irc.compile(torch.relu)
    assert caught.value.code == "option-value" and "'fallback'" in caught.value.help


def test_every_kind_of_fact_has_a_topic() -> None:
    assert {*TOPICS.values(), "fusion"} == set(topics_of("all")) == set(TOPIC_NAMES)
    assert topics_of(" graph , graph,") == ("graph",)


@pytest.mark.usefixtures("levels")
def test_a_program_routes_what_torch_compile_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("IRC_LOGS", "all")
    torch._dynamo.reset()

    @torch.compile(backend="irc")
    def function(x: Tensor) -> Tensor:
        return torch.linalg.qr(x.exp()).R

    function(torch.eye(3))
    by = {name: [r.getMessage() for r in caplog.records if r.name == f"irc.{name}"]
          for name in TOPIC_NAMES}  # fmt: skip
    assert any("qr" in text and "test_logs.py:" in text for text in by["fallback"])
    assert any("exp (" in text for text in by["fusion"])
    assert any("flow.pointwise" in text for text in by["graph"])
