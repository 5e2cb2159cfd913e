"""One call through a compiler, held against the eager one."""

# pyright: basic
from __future__ import annotations

import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch._dynamo.guards
from torch.utils import _pytree as pytree

from irc import torch_backend
from tests.opinfo.compare import DRAWS, difference, same, stray_moments, unlike
from tests.opinfo.entries import SEED, Call, calls
from tests.opinfo.expected import UNINITIALISED

# Dynamo times the guards of each function, behind a flush of the caches: 20 ms that mean nothing.
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0

NATIVE, FALL_BACK, DYNAMO, FAILING = "native", "fall-back", "dynamo", "failing"


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        verdict: ``native``: all of it in kernels and library ops of flow; ``fall-back``: some op is
            an extern; ``dynamo``: no graph, or more than one, as with the control (see
            ``reason``); ``failing``: an exception, or other numbers.
        reason: why, in one line.
        externs: ops without flow form, how often.
        compile_ms: process time in the backend.
    """

    verdict: str
    reason: str = ""
    externs: dict[str, int] = field(default_factory=dict[str, int])
    compile_ms: float = 0.0

    as_dict = asdict


@dataclass
class _Run:
    """The result of a compiled call, and what Dynamo and the backend did for it."""

    value: Any
    graphs: int
    breaks: Counter[str]
    counted: Counter[str]
    compile_ms: float
    again: Callable[[], Any]


Compiler = Callable[..., Any]


def try_entry(name: str, *, backward: bool, most: int | None, through: str) -> list[Outcome]:
    """Try an entry's samples one by one.

    Args:
        name: the entry.
        backward: compare gradients too.
        most: samples that are tried.
        through: ``torch.compile``, or ``irc.compile``.
    """
    found: list[Outcome] = []
    for call in calls(name, backward=backward, most=most):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(_Trial(name, call, backward, through).outcome())
    return found


class _Trial:
    def __init__(self, name: str, call: Call, backward: bool, through: str) -> None:
        self.name = name
        self.call = call
        self.backward = backward
        self.through = through

    def outcome(self) -> Outcome:
        """Run the call eagerly and compiled, and the control where that explains something."""
        want = self.eager(self.call.copied())
        try:
            run = self.compiled(torch_backend.compile_fx)
            wrong = self.wrong(run, want)
        except Exception as error:
            return self.judged(None, cause_of(error))
        return self.judged(run, wrong)

    def judged(self, run: _Run | None, wrong: str) -> Outcome:
        """Return the verdict; where the control does no better, it is Dynamo's."""
        if run is not None and not wrong and run.graphs == 1 and not run.breaks:
            return _captured(run)
        reason = self.control_reason(wrong)
        if reason is None:
            return Outcome(FAILING, wrong or "more graphs than the control has")
        return Outcome(DYNAMO, reason)

    def control_reason(self, wrong: str) -> str | None:
        """Say what Dynamo does with the call for any backend; None where it does well."""
        try:
            control = self.compiled(_eager_backend)
            bad = self.wrong(control, self.eager(self.call.copied()))
        except Exception as error:
            return f"fails in every backend: {cause_of(error)}"
        if bad:
            return f"differs in every backend: {bad}"
        if wrong:
            return None
        if control.graphs == 0:
            return f"no graph: {_first(control.breaks) or 'nothing to compute'}"
        if control.breaks or control.graphs > 1:
            return f"{control.graphs} graphs: {_first(control.breaks)}"
        return None

    def wrong(self, run: _Run, want: Any) -> str:
        """Return how the compiled result differs from the eager one."""
        if self.name in UNINITIALISED:
            return unlike(run.value, want)
        other = self.eager(self.call.copied(), seed=SEED + 1)
        if same(other, want):
            return difference(run.value, want, lambda: self.eager(self.call.widened().copied()))
        got = [run.value, *(run.again() for _ in range(DRAWS - 1))]
        wanted = [self.eager(self.call.copied(), seed=seed) for seed in range(DRAWS)]
        return stray_moments(got, wanted)

    def eager(self, call: Call, seed: int = SEED) -> Any:
        """Return what the call gives, with the gradients of its inputs."""
        torch.manual_seed(seed)
        return self.with_gradients(call, call)

    def with_gradients(self, call: Call, run: Callable[[], Any]) -> Any:
        if not self.backward:
            with torch.no_grad():
                return run()
        found = run()
        return found, gradients(call, found)

    def compiled(self, backend: Compiler) -> _Run:
        """Compile a function that makes the call, and call it."""
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch_backend.counters.clear()
        spent: list[float] = []

        def timed(gm: Any, inputs: Sequence[Any], **options: Any) -> Any:
            began = time.process_time()
            try:
                return backend(gm, inputs, **options)
            finally:
                spent.append(1e3 * (time.process_time() - began))

        call = self.call.copied()
        function = torch.compile(fresh(call.op), backend=timed)

        def again() -> Any:
            new = self.call.copied()
            return self.with_gradients(new, lambda: function(*new.args, **new.kwargs))

        torch.manual_seed(SEED)
        value = self.with_gradients(call, lambda: function(*call.args, **call.kwargs))
        breaks = Counter(dict(torch._dynamo.utils.counters["graph_break"]))
        return _Run(value, len(spent), breaks, Counter(torch_backend.counters), sum(spent), again)


def _captured(run: _Run) -> Outcome:
    externs = {
        name.removeprefix("extern "): times
        for name, times in run.counted.items()
        if name.startswith("extern ") or name == "backward run by torch"
    }
    return Outcome(
        FALL_BACK if externs else NATIVE,
        ", ".join(sorted(externs)),
        externs,
        run.compile_ms,
    )


def fresh(op: Callable[..., Any], _number: list[int] = [0]) -> Callable[..., Any]:  # noqa: B006
    """Return a function of its own that calls an operator: Dynamo keeps its code by code object."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    _number[0] += 1
    name = f"called_{_number[0]}"
    return types.FunctionType(
        called.__code__.replace(co_name=name), globals(), name, None, called.__closure__
    )


def _eager_backend(gm: Any, inputs: Sequence[Any], **_: Any) -> Any:
    return gm.forward


def gradients(call: Call, found: Any) -> list[torch.Tensor | None]:
    """Return the gradients of a call's inputs, for fixed gradients of its results."""
    results = [
        leaf
        for leaf in pytree.tree_leaves(call.chosen(found))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    inputs = [
        leaf
        for leaf in pytree.tree_leaves((call.args, call.kwargs))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not results or not inputs:
        return []
    torch.manual_seed(SEED)
    given = [torch.randn(r.shape, dtype=r.dtype) for r in results]
    return list(torch.autograd.grad(results, inputs, given, allow_unused=True))


def cause_of(error: BaseException) -> str:
    """Return an exception as one line: the innermost cause and where it was raised."""
    inner = getattr(error, "inner_exception", None) or error
    frames = traceback.extract_tb(inner.__traceback__)
    own = [f for f in frames if "/irc/" in f.filename or "/passes/" in f.filename] or frames
    where = f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}" if own else "?"
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__} at {where}: {' '.join(lines[:3])}"[:300]


def _first(breaks: Counter[str]) -> str:
    text = next(iter(breaks), "")
    return " ".join(text.split())[:160]
