"""Planted miscompiles: each must make the suite go red. ``python -m tests.fuzz.mutants``.

Those of :mod:`tests.fuzz.scene_mutants` are about what callers see beside numbers.

A mutant is a change of an emitter, of a plan, or of emitted text. It is *killed* when a program,
one written by hand or one of the first seeds, gives a wrong result, an error or a crash. A mutant
that changes nothing is an error: the code that it was written for is gone. Each runs in a forked
process, since a planted bug may write outside its memory.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.fuzz.check import check_with
from tests.fuzz.directed import DIRECTED
from tests.fuzz.generator import generate
from tests.fuzz.program import Program
from tests.fuzz.scene_mutants import SCENE_MUTANTS, SceneMutant
from tests.fuzz.targets import Target, on_features

SEEDS = 40


class Applied:
    """Counts how often a mutation changed something."""

    def __init__(self) -> None:
        self.times = 0

    def text(self, pattern: str, new: str | Callable[[re.Match[str]], str]) -> Callable[[str], str]:
        """Return a change of emitted text."""

        def change(text: str) -> str:
            changed, times = re.subn(pattern, new, text)
            self.times += times if changed != text else 0
            return changed

        return change


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: what is wrong.
        plant: given a counter, a context in which the bug is there, and what runs a program then.
    """

    name: str
    plant: Callable[[Applied], AbstractContextManager[Target]] = field(repr=False)


def _in_text(pattern: str, new: Any, backend: str = "cpu") -> Any:
    def plant(applied: Applied) -> AbstractContextManager[Target]:
        change = applied.text(pattern, new)
        if backend == "cpu":
            return nullcontext(on_features(None, change))
        if backend == "cuda":
            from tests.fuzz.cuda import Shim

            return nullcontext(Shim(change))
        from tests.fuzz import triton

        return nullcontext(lambda program, inputs: triton.run(program, inputs, change))

    return plant


def _in_code(owner: str, name: str, wrong: Callable[[Any], Any]) -> Any:
    """Replace a function by what ``wrong`` makes of it; works on cpu programs."""

    @contextmanager
    def plant(applied: Applied) -> Iterator[Target]:
        module, _, cls = owner.partition(":")
        place = __import__(module, fromlist=["_"])
        place = getattr(place, cls) if cls else place
        right = getattr(place, name)
        changed = wrong(right)

        def counted(*args: Any, **kwargs: Any) -> Any:
            applied.times += 1
            return changed(*args, **kwargs)

        with patch.object(place, name, counted):
            yield on_features(None)

    return plant


def _one_less(match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) - 1}"


def _shorter_lives(right: Any) -> Any:
    """A buffer's memory is given away before its last reader."""

    def wrong(intervals: Sequence[Any]) -> Any:
        from irc.plan.arena import Interval

        return right([Interval(i.size_bytes, i.first, max(i.first, i.last - 1)) for i in intervals])

    return wrong


def _even(right: Any) -> Any:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return right(*args, **{**kwargs, "odd": False})

    return wrong


def _lanes_dropped(right: Any) -> Any:
    """The last step of a horizontal reduction is left out."""

    def wrong(self: Any, b: Any, total: Any) -> Any:
        return right(self, b, total) if total.type.lanes == 1 else b.lane(total, 0)

    return wrong


def _unmasked(right: Any) -> Any:
    """A reduction takes the lanes beyond the tail along."""

    def wrong(self: Any, b: Any, total: Any, values: Any, mask: Any) -> Any:
        return right(self, b, total, values, None)

    return wrong


def _truncated(right: Any) -> Any:
    """bfloat16 is cut off, not rounded."""

    def wrong(b: Any, value: Any) -> Any:
        bits = b.convert("bitcast", value, "i32")
        from irc.backends.cpu.vector.builder import constant

        return b.convert("trunc", b.binary("lshr", bits, constant(bits.type, 16)), "i16")

    return wrong


def _no_offset(right: Any) -> Any:
    """A slice forgets where it starts."""

    def wrong(self: Any, starts: Any, stops: Any, steps: Any) -> Any:
        from dataclasses import replace

        sliced = right(self, starts, stops, steps)
        return None if sliced is None else replace(sliced, offset=self.offset)

    return wrong


def _same_perm(right: Any) -> Any:
    """A transposed view keeps its strides and takes the new shape where it can."""

    def wrong(self: Any, perm: Any) -> Any:
        from irc.kernels.view import View

        plain = right(self, perm)
        return View.contiguous(plain.shape) if plain.size == self.size else plain

    return wrong


