"""CUDA kernels that take their sizes when they run: one compilation, right at every size."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from irc.backends.cuda import emit
from irc.backends.cuda.launch_table import read_table
from irc.dialects.task_sizes import bind_kernel
from tests.backends.cuda import host
from tests.backends.sized_runs import QUICK, outputs_for, sized_kernels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
KERNELS = sized_kernels()


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> host.Libraries:
    kernels = {name: each.kernel for name, each in KERNELS.items()}
    return host.Libraries(tmp_path_factory.mktemp("sizes"), kernels, QUICK)


@pytest.mark.parametrize("name", host.marked(KERNELS, QUICK))
def test_one_text_is_right_at_every_size(libraries: host.Libraries, name: str) -> None:
    sized = KERNELS[name]
    for values in sized.calls:
        kernel, inputs = sized.inputs(values)
        sizes = sized.given(values)
        outputs = host.run_in_all_orders(libraries[name], kernel, inputs, name, sizes)
        sized.check(kernel, inputs, outputs)


def test_no_tasks_launch_nothing(libraries: host.Libraries) -> None:
    kernel = bind_kernel(KERNELS["norm"].kernel, {"S": 0})
    assert read_table(emit(KERNELS["norm"].kernel), (0,)).launches[0].blocks == 0
    inputs = [torch.zeros(0), torch.ones(129)]
    assert host.run(libraries["norm"], kernel, inputs, 0, "norm", (0,))[0].numel() == 0


def test_positions_of_64_bits_are_another_compilation(tmp_path: Path) -> None:
    """The same text with IRC_WIDE gives the same; sizes say when a call needs it."""
    sized = KERNELS["softmax"]
    wide = host.build(tmp_path, {"k": sized.kernel}, lambda text: f"#define IRC_WIDE\n{text}")
    values = sized.calls[2]
    kernel, inputs = sized.inputs(values)
    sized.check(kernel, inputs, host.run(wide, kernel, inputs, 0, "k", sized.given(values)))
    text = emit(sized.kernel)
    assert not read_table(text, (1000, 1000)).is_wide
    assert read_table(text, (30_000, 30_000)).is_wide


@pytest.mark.parametrize(
    ("name", "text", "bug"),
    [("norm", "place < N0", "place <= N0"), ("softmax", "c < N1", "c + 1 < N1")],
)
def test_a_planted_bug_is_caught(tmp_path: Path, name: str, text: str, bug: str) -> None:
    sized = KERNELS[name]
    assert text in emit(sized.kernel)
    library = host.build(tmp_path, {name: sized.kernel}, lambda source: source.replace(text, bug))
    values = sized.calls[2]
    kernel, inputs = sized.inputs(values)
    with pytest.raises(AssertionError):
        sized.check(kernel, inputs, host.run(library, kernel, inputs, 0, name, sized.given(values)))


def test_outputs_are_those_of_a_kernel() -> None:
    kernel, inputs = KERNELS["norm"].inputs({"S": 3})
    assert [t.numel() for t in outputs_for(kernel, len(inputs))] == [387]
