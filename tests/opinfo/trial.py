"""One call through a compiler, held against the eager one."""

# pyright: basic
from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.memory_layout import overlapping
from tests.opinfo.compare import (
    DRAWS,
    LACKS,
    LIES,
    Together,
    difference,
    laid_otherwise,
    same,
    stray,
    unlike,
)
from tests.opinfo.compilers import COMPILERS, Compiled, Compiler, through_aot
from tests.opinfo.entries import SEED, Call, calls
from tests.opinfo.expected import TIES, TRACED_OTHERWISE, UNINITIALISED, UNTOLD
from tests.opinfo.ways import Way

NATIVE, FALL_BACK, LEFT, FAILING = "native", "fall-back", "left", "failing"


REFUSED = "depends on the values of a tensor"
"""What ``irc.compile``, which does not break graphs, says of sizes that only a run can tell."""


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        verdict: ``native``: all of it in kernels and library ops of flow; ``fall-back``: the plan
            leaves some op without flow form to a library; ``left``: torch's capture breaks the
            graph, or fails whatever the backend; ``failing``: an exception, or other numbers.
        reason: why, in one line.
        externs: ops without flow form that a library runs, how often.
        compile_ms: process time in the backend.
    """

    verdict: str
    reason: str = ""
    externs: dict[str, int] = field(default_factory=dict[str, int])
    compile_ms: float = 0.0

    as_dict = asdict


def try_entry(name: str, way: Way, most: int | None = None) -> Iterator[Outcome]:
    """Try an entry's samples one by one, all of them or so many."""
    for call in calls(name, way, most):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # What irc fails on torch runs, with a warning: here it is a failure.
            warnings.filterwarnings("error", message=r"warning\[internal\]")
            outcome = Trial(name, call, way.backward, *COMPILERS[way.through]).outcome()
        yield outcome


@dataclass(frozen=True)
class Trial:
    """A call of an entry, a compiler, and the control."""

    name: str
    call: Call
    backward: bool
    compiler: Compiler
    control: Compiler

    def outcome(self) -> Outcome:
        """Run the call eagerly and compiled, and the control where that explains something."""
        try:
            compiled, wrong = self.held_against_eager(self.compiler)
        except Exception as error:
            compiled, wrong = None, cause_of(error)
        for kind in (LIES, LACKS):
            if kind in wrong and self.is_so_in_torch(kind):
                wrong = ""
        externs = dict(compiled.left_to_libraries()) if compiled is not None else {}
        refused = any(name.startswith("refused") for name in externs)
        if compiled is not None and not wrong and (refused or _is_whole(compiled)):
            verdict = FALL_BACK if externs else NATIVE
            return Outcome(verdict, ", ".join(sorted(externs)), externs, sum(compiled.compile_ms))
        reason = self.control_reason(wrong)
        if reason is None:
            return Outcome(FAILING, wrong or "more graphs than the control has")
        return Outcome(LEFT, reason)

    def is_so_in_torch(self, kind: str) -> bool:
        """True where AOTAutograd without irc lays a tensor otherwise than eager, too, or shares it.

        The gradient of a product over one element is the result's own in a trace, since the branch
        that eager takes depends on whether an element is 0.
        """
        if kind == LIES and self.name in TRACED_OTHERWISE and self.call.is_half():
            return True
        try:
            _, wrong = self.held_against_eager(through_aot)
        except Exception:  # it does not run what irc runs
            return False
        return kind in wrong

    def control_reason(self, wrong: str) -> str | None:
        """Say what goes wrong in torch's capture for any backend; None where nothing does."""
        try:
            control, bad = self.held_against_eager(self.control)
        except Exception as error:
            return f"fails in every backend: {cause_of(error)}"
        if bad:
            return f"differs in every backend: {bad}"
        if REFUSED in wrong:
            return f"refused: {wrong}"
        if wrong or _is_whole(control):
            return None
        graphs = len(control.compile_ms)
        captured = f"{graphs} graphs" if graphs else "no graph"
        return f"{captured}: {_first(control.breaks()) or 'nothing to compute'}"

    def held_against_eager(self, compiler: Compiler) -> tuple[Compiled, str]:
        """Compile, run, and return how the result differs from the eager one."""
        compiled = compiler(self.call)
        torch.manual_seed(SEED)
        got = self.run(compiled.call)
        want = self.eager()
        if self.name in UNINITIALISED:
            return compiled, unlike(got, want)
        if wrong := unlike(got, want):
            return compiled, wrong
        lies = laid_otherwise(got, want, apart=self.name in UNTOLD)
        if same(self.eager(seed=SEED + 1), want):
            wrong = difference(got, want, lambda: self.eager(wide=True)) or self.added_apart(
                compiled.call
            )
            return compiled, wrong or lies
        if lies:
            return compiled, lies
        draws = [got, *(self.run(compiled.call) for _ in range(DRAWS - 1))]
        return compiled, stray(draws, [self.eager(seed=seed) for seed in range(DRAWS)])

    def eager(self, seed: int = SEED, *, wide: bool = False) -> Any:
        """Return what the call gives, with the gradients of its inputs."""
        torch.manual_seed(seed)
        return self.run(self.call.op, wide=wide)

    def run(self, function: Callable[..., Any], *, wide: bool = False) -> Any:
        """Call a function on copies of the arguments."""
        call = (self.call.widened() if wide else self.call).copied()
        if not self.backward:
            with torch.no_grad():
                return self._told(call, function(*call.args, **call.kwargs))
        result = function(*call.args, **call.kwargs)
        return self._told(call, result), gradients(call, result)

    def added_apart(self, function: Callable[..., Any]) -> str:
        """Return how ``.grad`` of the inputs differs from eager's after two backward passes."""
        if not self.backward:
            return ""
        try:
            eager = self.added(self.call.op)
        except RuntimeError:  # sgn's gradient is zeros that torch lets nothing be added to
            return ""
        return difference(
            self.added(function), eager,
            lambda: self.added(self.call.op, wide=True),
        )  # fmt: skip

    def added(self, function: Callable[..., Any], *, wide: bool = False) -> Any:
        """Return ``.grad`` of the inputs after two calls, each on new inputs with the old ones."""
        kept: list[torch.Tensor | None] = []
        for _ in range(2):
            call = (self.call.widened() if wide else self.call).copied()
            inputs = [x for x in _tensors((call.args, call.kwargs)) if x.requires_grad]
            for x, grad in zip(inputs, kept, strict=False):
                x.grad = grad
            torch.manual_seed(SEED)
            result = function(*call.args, **call.kwargs)
            results = [x for x in _tensors(call.chosen(result)) if x.requires_grad]
            if not results:
                return []
            # Nobody holds a result's gradient, so that an input's may keep its memory.
            losses = [(x * w).sum() for x, w in zip(results, _cotangents(results), strict=True)]
            torch.autograd.backward([x.real if x.is_complex() else x for x in losses])
            kept = [x.grad for x in inputs]
        return [*kept, together({".grad": kept}, ".grad")]

    def _told(self, call: Call, result: Any) -> Any:
        """Return a result with what indices of equal elements point to in their place."""
        if self.name not in TIES:
            return result
        values, indices = result
        where = call.args[1 + TIES[self.name] :]
        dim = call.kwargs.get("dim", where[0] if where else -1)
        operand = call.args[0].detach()
        return values, operand.gather(dim, indices) if operand.ndim else operand


