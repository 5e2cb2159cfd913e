"""R06 and R07: ranks that differ, and ranks that do not go on."""

# pyright: basic

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from irc.cli import main
from irc.cluster import process
from irc.errors import IrcError
from irc.runtime import watch
from irc.runtime.launch import run_plan, torchrun_command
from irc.runtime.processes import place_of

ROOT = Path(__file__).parents[2]
LIMIT_S = 30


def torchrun(what: str) -> tuple[str, float]:
    """Run the program on two ranks; return what they print, and the seconds from the fault on."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("-m", "tests.reliability.ranks_program", what),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PYTHONPATH": str(ROOT), "IRC_RANK_TIMEOUT": "5"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    text = done.stdout + done.stderr
    assert (done.returncode == 0) == (what == "ok"), text
    return text, time.time() - max(map(float, re.findall(r"begins ([0-9.]+)", text)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "word"), [("source", "the model"), ("width", "the model"), ("options", "the options")]
)
def test_r06_ranks_with_different_programs_end_by_name(what: str, word: str) -> None:
    """Another source, size or option on a rank: all ranks say which, and end within 30 s."""
    text, seconds = torchrun(what)
    assert text.count("error[ranks-differ]: rank 1 would compile another program") == 2
    assert text.count(f"{word} of rank 1 is not that of the others") == 2
    assert "first call" not in text
    assert seconds < LIMIT_S


@pytest.mark.slow
@pytest.mark.parametrize("what", ["stop", "kill"])
def test_r07_a_rank_that_does_not_go_on_ends_the_run_by_name(what: str) -> None:
    """A rank that is stopped or killed: the others end within 30 s, and the run says which."""
    text, seconds = torchrun(what)
    assert text.count("first call") == 2
    assert "done" not in text.splitlines()
    assert seconds < LIMIT_S
    if what == "stop":
        assert re.search(r"error\[rank-lost\]: rank 1 is stopped \(process \d+ on ", text)
    else:
        assert re.search(r"rank +: 1 .*\n +exitcode +: -9", text)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ranks")
    (place / "net.py").write_text(
        "import torch\ndef build(): return torch.nn.Linear(8, 8), (torch.ones(4, 8),)\n"
    )
    out = place / "plan"
    assert main(["compile", f"{place / 'net.py'}:build", "-o", str(out), "--mesh", "data=2"]) == 0
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [("STOP", "rank 1 is stopped"), ("KILL", "rank 1 was killed by signal 9")],
)
def test_irc_run_names_the_rank(
    plan: Path, what: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRC_RANK_TIMEOUT", "5")
    monkeypatch.setenv("IRC_TEST_SIGNAL", what)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(IrcError, match=message) as caught:
        run_plan(plan, worker="tests.reliability.lost_worker")
    assert caught.value.code == "rank-lost"


def test_a_process_is_known_by_its_number_and_start() -> None:
    place = watch.own_place()
    assert watch.state_of(place) in ("R", "S")
    assert watch.state_of({**place, "start": "1"}) == process.GONE
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        start = process.started(child.pid)
        os.kill(child.pid, 19)
        until = time.monotonic() + 10
        while watch.state_of({"pid": child.pid, "start": start}) != process.STOPPED:
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
    assert watch.state_of({"pid": child.pid, "start": start}) == process.GONE


@pytest.mark.parametrize("text", ["soon", "1 s"])
def test_a_timeout_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRC_RANK_TIMEOUT", text)
    with pytest.raises(IrcError, match="no number of seconds"):
        watch.timeout_s()


@pytest.mark.parametrize("environment", [{"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "x"}])
def test_a_rank_count_that_makes_no_sense(environment: dict[str, str]) -> None:
    """A rank beyond the world, or that is no number, is refused before anything waits."""
    with pytest.raises(IrcError, match="make no sense"):
        place_of(environment)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net")
def test_s18_irc_run_listens_on_loopback_alone(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launcher and ranks listen on 127.0.0.1 alone, and meet under a random id."""
    monkeypatch.setenv("IRC_TEST_LISTENING", str(tmp_path / "listening.json"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run_plan(plan, worker="tests.reliability.listening_worker", compare=False)
    addresses = json.loads((tmp_path / "listening.json").read_text())
    assert addresses
    assert set(addresses) <= {"0100007F", "0" * 24 + "01000000"}  # 127.0.0.1, ::1
    commands = [torchrun_command(2, tmp_path, "worker", []) for _ in range(2)]
    ids = {command[command.index("--rdzv-id") + 1] for command in commands}
    assert len(ids) == 2
    assert all(command[command.index("--local-addr") + 1] == "127.0.0.1" for command in commands)


@pytest.mark.parametrize(("state", "is_ended"), [(process.STOPPED, True), ("S", False)])
def test_a_stopped_rank_is_ended_although_nobody_reads(
    state: str, is_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its launcher waits for it; one that goes on by then is left alone."""
    said: list[str] = []

    def tell(error: IrcError) -> None:
        said.append(error.message)
        raise BrokenPipeError

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(watch, "_tell", tell)
    monkeypatch.setattr(watch, "state_of", lambda place: state)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(os, "kill", lambda pid, number: said.append(f"{pid} gets {int(number)}"))
    looks = watch.Watch(dist.HashStore(), 0, 2, 1.0)
    with pytest.raises(SystemExit):
        looks._lose("rank 1 is stopped", {"pid": 7, "start": "0"})
    assert said == ["rank 1 is stopped", *(["7 gets 9"] if is_ended else [])]
