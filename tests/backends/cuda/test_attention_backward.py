"""Gradients of attention in CUDA, run on the host in every order of threads."""

import shutil

import pytest
import torch

from irc.backends.cuda import compile_for
from irc.backends.cuda.attention_backward_tiles import AttentionBackwardTiles
from irc.backends.cuda.file import emit_kernel, form_and_template
from irc.dialects.mapping_attr import verify_coverage
from irc.errors import IrcError
from tests.backends import attention_backward_kernels as backward
from tests.backends.attention_kernels import Attend
from tests.backends.cuda.host import HostError, Libraries, marked, run_in_all_orders, with_bugs

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

CASES = backward.backward_cases() | {
    case.name: case
    for case in (
        Attend(
            dtype="f16", rows=70, keys=130, depth=32, width=48, repeats=2, batch=1, groups=1,
            mask="bool", name="tiles_masked",
        ),
        Attend(
            dtype="bf16", rows=33, keys=65, depth=80, width=112, causal=True, start=True,
            goes_on=True, repeats=2, batch=1, groups=1, name="tiles_ring",
        ),
        Attend(
            dtype="bf16", rows=131, keys=67, depth=16, width=16, causal=True, batch=1, groups=1,
            name="tiles_fewer_keys",
        ),
        Attend(depth=70, width=33, rows=40, keys=41, repeats=2, batch=1, groups=1, name="wide"),
    )
}  # fmt: skip
SIDES = (("dk", "dv"), ("dq",))
KERNELS = {
    f"{name}_{'_'.join(side)}": (case, backward.backward_of(case, side))
    for name, case in CASES.items()
    for side in SIDES
}
ALONE = {name: kernel for name, (_, kernel) in KERNELS.items()}
QUICK = {"masked_dq", "single_dk_dv", "tiles_ring_dk_dv"}
BOUNDS = {"f32": 2.0**-15, "f16": 2.0**-8, "bf16": 2.0**-5}
"""Of an error, relative to one more than the element: weights are rounded as operands are."""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("backward"), ALONE, QUICK)


def inputs_of(name: str) -> list[torch.Tensor]:
    """Return inputs; the first row of an additive mask leaves nothing to see."""
    case, kernel = KERNELS[name]
    inputs = backward.backward_inputs(case, kernel)
    if case.mask == "float":
        # After g, q, k, v: the log-sums of [batch, heads, rows], delta, the mask of [rows, keys].
        inputs[4][:: case.rows] = -torch.inf
        inputs[6][: case.keys] = -torch.inf
    return inputs


def close(name: str, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
    case, kernel = KERNELS[name]
    bound = BOUNDS[case.dtype]
    wanted = backward.backward_meaning(kernel, inputs)
    return all(
        torch.allclose(one.double(), two, rtol=bound, atol=bound)
        for one, two in zip(outputs, wanted, strict=True)
    )


def test_halves_go_by_tiles() -> None:
    templates = {name: form_and_template(kernel)[1] for name, kernel in ALONE.items()}
    tiled = {name for name, one in templates.items() if isinstance(one, AttentionBackwardTiles)}
    assert {"long_f16_dq", "tiles_ring_dk_dv", "tiles_masked_dq", "causal_bf16_dk_dv"} <= tiled
    assert not {"plain_dq", "single_dk_dv", "wide_dq"} & tiled
    for template in templates.values():
        verify_coverage(template.mapping)


@pytest.mark.parametrize("name", marked(KERNELS, QUICK))
def test_gradients(libraries: Libraries, name: str) -> None:
    kernel, inputs = ALONE[name], inputs_of(name)
    assert close(name, run_in_all_orders(libraries[name], kernel, inputs), inputs)
    assert libraries[name].shim_conflicts() == 0


# Each: the kernel, what the bug replaces, by what; the last is a control, no bug.
PLANTED = {
    "barrier": ("causal_dk_dv", "__syncthreads();", ""),
    "diagonal": ("causal_dq", "s + start >= t", "s + start > t"),
    "from": ("causal_dk_dv", "from = (begin - start)", "from = 32 + (begin - start)"),
    "tail": ("fewer_keys_dq", "t < 35", "t < 64"),
    "delta": ("plain_dq", "ds_of[i] - ", "ds_of[i] - 0 * "),
    "heads": ("cached_dk_dv", "step / each", "0"),
    "unseen": ("biased_f16_dq", "seen = seen && total != (-INFINITY);", ""),
    "no_wait": ("long_f16_dk_dv", "irc_copies_left<0>();", ""),
    "tiles_barrier": ("long_f16_dq", "__syncthreads();", ""),
    "stage": ("long_f16_dk_dv", "(step) % 2", "0"),
    "swizzle": ("tiles_masked_dq", "(row, chunk * 16)", "(row + 1, chunk * 16)"),
    "none": ("causal_dq", "bool seen", "const float nothing = 0; bool seen"),
}
QUICK_BUGS = {"unseen", "swizzle"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return with_bugs(tmp_path_factory.mktemp("planted_backward"), ALONE, PLANTED, QUICK_BUGS)


@pytest.mark.parametrize("bug", marked(PLANTED, QUICK_BUGS))
def test_a_planted_bug_is_found(planted: Libraries, bug: str) -> None:
    name = PLANTED[bug][0]
    kernel, inputs = ALONE[name], inputs_of(name)
    try:
        right = close(name, run_in_all_orders(planted[bug], kernel, inputs, bug), inputs)
    except HostError:
        right = False
    assert right == (bug == "none")


def test_all_gradients_at_once_are_refused() -> None:
    for case, side, said in (
        (CASES["plain"], ("dq", "dk", "dv"), "no kernel of all gradients"),
        (Attend(depth=700, width=700), ("dq",), "no attention over 700 features"),
    ):
        with pytest.raises(IrcError, match=said) as caught:
            emit_kernel(backward.backward_of(case, side))
        assert caught.value.code == "op-unsupported"


FULL = [
    Attend(dtype=dtype, rows=300, keys=300, depth=d, width=d, causal=True, mask=mask, name=f"f{d}")
    for dtype, d, mask in (
        ("bf16", 64, ""), ("f16", 128, "bool"), ("bf16", 128, "float"), ("f16", 96, ""),
        ("f32", 64, ""), ("f32", 128, "bool"), ("f32", 256, ""),
    )
]  # fmt: skip


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_gradients_compile_without_spills(arch: int) -> None:
    kernels = [*ALONE.values(), *(backward.backward_of(a, side) for a in FULL for side in SIDES)]
    for kernel in kernels:
        report = compile_for(kernel, arch)
        assert report.spill_bytes == 0, (kernel.sym_name.data, report)
