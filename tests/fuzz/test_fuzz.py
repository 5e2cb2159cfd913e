"""Random programs on every target: a seeded part here, five hundred with ``-m slow``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fuzz.bounded import misses
from tests.fuzz.check import check
from tests.fuzz.cuda import is_available
from tests.fuzz.directed import DIRECTED
from tests.fuzz.generator import generate
from tests.fuzz.session import Session
from tests.fuzz.shrink import shrunk
from tests.fuzz.targets import eager
from tests.processors import needs_avx512

ROOT = Path(__file__).parents[2]


def run(names: list[str], seeds: range) -> Session:
    """Run programs; fail with the smallest program of each failure."""
    session = Session(names)
    failures = [failure.text for failure in session.run(seeds)]
    assert not failures, "\n".join(failures)
    assert session.claimed > 0.95
    return session


def command(*words: str) -> str:
    """Run ``python -m tests.fuzz`` and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_cpu() -> None:
    run(["cpu"], range(60))


def test_older_cpus() -> None:
    run(["avx2", "generic"], range(60, 85))


def test_through_torch() -> None:
    run(["compile", "dynamo"], range(200, 208))


def test_gpu_sources() -> None:
    pytest.importorskip("triton")
    names = "triton,cuda" if is_available() else "triton"
    assert "0 failures" in command("--seed", "300", "--count", "12", "--targets", names)


@pytest.mark.parametrize("name", DIRECTED)
def test_programs_written_by_hand(name: str) -> None:
    for target in ("cpu", "generic"):
        failure = check(DIRECTED[name], target)
        assert failure is None, failure


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "target",
    ["cpu", pytest.param("avx512", marks=needs_avx512), "avx2", "generic", "compile", "dynamo"],
)
def test_five_hundred(target: str) -> None:
    run([target], range(500))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["triton", "cuda"])
def test_five_hundred_gpu_sources(target: str) -> None:
    pytest.importorskip("triton")
    if target == "cuda" and not is_available():
        pytest.skip("needs g++")
    assert "0 failures" in command("--count", "500", "--targets", target)


# the fuzzer itself


def test_a_seed_is_a_program() -> None:
    assert [generate(s).text for s in range(30)] == [generate(s).text for s in range(30)]


def test_programs_have_what_is_promised() -> None:
    """Sizes of 0 and 1, every dtype, every layout, every template occur among a few hundred."""
    programs = [generate(seed) for seed in range(400)]
    shapes = {n for p in programs for x in p.inputs for n in x.shape}
    assert {0, 1, 17, 127, 130} <= shapes
    assert {x.dtype for p in programs for x in p.inputs} >= {
        "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "i1",
    }  # fmt: skip
    layouts = {x.layout for p in programs for x in p.inputs}
    assert layouts == {"plain", "transposed", "sliced", "offset", "expanded"}
    assert any(x.alike for p in programs for x in p.inputs)
    assert sum(len(p.outputs) > 1 for p in programs) > 100
    ops = {node.op for p in programs for node in p.nodes}
    assert ops >= {
        "softmax", "masked_softmax", "layer_norm", "rms_norm", "matmul", "linear", "transpose",
        "slice", "concat", "pad", "embedding", "gather", "index_select", "scatter", "scatter_add",
        "cast", "where", "attention", "attention_mask", "conv2d", "conv1d", "argmax", "cumsum",
        "tril", "add_into", "mul_", "max_pool2d",
    }  # fmt: skip


def test_torch_agrees_with_the_reference() -> None:
    """The reference is not irc's: eager float32 and float64 lie within its bounds."""
    checked = 0
    for seed in range(120):
        program = generate(seed)
        inputs = program.draw()
        for one, other in zip(eager(program, inputs), program.reference(inputs), strict=True):
            # Torch rounds inside softmax of float16, and its gelu by tanh cancels.
            if other.dtype in ("f16", "bf16") or "gelu" in program.text:
                continue
            assert not bool(misses(one, other).any()), program.text
            checked += 1
    assert checked > 150


def test_a_wrong_element_is_a_miss() -> None:
    """Bounds are tight: a relative error of 1e-4 in one element of float32 is seen."""
    caught = total = 0
    for seed in range(80):
        program = generate(seed)
        for value in program.reference(program.draw()):
            if value.dtype != "f32" or not value.value.numel():
                continue
            wrong = value.value.clone().reshape(-1)
            wrong[0] = wrong[0] * (1 + 1e-3) + 1e-3
            total += 1
            caught += bool(misses(wrong.reshape(value.shape), value).any())
    assert caught / total > 0.9


def test_failures_are_made_small() -> None:
    program = next(p for p in map(generate, range(200)) if "exp(" in p.text and len(p.nodes) > 4)

    def fails(candidate: object) -> bool:
        return "torch.exp(" in candidate.text  # type: ignore[attr-defined]

    small = shrunk(program, fails)
    assert len(small.nodes) <= 2
    assert torch.is_tensor(eager(small, small.draw())[0])
