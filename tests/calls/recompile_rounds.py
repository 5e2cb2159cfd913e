"""``python -m tests.calls.recompile_rounds 1000``: compile, reset and call under memory checkers.

Each round resets torch's compiler, compiles one of :data:`CASES` anew, calls it three times and
holds results and gradients against eager's. The rounds run in a process with

* Python's debug allocator (``PYTHONMALLOC=debug``): freed objects hold ``0xdd``, and what is
  written around one is told;
* glibc's checking allocator (``MALLOC_CHECK_=3``), where the machine has it: a byte written beyond
  a tensor or an arena aborts when that memory is freed;
* ``MALLOC_PERTURB_``: memory that was never written is no zero, in other rounds another number;
* faulthandler, so that a crash names its line.

A last line ``rounds: N clean`` and status 0 say that nothing was found.
"""

# pyright: basic
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Case = tuple[Callable[..., Any], Sequence[tuple[int, ...]]]
CHECKER = "libc_malloc_debug.so.0"


def _attention(q: Any, k: Any, w: Any) -> Any:
    import torch.nn.functional as F

    return F.scaled_dot_product_attention(F.conv2d(q, w), k, k)


CASES: Mapping[str, Case] = {
    "kthvalue": (lambda x: x.kthvalue(2, 1)[0], [(16, 3)]),
    "median": (lambda x: x.median(1)[0], [(16, 3)]),
    "nanmedian": (lambda x: x.nanmedian(1)[0], [(16, 3)]),
    "mode": (lambda x: x.round().mode(1)[0] * x.sum(1), [(16, 3)]),
    "sort": (lambda x: x.sort(1).values * 2, [(5, 7)]),
    "cumsum": (lambda x: x.cumsum(0).tanh(), [(5, 7)]),
    "gather": (lambda x: x.gather(1, x.argsort(1)), [(5, 7)]),
    "tril": (lambda x: x.tril() @ x.t(), [(9, 13)]),
    "bmm": (lambda x, y: x @ y, [(2, 9, 5), (2, 5, 3)]),
    "baddbmm": (lambda x, y: x.baddbmm(x, y), [(2, 5, 5), (2, 5, 5)]),
    "softmax": (lambda x: x.softmax(-1), [(3, 17)]),
    "attention": (_attention, [(2, 2, 5, 8), (2, 2, 17, 8), (2, 2, 1, 1)]),
}
"""Functions and the shapes of their arguments; first those whose ops write where irc lays them."""


def start(rounds: int, first: int = 0) -> subprocess.CompletedProcess[str]:
    """Run rounds in a process under the checkers.

    Args:
        rounds: how many.
        first: the number of the first round, which chooses its case.
    """
    words = ["-m", "tests.calls.recompile_rounds", str(rounds), str(first), "here"]
    return checked(words, garbage=1 + first % 254)


def checked(words: Sequence[str], *, garbage: int = 165) -> subprocess.CompletedProcess[str]:
    """Run Python under the checkers.

    Args:
        words: its arguments.
        garbage: a byte, what memory is filled with that was never written or is freed.
    """
    root = Path(__file__).parents[2]
    checkers = {"PYTHONMALLOC": "debug", "PYTHONFAULTHANDLER": "1", "MALLOC_PERTURB_": str(garbage)}
    if has_checking_allocator():
        checkers |= {"LD_PRELOAD": CHECKER, "MALLOC_CHECK_": "3"}
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | checkers | {"PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )


def has_checking_allocator() -> bool:
    """Say whether this machine has glibc's."""
    return any(Path(folder, CHECKER).exists() for folder in _library_folders())


def _library_folders() -> list[str]:
    import sysconfig

    triplet = sysconfig.get_config_var("MULTIARCH") or ""
    return [f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64"]


def run(rounds: int, first: int) -> None:
    """Run rounds in this process.

    Raises:
        AssertionError: a result or gradient is not eager's.
    """
    import torch

    import irc

    names = list(CASES)
    for number in range(first, first + rounds):
        name = names[number % len(names)]
        function, shapes = CASES[name]
        print(f"round {number}: {name}", flush=True)
        torch.manual_seed(number)
        inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
        torch._dynamo.reset()
        # A new function each time, as each cell of a notebook makes one.
        fresh: Any = lambda *arguments, function=function: function(*arguments)  # noqa: E731
        is_ours = number // len(names) % 2 == 0
        compiled = irc.compile(fresh) if is_ours else torch.compile(fresh, backend="irc")
        wanted = function(*inputs)
        gradients = torch.autograd.grad(wanted.sum(), inputs)
        for _ in range(3):
            result = compiled(*inputs)
            torch.testing.assert_close(result, wanted)
            torch.testing.assert_close(torch.autograd.grad(result.sum(), inputs), gradients)


def main(words: Sequence[str]) -> int:
    """Run rounds in a checked process, by batches that differ in what fresh memory holds."""
    # What is tried is irc, also where torch is faster.
    os.environ["IRC_FIRST_TIMING"] = "off"
    rounds = int(words[0]) if words else 1000
    if words[2:] == ["here"]:
        run(rounds, int(words[1]))
        return 0
    batch = 100
    for first in range(0, rounds, batch):
        ended = start(min(batch, rounds - first), first)
        if ended.returncode:
            print(ended.stdout + ended.stderr)
            print(f"rounds: failed with status {ended.returncode} after {first}")
            return 1
    print(f"rounds: {rounds} clean")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
