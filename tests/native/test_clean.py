"""Programs run where irc's dependencies are not: numpy is there, and nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import irc
from irc.runtime.native import processor

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)
ROOT = Path(__file__).parents[2]
ABSENT = ("xdsl", "highspy", "lark", "onnx", "llvmlite", "networkx", "rich", "safetensors",
          "ml_dtypes")  # fmt: skip
BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""
"""An interpreter in which packages are not installed."""
RUN = """
import numpy as np, irc.runtime
program = irc.runtime.load({plan!r}, threads={threads})
with np.load({inputs!r}) as given:
    found = program.run({{name: given[name] for name in given.files}})
np.savez({outputs!r}, *found)
print(sorted(name for name in sys.modules if name in {absent!r}))
"""


def run_clean(
    plan: Path,
    inputs: dict[str, np.ndarray],
    *,
    absent: tuple[str, ...] = (*ABSENT, "torch"),
    threads: int = 2,
) -> list[np.ndarray]:
    """Run a program in such an interpreter."""
    names = {"plan": str(plan), "inputs": f"{plan}.in.npz", "outputs": f"{plan}.out.npz"}
    np.savez(names["inputs"], **inputs)
    code = BLOCKED.format(absent=absent) + RUN.format(absent=absent, threads=threads, **names)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
    with np.load(names["outputs"]) as arrays:
        return [arrays[name] for name in arrays.files]


def exported(module: nn.Module, arguments: tuple[torch.Tensor, ...], out: Path) -> str:
    return irc.export_plan(module.eval(), arguments, out=out, native="x86-64-v3,x86-64-v4")


def test_a_program_of_kernels_needs_numpy_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Flatten(), nn.Linear(720, 7))
    x = torch.randn(2, 3, 8, 8)
    assert "numpy alone" in exported(module, (x,), tmp_path / "plan")
    (name,) = [p.name for p in irc.runtime.load(tmp_path / "plan").inputs]
    (got,) = run_clean(tmp_path / "plan", {name: x.numpy()})
    (want,) = irc.load(tmp_path / "plan")(x)
    assert np.array_equal(got, want.numpy())


class Ordered(nn.Module):
    """An op that torch runs, between kernels, on a view with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, r = torch.linalg.qr((x.exp() @ self.weight).transpose(1, 2))
        return q.relu() + 1, r


def test_steps_of_torch_need_torch_and_nothing_else(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Ordered(), torch.randn(2, 5, 6)
    text = exported(module, (x,), tmp_path / "plan")
    assert "needs       torch runs 1 aten::linalg_qr" in text
    got = run_clean(tmp_path / "plan", {"x": x.numpy()}, absent=ABSENT)
    for a, b in zip(got, irc.load(tmp_path / "plan")(x), strict=True):
        assert np.array_equal(a, b.numpy())
    code = BLOCKED.format(absent=(*ABSENT, "torch")) + RUN.format(
        absent=(), plan=str(tmp_path / "plan"), inputs="", outputs="", threads=2
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "error[package-missing]: the program has 1 steps that torch runs: aten::linalg_qr" in (
        done.stderr
    )


def test_the_command_prints_what_a_program_costs(tmp_path: Path) -> None:
    module, x = nn.Linear(8, 3), torch.randn(5, 8)
    exported(module, (x,), tmp_path / "plan")
    np.savez(tmp_path / "in.npz", input=x.numpy())

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "irc.runtime", str(tmp_path / "plan"), *words],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = command("--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz"))
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert words == ["program", "import", "load", "size", "resident", "call"], done.stderr
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["0"], module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    figures: dict[str, Any] = json.loads(command("--json", "--threads", "1").stdout)
    assert figures["threads"] == 1
    assert figures["resident_bytes"] > figures["own_bytes"] > 0
    wrong = command("--hash", "123456789")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error[plan-hash-mismatch]")


@pytest.mark.slow
def test_an_environment_with_numpy_alone(tmp_path: Path) -> None:
    """Irc is installed without its dependencies; numpy is that of this environment."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(33, 64), nn.GELU(), nn.Linear(64, 5)), torch.randn(3, 33)
    exported(module, (x,), tmp_path / "plan")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    for package in ("numpy", "numpy.libs"):
        source = Path(np.__file__).parents[1] / package
        if source.exists():
            (site / package).symlink_to(source)
    # A build writes into its folder: not into the checkout.
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "build", "*.egg-info", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
    build = [sys.executable, *install[1:], "--no-deps", "--no-build-isolation", "--target", site]
    subprocess.run([*build, source], check=True, cwd=tmp_path)
    code = (
        "import irc, irc.runtime, numpy as np\n"
        f"program = irc.runtime.load({str(tmp_path / 'plan')!r})\n"
        "np.save('y.npy', program.run([np.load('x.npy')])[0])\n"
        "print(irc.__file__)"
    )
    np.save(tmp_path / "x.npy", x.numpy())
    done = subprocess.run(
        [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), module(x).detach(), rtol=1e-5, atol=1e-6
    )
