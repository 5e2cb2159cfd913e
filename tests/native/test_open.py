"""Programs with open sizes: the numbers of `irc.load`, at sizes that nobody compiled for."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.from_files import compile_file
from irc.report.sizes import explain_sizes
from irc.runtime import load
from irc.runtime.native import processor
from irc.runtime.native.open_program import OpenProgram
from tests.calls.test_open_export import MODEL
from tests.native.open_models import Counter, Encoder, Factored, Pictures, Sorted
from tests.native.test_clean import ROOT, run_clean

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)
KINDS = "x86-64-v3,x86-64-v4"


def exported(
    module: nn.Module, arguments: tuple[torch.Tensor, ...], out: Path, **open_: dict
) -> str:
    torch.manual_seed(0)
    return irc.export_plan(module.eval(), arguments, out=out, dynamic=open_, native=KINDS)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """With several, who writes last decides on the last bit of what two of them compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("plans") / "encoder"
    arguments = (torch.randint(0, 11, (3, 29)), torch.randn(29, 24))
    text = exported(Encoder(), arguments, out, ids={0: "rows", 1: "tokens"}, scale={0: "tokens"})
    assert text.endswith("\nneeds       numpy alone")
    assert "for all of rows 2..120, tokens 2.." in text
    return out


def inputs(rows: int, tokens: int, seed: int = 0) -> list[np.ndarray]:
    draw = np.random.default_rng(seed)
    scale = draw.standard_normal((tokens, 24)).astype(np.float32)
    return [draw.integers(0, 11, (rows, tokens)), scale]


def same(outputs: list[np.ndarray], wanted: list[np.ndarray] | tuple[torch.Tensor, ...]) -> bool:
    pairs = zip(outputs, map(np.asarray, wanted), strict=True)
    return all(a.shape == b.shape and np.array_equal(a, b) for a, b in pairs)


def opened(plan: Path, threads: int = 1, *, mapped: bool = False) -> OpenProgram:
    program = load(plan, threads=threads, mapped=mapped)
    assert isinstance(program, OpenProgram)
    return program


SHAPES = ((3, 29), (2, 2), (7, 129), (3, 29), (64, 17), (119, 200), (2, 2))


@pytest.mark.parametrize("mapped", [False, True])
def test_the_numbers_are_those_of_the_plan(encoder: Path, mapped: bool) -> None:
    program, plan = opened(encoder, mapped=mapped), irc.load(encoder)
    assert [each.shape for each in program.inputs] == [("rows", "tokens"), ("tokens", 24)]
    assert [each.shape for each in program.outputs] == [
        ("rows", "tokens", 17), ("rows", 17, "tokens"),
    ]  # fmt: skip
    assert [(each.name, each.low) for each in program.sizes] == [("rows", 2), ("tokens", 2)]
    for shape in SHAPES:
        arguments = inputs(*shape)
        wanted = plan(*map(torch.from_numpy, arguments))
        assert same(program.run(arguments), wanted)
        assert same(program.run({"scale": arguments[1], "ids": arguments[0]}), wanted)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_of_a_call_change_no_more_than_rounding(encoder: Path, threads: int) -> None:
    program, alone = opened(encoder, threads), opened(encoder)
    for shape in SHAPES:
        arguments = inputs(*shape)
        for got, want in zip(program.run(arguments), alone.run(arguments), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [1, 2, 17])
@pytest.mark.parametrize("sequence", [1, 3, 127])
def test_a_file_down_to_sizes_of_one(batch: int, sequence: int, file: Path) -> None:
    x = np.random.default_rng(0).standard_normal((batch, sequence, 24)).astype(np.float32)
    assert same(opened(file).run([x]), irc.load(file)(torch.from_numpy(x)))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("file")
    onnx.save(MODEL, str(folder / "model.onnx"))
    compile_file(str(folder / "model.onnx"), str(folder / "plan"), native=KINDS)
    return folder / "plan"


