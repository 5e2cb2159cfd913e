"""The ways from an operator to compiled code: Dynamo with a backend, and ``irc.compile``."""

# pyright: basic
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch._dynamo.guards
from torch._dynamo.backends.registry import lookup_backend

import irc
from irc.calls import noted
from irc.frontends.torch.export import as_module
from irc.plan.libraries import fall_backs
from irc.torch_backend import compile_fx
from irc.torch_backend.counts import counters
from tests.opinfo.entries import Call

# Dynamo times the guards of each function, behind a flush of the caches: 20 ms that mean nothing.
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0


@dataclass
class Compiled:
    """An operator compiled on its first call.

    Attributes:
        call: runs it.
        compile_ms: process time in the compiler, one number per graph.
        breaks: Dynamo's reasons for giving up a graph.
        left_to_libraries: ops without flow form that a library computes in the plans, how often;
            and graphs that the backend refused, which Dynamo breaks and Python runs.
    """

    call: Callable[..., Any]
    compile_ms: list[float]
    breaks: Callable[[], Counter[str]]
    left_to_libraries: Callable[[], Counter[str]]


Compiler = Callable[[Call], Compiled]


def through_dynamo(backend: Callable[..., Any], call: Call) -> Compiled:
    """Compile with Dynamo, whose state begins anew."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    counters.clear()
    spent: list[float] = []
    refused: Counter[str] = Counter()
    function = torch.compile(call.compilable(), backend=_timed(backend, spent, refused))
    return Compiled(
        function,
        spent,
        lambda: Counter(dict(torch._dynamo.utils.counters["graph_break"])),
        lambda: _by_libraries() + refused,
    )


def _by_libraries() -> Counter[str]:
    """Return what the backend of Dynamo has left to libraries, and backward passes to torch."""
    return Counter(
        {
            name.removeprefix("library "): times
            for name, times in counters.items()
            if name.startswith("library ") or name == "backward run by torch"
        }
    )


def through_irc(call: Call) -> Compiled:
    """Compile with ``irc.compile``."""
    fallbacks: Counter[str] = Counter()
    spent: list[float] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        loaded = make_plan(*args, **kwargs)
        fallbacks.update(fall_backs(loaded.plan))
        return loaded

    # After a sample of other sizes Dynamo leaves them open, and AOTAutograd lays gradients anew.
    torch._dynamo.reset()
    counters.clear()
    make_plan = noted.make_plan
    function = irc.compile(call.compilable())

    def run(*args: Any, **kwargs: Any) -> Any:
        noted.make_plan = counted
        began = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            noted.make_plan = make_plan
            if not spent:
                spent.append(1e3 * (time.process_time() - began))

    # With gradients a call goes by Dynamo.
    return Compiled(run, spent, Counter, lambda: fallbacks + _by_libraries())


def through_export(call: Call) -> Compiled:
    """Run what torch.export makes of it: the control of :func:`through_irc`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        exported = torch.export.export(as_module(call.compilable()), args, kwargs, strict=False)
        return exported.module()(*args, **kwargs)

    return Compiled(run, [0.0], Counter, Counter)


def eager_backend(gm: Any, inputs: Sequence[Any], **_: Any) -> Any:
    """Run a graph of Dynamo as it is."""
    return gm.forward


def through_aot(call: Call) -> Compiled:
    """Compile with Dynamo and AOTAutograd, without irc: the control of where tensors lie."""
    return through_dynamo(lookup_backend("aot_eager"), call)


COMPILERS: dict[str, tuple[Compiler, Compiler]] = {
    "torch.compile": (
        partial(through_dynamo, compile_fx),
        partial(through_dynamo, eager_backend),
    ),
    "irc.compile": (through_irc, through_export),
}
"""By name: irc, and the control that shows what fails without it."""


def _timed(
    backend: Callable[..., Any], spent: list[float], refused: Counter[str]
) -> Callable[..., Any]:
    def compile_graph(gm: Any, inputs: Sequence[Any], **options: Any) -> Any:
        began = time.process_time()
        try:
            compiled = backend(gm, inputs, **options)
        except Exception as error:
            refused[f"refused: {type(error).__name__} {' '.join(str(error).split())[:60]}"] += 1
            raise
        spent.append(1e3 * (time.process_time() - began))
        return compiled

    return compile_graph