def _any_choice(right: Any) -> Any:
    """``where`` takes its second operand always: the mask of a softmax is dropped."""

    def wrong(b: Any, fn: str, args: Any, dtypes: Any, result: str) -> Any:
        return args[1] if fn == "where" else right(b, fn, args, dtypes, result)

    return wrong


def _epilogue_twice(right: Any) -> Any:
    """Negative partial sums are cut off before the last block of k is added."""

    def wrong(f: Any, *args: Any, **kwargs: Any) -> Any:
        return right(f, *args, **{**kwargs, "accumulate": False})

    return wrong


def _never_fresh(right: Any) -> Any:
    """The first block of k is added to what nobody wrote; a fresh arena is zeros."""

    def wrong(f: Any, *args: Any, **kwargs: Any) -> Any:
        return right(f, *args, **{**kwargs, "accumulate": True})

    return wrong


def _in_place_too_early(applied: Applied) -> AbstractContextManager[Target]:
    """A scatter writes over its operand though another kernel still has to read it."""

    @contextmanager
    def plant() -> Iterator[Target]:
        import torch

        import irc
        from irc.passes import update_in_place

        def written(cache: Any, index: Any, source: Any) -> Any:
            old = cache.clone()
            cache.scatter_(0, index, source)
            return old.sum(0) * 2

        def run(program: Program, inputs: Sequence[Any]) -> Any:
            operands = torch.randn(5, 4), torch.tensor([[1, 2, 3, 0]]), torch.ones(1, 4)
            wanted = written(operands[0].clone(), *operands[1:])
            with torch.no_grad():
                result = irc.compile(written)(operands[0].clone(), *operands[1:])
            torch.testing.assert_close(result, wanted)
            return program.function()(*inputs)

        def nobody(*_: Any) -> dict[Any, int]:
            applied.times += 1
            return {}

        with patch.object(update_in_place, "_last_touch", nobody):
            yield run

    return plant()


def _one_frame(applied: Applied) -> AbstractContextManager[Target]:
    """All threads that call a function share one arena."""

    @contextmanager
    def plant() -> Iterator[Target]:
        from collections import deque

        from irc.runtime.executor import Executor

        class Kept(deque[Any]):
            """Lends its only item without giving it away."""

            def pop(self) -> Any:
                applied.times += 1
                return self[-1]

            def append(self, item: Any) -> None:
                if not self:
                    super().append(item)

        right = Executor.__init__

        def wrong(self: Any, *args: Any, **kwargs: Any) -> None:
            right(self, *args, **kwargs)
            self.leases = Kept()

        with patch.object(Executor, "__init__", wrong):
            yield in_threads

    return plant()


def in_threads(program: Program, inputs: Sequence[Any], rounds: int = 200) -> Any:
    """Run a program by irc.compile in four threads at once, each on inputs of its own."""
    import threading

    import torch

    import irc

    fast = irc.compile(program.function())
    floats = [x.is_floating_point() for x in inputs]
    own_inputs = [
        [x * (1 + i) if f else x for x, f in zip(inputs, floats, strict=True)] for i in range(4)
    ]
    with torch.no_grad():
        alone = [[y.clone() for y in fast(*each)] for each in own_inputs]
    wrong: list[str] = []

    def work(i: int) -> None:
        with torch.no_grad():
            for _ in range(rounds):
                for one, other in zip(fast(*own_inputs[i]), alone[i], strict=True):
                    if not torch.equal(one.nan_to_num(), other.nan_to_num()):
                        wrong.append(f"thread {i} differs from itself alone")
                        return

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    return alone[0]


