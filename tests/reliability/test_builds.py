"""What holds on a bad day: R01 to R05 and R08 to R12."""

# pyright: basic
from __future__ import annotations

import ast
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import irc
from irc.cli import main
from irc.cluster import object_store
from irc.commands.demo_onnx import write_perceptron
from irc.errors import ExitCode
from irc.plan.load import load_plan
from tests.test_errors import test_every_code_in_the_source_has_a_page as codes_have_pages


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_perceptron(tmp_path / "model.onnx", batch=4, width=8, hidden=6)
    return tmp_path / "model.onnx"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def command(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "irc.cli", *words], cwd=cwd, capture_output=True, text=True,
        check=False, env={**os.environ, **variables},
    )  # fmt: skip


def test_r01_output_is_the_same_to_the_byte(model: Path, tmp_path: Path) -> None:
    """R01: whatever the hash seed, folder, locale, time zone and number of threads."""
    ways = (
        {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C", "OMP_NUM_THREADS": "1"},
        {
            "PYTHONHASHSEED": "9",
            "TZ": "Asia/Tokyo",
            "LC_ALL": "tr_TR.UTF-8",
            "OMP_NUM_THREADS": "2",
        },
    )
    plans = []
    for number, variables in enumerate(ways):
        place = tmp_path / f"place{number}" / ("x" * (number + 1))
        place.mkdir(parents=True)
        words = ("compile", str(model), "-o", "out", "--mesh", "data=2")
        cache = {"IRC_CACHE_DIR": str(place / "cache")}
        done = command(*words, cwd=place, **variables, **cache)
        assert done.returncode == 0, done.stderr
        plans.append(contents(place / "out"))
    assert plans[0] == plans[1]


def test_r02_writers_that_die_leave_whole_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R02: 16 processes write one entry, half are killed; each cut of a file reads as nothing."""
    monkeypatch.setenv("IRC_CACHE_DIR", str(tmp_path / "cache"))
    key, data = "ab" * 32, bytes(range(256)) * 64
    object_store.write(key, data)
    children = []
    for _ in range(16):
        if (child := os.fork()) == 0:
            try:
                while True:
                    object_store.write(key, data)
            finally:
                os._exit(1)
        children.append(child)
    for turn, child in enumerate(children):
        assert object_store.read(key) == data
        os.kill(child, signal.SIGKILL if turn % 2 else signal.SIGTERM)
        os.waitpid(child, 0)
    assert object_store.read(key) == data
    (entry,) = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and key in p.name]
    whole = entry.read_bytes()
    for cut in range(0, len(whole), 512):
        entry.write_bytes(whole[:cut])
        assert object_store.read(key) is None
    object_store.write(key, data)
    assert object_store.read(key) == data


def test_r03_a_full_disk(model: Path) -> None:
    """R03: files cannot grow beyond 2 KB: one registered error, and no half of a plan."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            os._exit(main(["compile", str(model), "-o", str(model.parent / "out")]))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == ExitCode.USER
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_r04_an_interrupt(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R04: exit status 130, and nothing is left; the search has no state worth keeping."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("irc.passes.fuse.FusePass.apply", interrupt)
    out = model.parent / "out"
    # A process that a shell starts in the background ignores interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["compile", str(model), "-o", str(out)]) == ExitCode.INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert [path.name for path in model.parent.iterdir()] == ["model.onnx"]


def test_r05_no_compiler_is_needed(model: Path) -> None:
    """R05: kernels of CPUs are made in the process, so no compiler can be missing, fail or hang."""
    out = model.parent / "out"
    done = command("compile", str(model), "-o", str(out), cwd=model.parent, PATH="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert command("run", str(out), cwd=model.parent, PATH="/nonexistent").returncode == 0


def test_r08_gradients_are_those_of_differences() -> None:
    """R08: gradcheck of a compiled function in float64; all operators are those of tests/opinfo."""
    torch.manual_seed(0)
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 4), (4, 2)))
    compiled = irc.compile(lambda x, w: ((x @ w).softmax(-1).tanh() * x.sum()).exp())
    assert torch.autograd.gradcheck(compiled, (x, w))


ODD = {
    "none": torch.zeros(0, 3), "a scalar": torch.tensor(2.5), "ones": torch.ones(1, 1, 1),
    "specials": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3e38]),
    "turned": torch.arange(12.0).reshape(3, 4).t(), "every second": torch.arange(12.0)[::2],
    "stretched": torch.ones(3, 1).expand(3, 4), "batch of one": torch.randn(1, 5),
}  # fmt: skip


def test_r09_odd_tensors_are_as_in_eager() -> None:
    """R09: sizes of 0 and 1, no dims, gaps, what is not finite, one tensor twice, uneven shards."""

    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + y, (x * 2).abs(), x.sum(), x.clamp(-1, 1) / y, x.to(torch.float64).sqrt()

    for name, x in ODD.items():
        for wanted, output in zip(model(x, x), irc.compile(model)(x, x), strict=True):
            torch.testing.assert_close(
                output, wanted, equal_nan=True, rtol=1e-6, atol=1e-6, msg=lambda m, n=name: n + m
            )


def test_uneven_shards_are_planned(model: Path) -> None:
    """The model of four rows over three ranks is planned."""
    out = model.parent / "three"
    assert main(["compile", str(model), "-o", str(out), "--mesh", "data=3"]) == 0
    assert load_plan(out).plan.device_mesh.num_ranks == 3


def test_r10_generated_text_is_valid(model: Path) -> None:
    """R10: LLVM's verifier takes each kernel, Python's compiler each Triton source; no C++ is made.

    Kernels are proven to stay inside their buffers by the verifier of level task.
    """
    llvm = pytest.importorskip("llvmlite.binding")
    for backend in ("cpu", "triton"):
        out = model.parent / backend
        assert main(["compile", str(model), "-o", str(out), "--backend", backend]) == 0
        kernels = list((out / "kernels").iterdir())
        assert kernels
        for path in kernels:
            if path.suffix == ".ll":
                llvm.parse_assembly(path.read_text()).verify()
            else:
                compile(ast.parse(path.read_text()), str(path), "exec")


def test_r11_memory_is_what_was_said(model: Path) -> None:
    """R11: a plan says the arena that it leases and the least that any order of it needs."""
    out = model.parent / "out"
    assert main(["compile", str(model), "-o", str(out)]) == 0
    plan = load_plan(out).plan
    program = json.loads((out / "native" / "program.json").read_bytes())
    ends = [b.offset + b.size_bytes for b in plan.buffers if b.storage == "arena"]
    assert max(ends) <= plan.arena_bytes == program["arena_bytes"]
    assert plan.arena_lower_bytes <= plan.arena_bytes <= 1.1 * plan.arena_lower_bytes


def test_r12_every_raise_site_has_a_page() -> None:
    """R12: every code in the source is registered; tests/test_docs.py runs the docs' blocks."""
    codes_have_pages()
