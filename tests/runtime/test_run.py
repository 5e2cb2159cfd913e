"""`irc run` on one device, in this process: what it reports, and its exit status."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import irc.cli
from irc.errors import IrcError
from irc.plan.save import make_plan, save_plan
from irc.runtime.compare import Comparison
from irc.runtime.processes import place_of
from irc.runtime.report import RunReport
from tests.plan.programs import Task, build_plan, mlp

FLOW = """
func.func @forward(%x: !flow.tensor<[5, 6], f32> {role = "input", name = "x"},
    %w: !flow.tensor<[5, 6], f32> {role = "parameter", name = "w"}) -> !flow.tensor<[5, 6], f32> {
  %0 = flow.pointwise(%x, %w) {fn = "add"}
      : (!flow.tensor<[5, 6], f32>, !flow.tensor<[5, 6], f32>) -> !flow.tensor<[5, 6], f32>
  func.return %0 : !flow.tensor<[5, 6], f32>
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plan that adds a weight with a library op, beside a model that does so too."""
    return saved(tmp_path / "plan", FLOW)


def saved(place: Path, text: str | None) -> Path:
    from irc.dialects import flow
    from irc.dialects.types import TensorType

    t = Task()
    x, w = t.argument("input", "x", (5, 6)), t.argument("parameter", "w", (5, 6))
    (y,) = t.library(flow.PointwiseOp, [x, w], TensorType.of((5, 6)), fn="add")
    plan = make_plan(
        build_plan(t.finish(y), predicted_s=2e-6), ir={"00-capture.mlir": text} if text else {}
    )
    save_plan(place, plan, tensors={"w": torch.ones(5, 6)})
    return place


def test_numbers_that_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert irc.cli.main(["run", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "mesh       one device"
    assert shown[1].startswith("ranks      1, ")
    assert shown[3].startswith("predicted  2 us")
    assert "relative 0.0e+00" in shown[4] or "e-0" in shown[4]
    assert shown[-1] == "OK"


def test_numbers_that_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "plan", FLOW.replace('"add"', '"sub"'))
    assert irc.cli.main(["run", str(folder)]) == 1
    assert capsys.readouterr().out.endswith("FAIL\n")
    assert irc.cli.main(["run", str(folder), "--no-compare"]) == 0


def test_without_the_model_nothing_is_claimed(tmp_path: Path) -> None:
    from irc.runtime.launch import run_plan

    report = run_plan(saved(tmp_path / "plan", None))
    assert report.comparison is None
    assert "OK" not in str(report)


def test_another_number_of_processes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert irc.cli.main(["run", str(folder), "--nproc", "3"]) == 2
    assert "error[world-size]" in capsys.readouterr().err


def test_loading_runs_no_code_of_the_plan(folder: Path) -> None:
    """No artefact is unpickled, compiled as Python or given to a shell."""
    import subprocess
    import sys

    code = """
import sys
from dataclasses import replace
from pathlib import Path
import irc.runtime.worker
seen = []
watched = ("pickle.find_class", "os.system", "subprocess.Popen", "socket.bind", "marshal.loads")
sys.addaudithook(lambda event, args: seen.append(event) if event in watched else None)
from irc.runtime.weights import load_weights
from irc.plan.load import load_plan
loaded = load_plan(sys.argv[1])
load_weights(loaded, 0)
print(seen)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    assert set(eval(done.stdout)) <= {"marshal.loads"}  # of Python's own compiled modules


@pytest.mark.parametrize(
    ("relative_errors", "expected"),
    [
        ((1e-6, 1e-7), True),
        ((1e-3, 1e-7), False),
        ((1e-3, 4e-4), True),
        ((float("inf"), 0.0), False),
    ],
)
def test_what_is_ok(relative_errors: tuple[float, float], expected: bool) -> None:
    """Rounding is: 1e-4, or as bad as a few times eager itself where that is in half precision."""
    assert Comparison(0.0, *relative_errors).ok is expected


def test_a_report_goes_through_json() -> None:
    report = RunReport("data=2", 3, (0.25, 1e-5), 0.1, Comparison(1.0, 0.5, 0.25))
    assert RunReport.from_json(report.to_json()) == report
    assert "rank 1     10 us" in str(report)
    assert "0.40 of the slowest rank" in str(report)
    assert "100 ms on 8xH100" in str(replace(report, cluster="8xH100"))


@pytest.mark.parametrize("rank", ["4", "-1", "x", ""])
def test_a_launcher_that_makes_no_sense(rank: str) -> None:
    with pytest.raises(IrcError, match="world-size"):
        place_of({"RANK": rank, "WORLD_SIZE": "4"})


def test_a_plan_of_kernels_runs_compiled(tmp_path: Path) -> None:
    """The whole way with the real backend."""
    from irc.backends.cpu import emit
    from irc.runtime.executors import executor_of
    from tests.plan.programs import mlp_eager

    module = mlp()
    kernels = {f"{k.sym_name.data}.ll": emit(k) for k in module.ops if k.name == "task.kernel"}
    plan = make_plan(build_plan(module), kernels=kernels)
    tensors = {"up.weight": torch.randn(6, 9), "down.weight": torch.randn(9, 6)}
    x = torch.randn(5, 6)
    (y,) = executor_of(plan, tensors, num_threads=2)(x)
    torch.testing.assert_close(y, mlp_eager(x, *tensors.values()))