MUTANTS: tuple[Mutant, ...] = (
    # masks and tails
    Mutant("cpu: tail mask one lane too long", _in_text(
        r"icmp slt (<\d+ x i32>)", r"icmp sle \1")),
    Mutant("cpu: tail lanes enter a reduction", _in_code(
        "irc.backends.cpu.loops.reduction:Reduction", "accumulate", _unmasked)),
    Mutant("cpu: last column of an odd sum dropped", _in_code(
        "irc.backends.cpu.matmul.packed", "tile_function", _even)),
    Mutant("cpu: mask of a softmax dropped", _in_code(
        "irc.backends.cpu.loops.steps", "apply", _any_choice)),
    Mutant("cpu: lanes of a reduction dropped", _in_code(
        "irc.backends.cpu.loops.reduction:Reduction", "horizontal", _lanes_dropped)),
    # places
    Mutant("cpu: wrong stride", _in_text(r"(mul nsw i64 %\w+, )([2-9]\d*|1\d+)", _one_less)),
    Mutant("cpu: offset of a slice forgotten", _in_code(
        "irc.kernels.view:View", "slice", _no_offset)),
    Mutant("cpu: strides of a transpose forgotten", _in_code(
        "irc.kernels.view:View", "transpose", _same_perm)),
    # arithmetic
    Mutant("cpu: operands of a subtraction swapped", _in_text(
        r"fsub (<\d+ x float>|float) (%v\d+), (%v\d+)", r"fsub \1 \3, \2")),
    Mutant("cpu: bfloat16 cut off", _in_code(
        "irc.backends.cpu.vector.storage", "_float_to_bfloat", _truncated)),
    Mutant("cpu: a long sum keeps its last block only", _in_code(
        "irc.backends.cpu.matmul.packed", "tile_function", _epilogue_twice)),
    # memory
    Mutant("cpu: a sum starts from what memory holds", _in_code(
        "irc.backends.cpu.matmul.packed", "tile_function", _never_fresh)),
    Mutant("plan: live ranges end too early", _in_code(
        "irc.passes.plan_memory", "assign_offsets", _shorter_lives)),
    Mutant("plan: a scatter in place before the last reader", _in_place_too_early),
    Mutant("runtime: threads share one arena", _one_frame),
    # cuda
    Mutant("cuda: barriers missing", _in_text(r"__syncthreads\(\);", "", "cuda")),
    Mutant("cuda: a row too many is alive", _in_text(
        r"const bool live = place < (\d+)", r"const bool live = place <= \1", "cuda")),
    Mutant("cuda: last column of a row dropped", _in_text(
        r"(c < )(\d+)(?=[;)])", _one_less, "cuda")),
    Mutant("cuda: epilogue before the split sum", _in_text(
        r"(partial\[[^;]*\] = )([^;]+);", r"\1((\2) < 0 ? 0 : (\2));", "cuda")),
    Mutant("cuda: operands of a subtraction swapped", _in_text(
        r"= (v\d+(?:\[j\])?) - (v\d+(?:\[j\])?);", r"= \2 - \1;", "cuda")),
    Mutant("cuda: wrong stride", _in_text(r"(i\d+ \* )([2-9]\d*|1\d+)", _one_less, "cuda")),
    # triton
    Mutant("triton: last element of a tail dropped", _in_text(
        r"(m\w* = \w+ < )(\d+)", _one_less, "triton")),
    Mutant("triton: operands of a product swapped", _in_text(
        r"(\w+) - (\w+)  #", r"\2 - \1  #", "triton")),
    Mutant("triton: loads beyond a tail are not neutral", _in_text(
        r"tl\.where\((m\w+), (\w+), (?:float\([^)]*\)|[^()]*)\)", r"\2", "triton")),
    Mutant("triton: wrong stride", _in_text(
        r"(i\d+ \* )([2-9]\d*|1\d+)", _one_less, "triton")),
)  # fmt: skip


def programs() -> Iterator[tuple[str, Program]]:
    """Yield what mutants are tried on: programs written by hand, then seeds."""
    yield from DIRECTED.items()
    for seed in range(SEEDS):
        yield f"seed {seed}", generate(seed, simple=seed % 2 == 1)


def killed_by(mutant: Mutant) -> str:
    """Return what kills a mutant; ``survives`` or ``not planted`` where nothing does."""
    applied = Applied()
    with mutant.plant(applied) as run:
        for name, program in programs():
            failure = check_with(program, run)
            if failure is not None and applied.times:
                return f"{name}: {failure.kind}: {failure.text[:90]}"
    return "survives" if applied.times else "not planted"


def trial(mutant: Mutant | SceneMutant) -> str:
    """Run :func:`killed_by` in a forked process; a signal that ends it kills the mutant."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            verdict = killed_by(mutant) if isinstance(mutant, Mutant) else mutant.killed_by()
            os.write(write, verdict.encode())
        except BaseException:
            os.write(write, f"broken: {traceback.format_exc(limit=-3)}".encode()[:2000])
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def is_killed(text: str) -> bool:
    """True for what :func:`trial` says of a killed mutant."""
    return not text.startswith(("survives", "not planted", "broken"))


def main() -> int:
    """Try all mutants and print the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose names contain this")
    options = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET") != "1":
        # Triton reads it once, when it is imported.
        os.environ["TRITON_INTERPRET"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz.mutants", *sys.argv[1:]])
    chosen = [m for m in (*MUTANTS, *SCENE_MUTANTS) if options.only in m.name]
    killed = 0
    for mutant in chosen:
        text = trial(mutant)
        killed += is_killed(text)
        print(f"{mutant.name:48} {text}", flush=True)
    print(f"mutation score: {killed} of {len(chosen)} planted miscompiles caught")
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
