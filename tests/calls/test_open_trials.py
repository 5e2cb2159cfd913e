"""A plan of open sizes is tried at sizes whose tensors are small, or not at all."""

# pyright: basic
from __future__ import annotations

import weakref
from math import prod
from pathlib import Path

import onnx
import pytest
import torch

from irc.calls import open_check
from irc.calls.trial_bytes import MOST_BYTES, refusal, trial_bytes
from irc.cli import main
from irc.dialects.flow import tensor
from irc.from_files import compile_file
from irc.frontends.onnx import load_onnx
from irc.interpret.flow import run_function
from irc.onnx import host_file, open_file
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.program import Program
from irc.runtime import inputs
from tests.frontends.onnx.compare import model_of
from tests.models.large_trials import LARGE, by_values, together


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of the largest tensor of each trial; none is run."""
    largest: list[int] = []

    def differs(_: LoadedPlan, program: Program, store: object = None) -> None:
        values = (v for op in program.module.walk() for v in op.results)
        largest.append(max(prod(tensor(v).static_shape()) for v in values))

    monkeypatch.setattr(host_file, "differs", differs)
    monkeypatch.setattr(open_file, "differs", differs)
    return largest


def compiled(model: onnx.ModelProto, folder: Path) -> str:
    onnx.save(model, folder / "model.onnx")
    return compile_file(str(folder / "model.onnx"), str(folder / "plan"), native="none")


@pytest.mark.parametrize("name", list(LARGE))
def test_a_trial_asks_for_no_large_tensor(name: str, tried: list[int], tmp_path: Path) -> None:
    compiled(LARGE[name](), tmp_path)
    assert all(elements * 8 <= MOST_BYTES for elements in tried)
    # Where sizes of our own choosing make it large, they are made smaller, and it is tried.
    assert bool(tried) == (name == "together")


def test_where_none_is_made_plans_are_compared(tried: list[int], tmp_path: Path) -> None:
    assert "open sizes  n 2.." in compiled(LARGE["by name"](), tmp_path)
    assert not tried


@pytest.mark.parametrize("name", ["by values", "by name"])
def test_a_run_that_does_not_fit_is_refused(
    name: str, tried: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(inputs, "memory_bytes", lambda: 8 << 30)
    compiled(LARGE[name](), tmp_path)
    assert main(["run", str(tmp_path / "plan")]) == 2
    assert "error[memory-exceeded]: a run takes" in capsys.readouterr().err


def test_small_ones_are_made(tried: list[int], tmp_path: Path) -> None:
    compiled(by_values(64), tmp_path)
    assert tried == [64 * 64]
    (tmp_path / "more").mkdir()
    compiled(together(4), tmp_path / "more")
    assert len(tried) > 4


@pytest.mark.slow
def test_a_run_of_what_was_tried_agrees_with_eager(tmp_path: Path) -> None:
    compiled(together(4), tmp_path)
    assert main(["run", str(tmp_path / "plan")]) == 0


def test_what_is_foretold_is_what_the_interpreter_holds() -> None:
    """A chain: each value is let go when the next one is there."""
    steps = [f"x{i + 1} = {('Exp', 'Tanh')[i % 2]} (x{i})" for i in range(12)]
    model = model_of("\n".join(steps), "float[64,64] x0", "float[64,64] x12")
    program = load_onnx(model)
    live: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def trace(_: str, __: int, value: torch.Tensor, ___: object) -> None:
        nonlocal most
        live.append(weakref.ref(value))
        held = [kept.nbytes for each in live if (kept := each()) is not None]
        most = max(most, sum(held))

    bound = program.bind({"x0": torch.randn(64, 64)})
    run_function(program.module, bound, dtype=torch.float64, trace=trace)
    one = 64 * 64 * 8
    assert most == 2 * one
    foretold = trial_bytes(make_plan(program, Options()).plan, load_onnx(model).module)
    assert 7 * one <= foretold <= 9 * one  # the input, two results, four to compare; the plan's


def test_what_is_too_large_says_how_large() -> None:
    program = load_onnx(model_of("y = Exp (x)", "float[2,3] x", "float[2,3] y"))
    assert refusal(1 << 20, program.module) is None
    assert "takes 60 GiB, and 4 GiB" in str(refusal(60 << 30, program.module))


SENSITIVE = "n = Floor(x)\na = Mul(n, p)\nb = Mul(n, q)\ny = Sub(a, b)"
PLAIN = "n = Floor(x)\na = Mul(n, p)\nb = Mul(n, q)\ny = Add(a, b)"


@pytest.mark.parametrize(
    ("body", "off", "is_wrong"),
    [(SENSITIVE, 1.6e-4, False), (SENSITIVE, 0.5, True), (PLAIN, 1.6e-4, True), (PLAIN, 0, False)],
)
def test_a_plan_may_be_as_far_off_as_roundings_take_the_program(
    body: str, off: float, is_wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ``1000 n - 999.875 n`` eager makes no error where n is whole; roundings of 1000 count."""
    many = [", ".join([number] * 64) for number in ("1000", "999.875")]
    stored = f"float[64] p = {{{many[0]}}}, float[64] q = {{{many[1]}}}"
    program = load_onnx(model_of(body, "float[64] x", "float[64] y", stored=stored))
    loaded = make_plan(program.copy(), Options())
    runs = open_check.executor_of

    def executor_of(*args: object, **named: object) -> object:
        run = runs(*args, **named)
        return lambda *inputs: [y * (1 + off) for y in run(*inputs)]

    monkeypatch.setattr(open_check, "executor_of", executor_of)
    assert (open_check.differs(loaded, program) is not None) == is_wrong
