"""Segments: several calls in one, texts that come back from a plan, threads, forks, costs."""

import ctypes
import os
import threading
import time
from typing import Any

import pytest
import torch

from irc.backends.cpu import KernelCall, compile_segment, emit, info_of, jit, load_segment
from irc.backends.cpu.features import AVX2, AVX512
from irc.backends.cpu.jit import compile_texts
from irc.errors import InternalError, IrcError


def pointwise(make: Any, fn: str, n: int, name: str = "k") -> Any:
    k = make((n,), 1, [(n, "f32")], [(n, "f32")])
    k.store(k.fn(fn, k.load(0, (1,))), 0, (1,))
    return k.kernel(name)


def softmax(make: Any, rows: int, length: int) -> Any:
    k = make((rows, length), 1, [(rows * length, "f32")], [(rows * length, "f32")])
    x = k.load(0, (length, 1))
    e = k.fn("exp", k.fn("sub", x, k.reduce("max", x)))
    k.store(k.fn("div", e, k.reduce("sum", e)), 0, (length, 1))
    return k.kernel("softmax")


def test_calls_run_in_order_on_offsets_of_bases(make: Any) -> None:
    n = 50
    kernels = [pointwise(make, "exp", n, "a"), pointwise(make, "neg", n, "a")]
    calls = [
        KernelCall(0, ((1, 0), (0, 4 * n))),
        KernelCall(1, ((0, 4 * n), (0, 8 * n))),
        KernelCall(1, ((0, 8 * n), (2, 0))),
    ]
    arena, x, y = torch.zeros(3 * n), torch.randn(n), torch.zeros(n)
    segment = compile_segment(kernels, calls, 2)
    segment.run_pointers([t.data_ptr() for t in (arena, x, y)])
    torch.testing.assert_close(y, x.exp())
    torch.testing.assert_close(arena[2 * n :], -x.exp())


def test_texts_are_all_that_a_plan_keeps(make: Any) -> None:
    text = emit(softmax(make, 5, 40))
    info = info_of(text)
    assert (info.name, info.num_args, info.template) == ("softmax", 2, "rows")
    assert info.scratch_bytes >= 160
    x, y = torch.randn(5, 40), torch.empty(5, 40)
    load_segment([text], [KernelCall(0, ((0, 0), (1, 0)))], 1).run_pointers(
        [x.data_ptr(), y.data_ptr()]
    )
    torch.testing.assert_close(y, torch.softmax(x, 1))


def test_equal_texts_compile_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = emit(pointwise(make, "cos", 77))
    first = compile_texts([text, text])
    monkeypatch.delattr(jit, "_compile")
    assert compile_texts([text]) == first[:1] == first[1:]


def test_kernels_of_avx512_are_refused_without_it(make: Any) -> None:
    """LLVM would end the process: it does not split what has an instruction of its own."""
    text = emit(pointwise(make, "exp", 79), AVX512)
    assert "@llvm.x86.avx512." in text
    with pytest.raises(IrcError, match="needs a processor with avx512f") as caught:
        compile_texts([text], AVX2)
    assert caught.value.code == "processor-unsupported"


def test_code_for_more_than_this_machine_has_is_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "host", lambda: AVX2)
    text = emit(pointwise(make, "neg", 80), AVX512)
    with pytest.raises(IrcError, match="this processor, x86-64-v3, has not all"):
        compile_texts([text], AVX512)


@pytest.mark.parametrize(
    "text", ["", "define void @f() { ret void }", "; irc-kernel {}", "; irc-kernel [1]"]
)
def test_a_file_without_description_is_refused(text: str) -> None:
    with pytest.raises(IrcError, match="kernel-invalid"):
        load_segment([text], [], 1)


def test_broken_code_is_refused(make: Any) -> None:
    text = emit(pointwise(make, "cos", 78)).replace("ret void", "ret i32 1")
    with pytest.raises(IrcError, match="kernel-invalid"):
        load_segment([text], [], 1)


def test_wrong_number_of_buffers(make: Any) -> None:
    with pytest.raises(InternalError, match="takes 2 buffers"):
        compile_segment([pointwise(make, "cos", 79)], [KernelCall(0, ((0, 0),))], 1)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_one_segment_in_four_python_threads(num_threads: int, make: Any) -> None:
    rows, length = 64, 500
    segment = compile_segment(
        [softmax(make, rows, length)], [KernelCall(0, ((0, 0), (1, 0)))], num_threads
    )
    wrong: list[int] = []

    def hammer(seed: int) -> None:
        x = torch.randn(rows, length, generator=torch.Generator().manual_seed(seed)) * 4
        want = torch.softmax(x, 1)
        for _ in range(60):
            y = torch.zeros(rows, length)
            segment.run_pointers([x.data_ptr(), y.data_ptr()])
            if not torch.allclose(y, want, atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=hammer, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_runs_on_one_thread(make: Any) -> None:
    rows, length = 64, 500
    segment = compile_segment([softmax(make, rows, length)], [KernelCall(0, ((0, 0), (1, 0)))], 2)
    x, y = torch.randn(rows, length), torch.zeros(rows, length)
    want = torch.softmax(x, 1)
    segment.run_pointers([x.data_ptr(), y.data_ptr()])
    child = os.fork()
    if child == 0:
        y.zero_()
        segment.run_pointers([x.data_ptr(), y.data_ptr()])
        os._exit(0 if (y - want).abs().max().item() < 1e-5 else 1)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the child hangs")


def test_a_call_costs_little(make: Any) -> None:
    segment = compile_segment([pointwise(make, "neg", 4)], [KernelCall(0, ((0, 0), (1, 0)))], 2)
    x, y = torch.ones(4), torch.zeros(4)
    array = (ctypes.c_void_p * 2)(x.data_ptr(), y.data_ptr())
    table = ctypes.addressof(array)
    best = 1.0
    for _ in range(30):
        started = time.perf_counter()
        for _ in range(100):
            segment.run(table)
        best = min(best, (time.perf_counter() - started) / 100)
    assert best < 4e-6  # 1 us on a quiet machine
    assert y.tolist() == [-1] * 4
