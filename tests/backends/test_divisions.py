"""Emitted code divides once per tile of a worker, never per element."""

import re

import pytest

from irc.backends.cpu import emit as emit_cpu
from irc.backends.cuda import emit as emit_cuda
from irc.dialects.task import KernelOp
from tests.backends import gpu_kernels as g

DIVIDES = re.compile(r"= [us](?:div|rem) ")


def turned(a: int, b: int, c: int) -> KernelOp:
    """A copy whose dims cannot be joined, so that a position has three digits."""
    k = g.Builder("turned", (a, b, c), 3, tile=(1, 1, c))
    x, y = k.input(a * b * c, "f32"), k.output(a * b * c, "f32")
    k.store(k.fn("exp", k.load(x, (c, a * c, 1))), y, (b * c, c, 1))
    return k.kernel()


def cpu_loops(text: str) -> tuple[str, str]:
    """The text before the first loop, and what is in loops."""
    before, _, inside = text.partition("\nhead")
    return before, inside


@pytest.mark.parametrize(
    "kernel", [turned(7, 5, 33), turned(300, 41, 3), g.softmax(), g.column_sums()],
    ids=lambda k: f"{k.sym_name.data}{k.space_extents}",
)  # fmt: skip
def test_cpu_rows_divide_before_their_loops_only(kernel: KernelOp) -> None:
    before, inside = cpu_loops(emit_cpu(kernel))
    assert inside and not DIVIDES.search(inside)
    # A thread's first and last unit (two each), and two for each digit of a position but one.
    assert len(DIVIDES.findall(before)) <= 4 + 2 * (len(kernel.space_extents) - 1)


def test_cpu_matmuls_divide_for_tiles_not_for_products() -> None:
    text = emit_cpu(g.matmul(m=300, n=300, k=200))
    blocks = re.split(r"\n(?=\w+:)", text)
    products = [block for block in blocks if "@llvm.fma" in block and "declare" not in block]
    assert products and not any(DIVIDES.search(block) for block in products)
    assert len(DIVIDES.findall(text)) <= 16


@pytest.mark.parametrize("kernel", [turned(7, 5, 36), turned(7, 5, 33)], ids=["vector", "scalar"])
def test_a_cuda_thread_divides_once_for_its_vector(kernel: KernelOp) -> None:
    text = emit_cuda(kernel)
    body = text[text.index("__global__") : text.index("IRC_LAUNCH")]
    code = "\n".join(line.split("//")[0] for line in body.splitlines())
    assert len(re.findall(r"[/%]", code)) <= 2 * (kernel.num_parallel - 1)
    loops = re.findall(r"for \(int j = 0;[^{]*\{(.*?)\n\s*\}", code, re.DOTALL)
    assert not any(re.search(r"[/%]", loop) for loop in loops)


def test_a_cuda_matmul_thread_divides_once_for_its_registers() -> None:
    text = emit_cuda(g.matmul(m=300, n=300, block_m=128, block_n=128))
    code = "\n".join(line.split("//")[0] for line in text.splitlines())
    inner = re.findall(r"for \(int k = 0;.*?\n    \}", code, re.DOTALL)
    # What is left is of counters of unrolled loops, which are constants where nvcc is done.
    divided = re.findall(r"(\w+) [/%]", "\n".join(inner))
    assert inner and set(divided) <= {"i", "j"} | {")"}


def test_the_count_would_notice_a_division_per_element() -> None:
    planted = "entry:\n  %1 = urem i64 %thread, 3\nhead1:\n  %2 = urem i64 %i, 33\n"
    assert DIVIDES.search(cpu_loops(planted)[1])