def _is_whole(compiled: Compiled) -> bool:
    return len(compiled.compile_ms) == 1 and not compiled.breaks()


def gradients(
    call: Call, result: Any, parameters: Sequence[torch.Tensor] = ()
) -> list[torch.Tensor | Together | None]:
    """Return gradients of a call's inputs and parameters, for fixed gradients of its results.

    Behind them, which have elements of another one, of an input, a result or its gradient.
    """
    results = [x for x in _tensors(call.chosen(result)) if x.requires_grad]
    inputs = [x for x in (*_tensors((call.args, call.kwargs)), *parameters) if x.requires_grad]
    if not results or not inputs:
        return []
    cotangents = _cotangents(results)
    grads = torch.autograd.grad(results, inputs, cotangents, allow_unused=True)
    kinds = {"input": inputs, "result": results, "result's gradient": cotangents, "gradient": grads}
    return [*grads, together(kinds, "gradient")]


def together(kinds: Mapping[str, Sequence[torch.Tensor | None]], last: str) -> Together:
    """Say which tensors of the last kind have elements of others."""
    named = [(f"{kind} {i}", x) for kind, each in kinds.items() for i, x in enumerate(each)]
    pairs = overlapping([x for _, x in named])
    first = len(named) - len(kinds[last])
    return Together(frozenset((named[i][0], named[j][0]) for i, j in pairs if j >= first))


def _cotangents(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients of results that lie as those do: so AOTAutograd lays them."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.empty_like(x).copy_(_drawn(x, generator)) for x in results]


def _drawn(result: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return numbers like a result's, the same ones in each precision."""
    wide = torch.complex128 if result.is_complex() else torch.float64
    numbers = torch.randn(result.shape, dtype=wide, generator=generator)
    # Few bits, so that no precision rounds them: the reference differentiates for the same ones.
    numbers = torch.view_as_real(numbers) if result.is_complex() else numbers
    numbers = numbers.mul_(16).round_().div_(16)
    numbers = torch.view_as_complex(numbers) if result.is_complex() else numbers
    return numbers.to(result.dtype)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


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
