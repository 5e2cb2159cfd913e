"""Attention kernels of CUDA, run on the host in every order of threads."""

import shutil

import pytest
import torch

from irc.backends.cuda import compile_for
from irc.backends.cuda.attention_tiles import AttentionTiles
from irc.backends.cuda.file import form_and_template
from irc.dialects.mapping_attr import verify_coverage
from tests.backends import attention_kernels as attend
from tests.backends.cuda.host import HostError, Libraries, marked, run_in_all_orders, with_bugs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

CASES = attend.attend_cases() | {
    case.name: case
    for case in (
        attend.Attend(
            dtype="f16", rows=70, keys=130, depth=32, width=48, sums=True, repeats=2,
            mask="bool", name="tiles_masked",
        ),
        attend.Attend(
            dtype="bf16", rows=33, keys=65, depth=48, width=80, causal=True, start=True,
            goes_on=True, sums=True, name="tiles_ring",
        ),
        attend.Attend(dtype="f16", rows=20, keys=300, parts=3, mask="float", name="tiles_parts"),
    )
}  # fmt: skip
KERNELS = {name: attend.kernel_of(case) for name, case in CASES.items()}


QUICK = {"decode", "masked", "single", "tiles_ring"}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("attention"), KERNELS, QUICK)


def close(name: str, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
    wanted = attend.meaning(KERNELS[name], inputs)
    # Probabilities are rounded to the dtype of the operands, whatever that of the results is.
    bound = {"f16": 2.0**-9, "bf16": 2.0**-6, "f32": 2.0**-16}[CASES[name].dtype]
    return all(
        torch.allclose(one.double(), two, rtol=bound, atol=bound)
        for one, two in zip(outputs, wanted, strict=True)
    )


def test_halves_go_by_tiles() -> None:
    templates = {name: form_and_template(kernel)[1] for name, kernel in KERNELS.items()}
    tiled = {name for name, template in templates.items() if isinstance(template, AttentionTiles)}
    assert {"long_f16", "tiles_masked", "tiles_ring", "tiles_parts", "causal_bf16"} <= tiled
    assert not {"attention", "masked", "decode"} & tiled
    for template in templates.values():
        verify_coverage(template.mapping)


@pytest.mark.parametrize("name", marked(KERNELS, QUICK))
def test_attention(libraries: Libraries, name: str) -> None:
    inputs = attend.inputs_of(CASES[name], KERNELS[name])
    assert close(name, run_in_all_orders(libraries[name], KERNELS[name], inputs), inputs)
    assert libraries[name].shim_conflicts() == 0


# Each: the kernel, what the bug replaces, by what; the last is a control, no bug.
PLANTED = {
    "barrier": ("causal", "__syncthreads();", ""),
    "causal": ("causal", "s + start >= t", "s + start > t"),
    "tail": ("attention", "t < last && ", ""),
    "rescale": ("causal", "result[i][c] *= kept;", ";"),
    "parts": ("decode", "(long long)p * 44", "(long long)p * 43"),
    "no_wait": ("long_f16", "irc_copies_left<0>();", ""),
    "tiles_barrier": ("long_f16", "__syncthreads();", ""),
    "tiles_rescale": ("long_f16", "result[j][h * 2 + e] *= kept;", ";"),
    "tiles_tail": ("tiles_masked", "t < last && ", ""),
    "none": ("causal", "float most[4]", "float highest = 0; float most[4]"),
}

QUICK_BUGS = {"parts", "tiles_tail"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return with_bugs(tmp_path_factory.mktemp("planted"), KERNELS, PLANTED, QUICK_BUGS)


@pytest.mark.parametrize("bug", marked(PLANTED, QUICK_BUGS))
def test_a_planted_bug_is_found(planted: Libraries, bug: str) -> None:
    name = PLANTED[bug][0]
    inputs = attend.inputs_of(CASES[name], KERNELS[name])
    try:
        right = close(name, run_in_all_orders(planted[bug], KERNELS[name], inputs, bug), inputs)
    except HostError:
        right = False
    assert right == (bug == "none")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_attention_compiles_without_spills(arch: int) -> None:
    for kernel in KERNELS.values():
        assert compile_for(kernel, arch).spill_bytes == 0
