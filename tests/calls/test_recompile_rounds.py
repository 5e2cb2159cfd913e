"""Recompiling after resets frees nothing that is still used, and writes nowhere else."""

from __future__ import annotations

import pytest
import torch

from irc.runtime.into import EXTERN, writer
from tests.calls.recompile_rounds import CASES, checked, has_checking_allocator, main, start


def test_rounds_under_memory_checkers() -> None:
    """Each case through both ways in."""
    ended = start(2 * len(CASES))
    assert ended.returncode == 0, ended.stdout[-200:] + ended.stderr[-4000:]


@pytest.mark.slow
def test_the_same_case_again_and_again() -> None:
    """The op that crashed within 20 rounds: dispatched by an overload that had been freed."""
    program = (
        "import torch, irc\n"
        "x = torch.randn(16, 3, requires_grad=True)\n"
        "for _ in range(12):\n"
        "    torch._dynamo.reset()\n"
        "    c = irc.compile(lambda x: x.kthvalue(2, 1)[0])\n"
        "    assert all(torch.equal(c(x), x.kthvalue(2, 1)[0]) for _ in range(3))\n"
    )
    ended = checked(["-c", program])
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize("target", sorted(EXTERN))
def test_overloads_are_torchs_own_objects(target: str) -> None:
    """Asking for what writes an op's results leaves each overload the object that it was."""
    namespace, _, name = target.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.split(".")[0])
    before = {each: getattr(packet, each) for each in packet.overloads()}
    assert writer("flow.extern", {"target": target, "arguments": "[[], {}]"}) is not None
    assert all(getattr(packet, each) is op for each, op in before.items())


@pytest.mark.skipif(not has_checking_allocator(), reason="this machine's C library has none")
def test_the_checkers_see_a_byte_beyond_a_tensor() -> None:
    """What they watch is the memory that kernels write."""
    # Beyond a tensor glibc keeps a byte that follows from the address, and goes down from another
    # one in steps of what it reads: with zeros in the tensor, one address in 256 hides the fault.
    program = (
        "import ctypes, torch\n"
        "x = torch.ones(4000, dtype=torch.uint8)\n"
        "byte = ctypes.c_ubyte.from_address(x.data_ptr() + 4000)\n"
        "byte.value = 0 if byte.value else 1\n"
        "del x\n"
        "torch.zeros(1000)\n"
    )
    ended = checked(["-c", program])
    assert ended.returncode != 0


@pytest.mark.slow
def test_a_thousand_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1000"]) == 0, capsys.readouterr().out
