"""Plans on real processes: all collectives, disagreeing ranks, wrong worlds, processes that die."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.save import make_plan, save_plan
from irc.plan.schema import Start
from irc.runtime import launch
from irc.runtime.launch import run_plan
from irc.trace.read import read_trace
from tests.plan.programs import build_plan, rank_environment, sharded, sharded_eager
from tests.simulate.test_traces import check_form

ROOT = Path(__file__).parents[2]
WORKER = "tests.plan.reference_worker"
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

FLOW = """
builtin.module {
  func.func @forward(
      %x: !flow.tensor<[8, 6], f32> {role = "input", name = "x"},
      %w1: !flow.tensor<[6, 10], f32> {role = "parameter", name = "w1"},
      %w2: !flow.tensor<[10, 6], f32> {role = "parameter", name = "w2"})
      -> (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>, !flow.tensor<[], i64>) {
    %a = flow.contract(%x, %w1) {spec = "mk,kn->mn", id = "n0"}
        : (!flow.tensor<[8, 6], f32>, !flow.tensor<[6, 10], f32>) -> !flow.tensor<[8, 10], f32>
    %h = flow.pointwise(%a) {fn = "relu", id = "n1"}
        : (!flow.tensor<[8, 10], f32>) -> !flow.tensor<[8, 10], f32>
    %y = flow.contract(%h, %w2) {spec = "mk,kn->mn", id = "n2"}
        : (!flow.tensor<[8, 10], f32>, !flow.tensor<[10, 6], f32>) -> !flow.tensor<[8, 6], f32>
    %z = flow.pointwise(%y, %y) {fn = "add", id = "n3"}
        : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
    %one = flow.constant() {value = array<i64: 1>, id = "n4"} : () -> !flow.tensor<[], i64>
    func.return %y, %z, %one
        : !flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>, !flow.tensor<[], i64>
  }
}
"""


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "w1": torch.randn(6, 10, generator=generator),
        "w2": torch.randn(10, 6, generator=generator),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plan = make_plan(build_plan(sharded(), predicted_s=1e-3), ir={"00-capture.mlir": FLOW})
    save_plan(tmp_path / "plan", plan, tensors=weights())
    return tmp_path / "plan"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def start(folder: Path, rank: int, store: Path, *words: str, world: int = 4) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", WORKER, str(folder), *words],
        env=rank_environment(rank, world, str(store)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_four_processes_agree_with_eager(folder: Path) -> None:
    report = run_plan(folder, worker=WORKER)
    assert report.comparison is not None
    assert report.comparison.relative < 1e-6
    assert report.ok and report.exit_code == 0
    assert len(report.seconds) == 4
    text = str(report)
    assert "mesh       data=2,tensor=2" in text
    assert "predicted  1 ms" in text
    assert text.endswith("OK")


def test_inputs_from_a_file_and_outputs_to_one(folder: Path, tmp_path: Path) -> None:
    import numpy as np

    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6)
    np.savez(tmp_path / "x.npz", x=x)
    out = tmp_path / "out.safetensors"
    words = [f"--inputs={tmp_path / 'x.npz'}", f"--save={out}", "--compare"]
    words.append(f"--trace={tmp_path / 'trace.json'}")
    ranks = [start(folder, rank, tmp_path / "store", *words) for rank in range(4)]
    texts = [process.communicate(timeout=60) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4, texts
    assert texts[0][0].endswith("OK\n")
    outputs = load_file(out)
    expected = sharded_eager(torch.from_numpy(x), *weights().values())
    for name, value in zip(("y0", "y1", "y2"), expected, strict=True):
        torch.testing.assert_close(outputs[name], value)
    trace = read_trace(tmp_path / "trace.json")
    check_form(trace)
    assert trace.notes["clocks"] == "one machine, one clock"
    starts = [a for a in load_plan(folder).plan.actions if isinstance(a, Start)]
    for rank in range(4):
        own = [event for event in trace.events if event.rank == rank]
        for axis in ("data", "tensor"):
            ops = [e.label.name for e in own if e.track == f"comm {axis}"]
            assert ops
            assert set(ops) <= {a.op for a in starts if a.attrs["axis"] == axis}
        waits = {e.label.id for e in own if e.kind in ("exposed collective", "straggler")}
        assert len(waits) > len(starts) // 2
        assert "model.py:15" in {e.label.line for e in own}


def test_ranks_that_disagree_all_end_and_name_each_other(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_plan(other, make_plan(build_plan(sharded())), tensors=weights())
    begin = time.monotonic()
    places = [folder, tmp_path / "missing", other, folder]
    ranks = [start(place, rank, tmp_path / "store") for rank, place in enumerate(places)]
    texts = [process.communicate(timeout=60)[1] for process in ranks]
    assert time.monotonic() - begin < 30
    assert [process.returncode for process in ranks] == [2] * 4
    assert "error[plan-missing]" in texts[1]
    for rank in (0, 2, 3):
        assert "error[plan-hash-mismatch]" in texts[rank]
        assert "ranks 0, 3: plan " in texts[rank]
        assert "rank 1: no plan that can be read" in texts[rank]
        assert "rank 2: plan " in texts[rank]
    assert not any("Traceback" in text for text in texts)


@pytest.mark.slow
def test_another_number_of_processes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(IrcError, match=r"for 4 ranks .*, and 2 were started"):
        run_plan(folder, nproc=2, worker=WORKER)
    ranks = [start(folder, rank, tmp_path / "store", world=2) for rank in range(2)]
    for process in ranks:
        assert "error[world-size]" in process.communicate(timeout=60)[1]
        assert process.returncode == 2


@pytest.mark.slow
def test_an_error_of_a_rank_is_the_error_of_the_run(folder: Path, tmp_path: Path) -> None:
    (folder / "weights.safetensors").write_bytes(b"\x00" * 20)
    with pytest.raises(IrcError, match="it has 20 bytes") as caught:
        run_plan(folder, worker=WORKER)
    assert caught.value.code == "plan-corrupt"
    assert not processes_of(folder)


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_is_reported(folder: Path) -> None:
    with pytest.raises(IrcError, match=r"rank-lost.*rank 2 was killed by signal 9"):
        run_plan(folder, worker="tests.distributed.dying_worker")
    assert not processes_of(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_process_is_left_after_an_interrupt(folder: Path, number: int) -> None:
    code = (
        "import signal, sys; from irc.runtime.launch import run_plan\n"
        # A shell's background job is born with it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: run_plan(sys.argv[1], worker='tests.distributed.sleeping_worker')\n"
        "except KeyboardInterrupt: sys.exit(130)"
    )
    temporary = folder.parent / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], env={**os.environ, "TMPDIR": str(temporary)}
    )
    until(lambda: len(list(temporary.glob("irc-run-*/asleep-*"))) == 4)
    process.send_signal(number)
    assert process.wait(30) == 130
    until(lambda: not processes_of(folder))
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_workers_end_when_their_launcher_is_killed(folder: Path) -> None:
    place = folder.parent
    command = launch.torchrun_command(4, place, "tests.distributed.sleeping_worker", [str(folder)])
    environment = launch.worker_environment(place, 4)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: len(list(place.glob("asleep-*"))) == 4)
    process.kill()
    process.wait()
    until(lambda: not processes_of(folder))


def processes_of(folder: Path) -> list[int]:
    """Processes whose command names the plan, but for this one."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                processes.append(int(entry.name))
    return processes


def until(condition, seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def joining(tmp_path: Path, fails: str) -> list[tuple[int, str, str]]:
    """Return exit status, output and errors of four processes that join as they go."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.joining_program", fails],
            env=rank_environment(rank, 4, str(tmp_path / "store")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [process.communicate(timeout=60) for process in ranks]
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, said, strict=True)]


def test_a_program_that_compiles_as_it_goes(tmp_path: Path) -> None:
    """irc.compile under torchrun: rank 0 compiles, all run."""
    for status, out, errors in joining(tmp_path, "no"):
        assert out.splitlines() == ['{"close": true}', '{"left": true}'], errors
        assert status == 0


def test_a_plan_that_rank_0_cannot_make_fails_everywhere(tmp_path: Path) -> None:
    first, *others = joining(tmp_path, "yes")
    assert "no plan today" in first[2]
    assert all("rank 0 could not compile" in errors for _, _, errors in others)


def test_an_error_of_one_rank_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    """It does not wait for collectives that will not come, nor do they for it."""
    endings = joining(tmp_path, "late")
    assert [status for status, _, _ in endings] == [1] * 4, endings
    assert "ValueError: an error of the program's own" in endings[2][2]
    assert endings[2][1].splitlines() == ['{"close": true}', '{"left": false}']
