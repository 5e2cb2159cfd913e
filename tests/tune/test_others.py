"""Times that were taken beside other programs are not kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from irc.cluster.host import num_cores
from irc.errors import IrcError
from irc.tune import others
from irc.tune.others import Others, others_since


@contextmanager
def spinning() -> Iterator[None]:
    """Another program that computes: started by somebody else, so that nobody waits for it."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        try:
            yield
        finally:
            program.kill()


def seconds(tmp_path: Path, user: int, steal: int = 0) -> Path:
    path = tmp_path / "stat"
    path.write_text(f"cpu  {100 * user} 0 0 98765 321 0 0 {100 * steal} 0 0\n", "ascii")
    return path


def test_what_others_compute_is_counted_and_own_work_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others.os, "sysconf", lambda _: 100)
    clock = iter((10.0, 20.0))
    own = iter((3.0, 7.0))
    monkeypatch.setattr(others.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(others, "_own_s", lambda: next(own))
    monkeypatch.setattr(others, "STAT", seconds(tmp_path, 100))
    since = others_since()
    monkeypatch.setattr(others, "STAT", seconds(tmp_path, 115, steal=4))
    assert since() == Others(1.5)  # 19 s in 10 s, 4 of them here


def test_a_spinning_program_is_seen() -> None:
    if not others.STAT.exists():
        pytest.skip("no /proc/stat")
    with spinning():
        time.sleep(0.2)
        since = others_since()
        time.sleep(1.0)
        beside = since()
    assert beside.cores is not None
    assert beside.cores > 0.4


def test_who_says_nothing_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "STAT", tmp_path / "nothing")
    beside = others_since()()
    assert beside == Others(None)
    assert not beside.busy
    beside.check("this is")


def test_the_refusal_says_how_much() -> None:
    Others(0.2).check("this is")
    with pytest.raises(IrcError, match=f"used {num_cores()}.0 of {num_cores()} cores") as error:
        Others(float(num_cores())).check("this is")
    assert error.value.code == "machine-busy"
    assert "--anyway" in str(error.value)
