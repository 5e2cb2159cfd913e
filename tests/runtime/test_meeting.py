"""Processes of one start meet, whatever the starts before have left in the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from irc.errors import IrcError
from irc.runtime.meeting import name_of_start

WAITS = """
from torch._C._distributed_c10d import HashStore
from irc.runtime.meeting import name_of_start
print("waits", flush=True)
name_of_start(HashStore(), 0, 2, 60.0)
"""
"""Rank 0, whose other rank does not come."""


def met(store: Any, world: int) -> str:
    """Let so many processes meet, the last one first, and return what they agree on."""
    with ThreadPoolExecutor(world) as pool:
        names = [pool.submit(name_of_start, store, r, world, 10.0) for r in reversed(range(world))]
        (name,) = {each.result() for each in names}
    return name


def test_each_start_has_a_name_of_its_own() -> None:
    store: Any = HashStore()
    names = [met(store, world) for world in (4, 3, 3, 2, 4, 1)]
    assert len(set(names)) == len(names)


def test_a_start_that_was_broken_off() -> None:
    """Its questions and answers are in the store; a rank of it is gone."""
    store: Any = HashStore()
    with ThreadPoolExecutor() as pool:
        one = pool.submit(name_of_start, store, 1, 3, 10.0)
        with pytest.raises(IrcError, match="rank 2 did not come") as caught:
            name_of_start(store, 0, 3, 0.3)
    assert caught.value.code == "rank-lost"
    assert met(store, 3) != one.result()
    with pytest.raises(IrcError, match="rank 0 did not come"):
        name_of_start(store, 1, 3, 0.1)


@pytest.mark.parametrize(
    ("name", "has_it"),
    [
        ("WORLD_SIZE", True),
        ("MASTER_ADDR", True),
        ("MASTER_PORT", True),
        ("TORCHELASTIC_RUN_ID", False),
        ("IRC_STORE", False),
    ],
)
def test_a_stopped_rank_of_another_run_is_left_alone(name: str, has_it: bool) -> None:
    """Its shell has started both runs; they differ in one variable, or one has it alone."""
    rest = {k: v for k, v in os.environ.items() if k != name} | {"IRC_RANK_TIMEOUT": "0.1"}
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**rest, "RANK": "1", name: "8"}
    )
    try:
        os.kill(other.pid, signal.SIGSTOP)
        ended = subprocess.run(
            [sys.executable, "-c", WAITS.replace("60.0", "3.0")],
            env={**rest, **({name: "3"} if has_it else {}), "RANK": "0"},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert "rank 1 did not come" in ended.stderr
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_rank_that_is_stopped_on_its_way_is_named_and_ended() -> None:
    environment = {**os.environ, "WORLD_SIZE": "2", "IRC_RANK_TIMEOUT": "1"}
    late = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**environment, "RANK": "1"}
    )
    # A rank of another number, also stopped, is nobody's that is waited for.
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**environment, "RANK": "11"}
    )
    try:
        for each in (late, other):
            os.kill(each.pid, signal.SIGSTOP)
        start = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-c", WAITS],
            env={**environment, "RANK": "0"}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert time.monotonic() - start < 30
        assert ended.returncode == 1 and ended.stdout.startswith("waits")
        assert f"error[rank-lost]: rank 1 is stopped (process {late.pid} " in ended.stderr
        assert late.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for each in (late, other):
            each.kill()
            each.wait()
