"""Triton kernels that take their sizes when they run: one text, right at every size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from irc.backends.triton import TritonBackend, emit
from irc.backends.triton.build import compile_for, import_file, variant_of
from irc.dialects.size import symbol
from irc.errors import IrcError
from tests.backends.cpu.sized_kernels import maker
from tests.backends.sized_runs import QUICK, outputs_for, sized_kernels
from tests.backends.triton.interpreting import run_interpreted

pytest.importorskip("triton")
KERNELS = sized_kernels()
RUNNER = """
import sys, torch
from pathlib import Path
from irc.backends.triton import load
for path in sorted(Path(sys.argv[1]).glob("*.py")):
    launch = load(path)
    runs = torch.load(path.with_suffix(".in"))
    for buffers, sizes in runs:
        launch(*buffers, *sizes)
    torch.save(runs, path.with_suffix(".out"))
"""
SLOW = tuple(name for name in KERNELS if name not in QUICK)


def run(folder: Path, names: tuple[str, ...]) -> Path:
    """Run kernels at all their sizes, in one process."""
    for name in names:
        sized, runs = KERNELS[name], []
        for values in sized.calls:
            kernel, inputs = sized.inputs(values)
            runs.append(([*inputs, *outputs_for(kernel, len(inputs))], sized.given(values)))
        (folder / f"{name}.py").write_text(emit(sized.kernel))
        torch.save(runs, folder / f"{name}.in")
    run_interpreted(["-c", RUNNER, str(folder)])
    return folder


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("quick"), QUICK)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("rest"), SLOW)


def check(folder: Path, name: str) -> None:
    runs, sized = torch.load(folder / f"{name}.out"), KERNELS[name]
    for values, (buffers, _) in zip(sized.calls, runs, strict=True):
        kernel, inputs = sized.inputs(values)
        # Those that ran: a second draw is another.
        inputs = buffers[: len(inputs)]
        sized.check(kernel, inputs, buffers[len(inputs) :])


@pytest.mark.parametrize("name", QUICK)
def test_one_text_is_right_at_every_size(quick: Path, name: str) -> None:
    check(quick, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_others_too(rest: Path, name: str) -> None:
    check(rest, name)


def test_a_file_says_what_a_launch_compiles(tmp_path: Path) -> None:
    """Multiples of 16 matter where addresses hold products of sizes; 64 bits from 2^31 on."""
    for name, strided in (("norm", False), ("softmax", True)):
        path = tmp_path / f"{name}.py"
        path.write_text(emit(KERNELS[name].kernel))
        module = import_file(path)
        count = len(module.EXAMPLE)
        assert module.HAS_STRIDES is strided
        assert variant_of(module, [32] * count, 16).is_even is strided
        assert not variant_of(module, [31] * count, 16).is_even
        assert variant_of(module, [2**30] * count, 16).is_wide
        assert module.grid(*[0] * count) == (0,)


def test_what_numbers_decide_is_made_for_numbers() -> None:
    backend, S = TritonBackend(), symbol("S")
    shorter = maker((S + -2, 4), 2, [(S * 4, "f32")], [(S * 4, "f32")])
    shorter.store(shorter.load(0, (4, 1)), 0, (4, 1))
    assert backend.run_time_sizes(shorter.kernel(), {}) == "a loop over S - 2 may be empty"
    packed = maker((S, 4), 2, [(S * 4, "f32")], [(S * 4, "f32")], "packed")
    packed.store(packed.load(0, (4, 1)), 0, (4, 1))
    reason = backend.run_time_sizes(packed.kernel(), {})
    assert reason == "template 'packed' is made for numbers"


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_spills(name: str, arch: int) -> None:
    try:
        report = compile_for(KERNELS[name].kernel, arch)
    except IrcError as error:
        pytest.skip(str(error))
    assert report.spill_bytes == 0