def test_convolutions_of_any_batch(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    assert "for all of n 2.." in exported(Pictures(), (torch.randn(3, 3, 9, 11),), plan, x={0: "n"})
    program, wanted = opened(plan), irc.load(plan)
    for batch in (2, 3, 7, 31, 120):
        x = torch.randn(batch, 3, 9, 11)
        assert same(program.run([x.numpy()]), wanted(x))
    x = torch.randn(5, 3, 9, 11)
    assert same(run_clean(plan, {program.inputs[0].name: x.numpy()}, threads=1), wanted(x))


def test_a_transformer_needs_numpy_alone(encoder: Path) -> None:
    for rows, tokens in ((3, 29), (5, 113)):
        ids, scale = inputs(rows, tokens)
        wanted = irc.load(encoder)(torch.from_numpy(ids), torch.from_numpy(scale))
        assert same(run_clean(encoder, {"ids": ids, "scale": scale}, threads=1), wanted)


def test_each_kind_of_processor_gives_these_numbers(encoder: Path) -> None:
    arguments = inputs(5, 37)
    wanted = opened(encoder).run(arguments)
    program = load(encoder, threads=1, code="x86-64-v3")
    for got, want in zip(program.run(arguments), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_threads_call_with_sizes_of_their_own(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With room for two, programs are dropped and bound anew all the time.
    monkeypatch.setattr("irc.runtime.driver.MAX_SIZES", 2)
    program = opened(encoder)
    shapes = [(2, 9), (3, 40), (5, 2), (4, 31), (2, 90)]
    calls = [inputs(*shape, seed=k) for k, shape in enumerate(shapes)]
    wanted = [program.run(each) for each in calls]
    wrong: list[int] = []

    def call(first: int) -> None:
        for turn in range(40):
            k = (first + turn * first) % len(calls)
            if not same(program.run(calls[k]), wanted[k]):
                wrong.append(k)

    callers = [threading.Thread(target=call, args=(k,)) for k in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_sizes_share_memory_and_the_oldest_are_dropped(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("irc.runtime.driver.MAX_SIZES", 3)
    program = opened(encoder)
    kept, driver = program._bound._kept, program._driver
    for tokens in (9, 200, 12, 9, 15, 9):
        program.run(inputs(3, tokens))
    assert [shapes[0][1] for shapes in kept] == [12, 15, 9]
    (lease,) = driver._leases
    most = program._sized.at(program._sized.given.values([(3, 200), (200, 24)], ["ids", "scale"]))
    assert len(lease.arena) == most.arena_bytes


def test_an_index_outside_is_refused_and_the_next_call_is_right(encoder: Path) -> None:
    program = opened(encoder)
    wanted = [program.run(inputs(*shape)) for shape in ((3, 29), (2, 60))]
    ids, scale = inputs(5, 31)
    with pytest.raises(IrcError, match="index-out-of-range"):
        program.run([ids + 11, scale])
    for shape, want in zip(((3, 29), (2, 60)), wanted, strict=True):
        assert same(program.run(inputs(*shape)), want)


def test_a_state_is_one_for_all_sizes(tmp_path: Path) -> None:
    exported(Counter(), (torch.ones(4, 3),), tmp_path / "plan", x={0: "rows"})
    program, other = (opened(tmp_path / "plan") for _ in range(2))
    total = 2.0
    for rows in (4, 2, 9, 4):
        total += rows
        y, turned = program.run([np.ones((rows, 3), np.float32)])
        assert (y == 2 * total).all()
        assert turned.shape == (3, rows)
    assert (other.run([np.ones((2, 3), np.float32)])[0] == 8).all()


def test_steps_of_torch_at_any_size(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    text = exported(Factored(), (torch.randn(4, 10, 5),), plan, x={0: "n"})
    assert text.endswith("needs       torch runs 1 aten::linalg_qr")
    x = torch.randn(7, 10, 5)
    assert same(opened(plan).run([x.numpy()]), irc.load(plan)(x))


def test_kernels_of_one_size_stand_against_it(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    text = exported(Sorted(), (torch.randn(4, 10),), plan, x={0: "n", 1: "width"})
    assert "native      none: k0_sort is compiled for each size: " in text
    with pytest.raises(IrcError, match="k0_sort is compiled for each size: ") as caught:
        load(plan)
    assert caught.value.code == "native-missing"
    assert "Without torch: no, kernels" in explain_sizes(plan)


def test_what_is_open_is_said(encoder: Path, tmp_path: Path) -> None:
    assert "Without torch: irc.runtime.load runs all of these sizes" in explain_sizes(encoder)
    bare = Path(shutil.copytree(encoder, tmp_path / "plan"))
    shutil.rmtree(bare / "native")
    with pytest.raises(IrcError, match="it was compiled without"):
        load(bare)
    assert "compiled without a native program" in explain_sizes(bare)


def test_the_command_takes_sizes(encoder: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "irc.runtime", str(encoder), *words],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = command("--size", "rows=5", "--size", "tokens=17", "--json")
    assert json.loads(done.stdout)["calls"] == 10, done.stderr
    assert "error[size-unknown]: the plan has no open size named 'row'" in (
        command("--size", "row=5").stderr
    )
