"""How a scene is compiled, and what is wrong with it then: targets ``way-...`` of the fuzzer."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import irc
from irc.backends.cpu.features import host
from irc.errors import IrcError
from tests.fuzz import guarded
from tests.fuzz.check import Failure
from tests.fuzz.observed import TOGETHER, Way, differences, observe
from tests.fuzz.scenes import Scene
from tests.memory_layout import layout
from tests.processors import runnable

SETS = (None, *runnable())
"""Instruction sets that run here, in turn by seed: each way meets all of them."""


def _compiled(target: Any) -> Any:
    return irc.compile(target)


def _dynamo(target: Any) -> Any:
    return torch.compile(target, backend="irc", dynamic=False)


def aot_eager(target: Any) -> Any:
    """Compile by way of Dynamo and AOTAutograd, without irc."""
    return torch.compile(target, backend="aot_eager", dynamic=False)


@dataclass(frozen=True)
class Manner:
    """A way to call, and whether gradients are recorded."""

    way: Way
    gradients: bool


WAYS: Mapping[str, Manner] = {
    "way-compile": Manner(_compiled, gradients=False),
    "way-train": Manner(_compiled, gradients=True),
    "way-dynamo": Manner(_dynamo, gradients=False),
    "way-dynamo-train": Manner(_dynamo, gradients=True),
}


def at(name: str, seed: int) -> tuple[int, str]:
    """Return the number of the instruction set for a scene, and the way that it goes.

    Args:
        name: a way, or ``way``: the one whose turn it is.
        seed: of the scene.
    """
    ways = list(WAYS)
    way = ways[seed % len(ways)] if name == "way" else name
    return (seed // len(ways) + ways.index(way)) % len(SETS), way


@contextmanager
def instructions(features: Any) -> Generator[None]:
    """Compile kernels for an instruction set; None: this machine's."""
    chosen = features or host()
    # The package gives the function of that name, not the module.
    with patch.object(sys.modules["irc.backends.cpu.emit"], "host", lambda: chosen):
        yield


def check(scene: Scene, name: str, features: Any = None) -> Failure | None:
    """Run a scene in eager and in a way; return what is wrong, or None.

    What Dynamo and AOTAutograd get wrong in the same way without irc is not counted, nor strides
    that torch's kernels for tracing give: of dims with one element those of the CPU give others,
    and a convolution that follows lies accordingly.
    """
    failure = _check(scene, WAYS[name], features)
    if failure is None or _lies_as_traced(scene, WAYS[name], features, failure):
        return None
    if not may_be_torch(name, scene, failure):
        return failure
    without = _check(scene, replace(WAYS[name], way=aot_eager), None)
    return failure if without is None or without.kind != failure.kind else None


STRIDES = re.compile(r"result (\d+) \(\w+\) has strides \([\d, ]*\), not \([\d, ]*\)")


def _lies_as_traced(scene: Scene, manner: Manner, features: Any, failure: Failure) -> bool:
    """True where only results lie otherwise than eager's, and as torch's own trace says."""
    texts = [STRIDES.fullmatch(text) for text in failure.text.split("; ")]
    if failure.kind != "type" or None in texts:
        return False
    plain = replace(scene, hook="")
    try:
        told = observe(plain, _traced, gradients=False).results
        torch._dynamo.reset()
        with instructions(features):
            seen = observe(plain, manner.way, gradients=manner.gradients).results
    except Exception:  # numbers decide what it does, so that a trace says nothing
        return False
    places = [int(text[1]) for text in texts if text is not None]
    return all(layout(told[i])[0] == layout(seen[i])[0] for i in places)


def _traced(target: Any) -> Any:
    """Call a function on fake tensors; return tensors without numbers that lie as its results."""

    def call(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mode = FakeTensorMode()
        with mode:
            fakes = target(*map(mode.from_tensor, arguments))
        return tuple(torch.empty_strided(y.shape, y.stride(), dtype=y.dtype) for y in fakes)

    return call


def may_be_torch(name: str, scene: Scene, failure: Failure) -> bool:
    """True where a failure counts only if AOTAutograd does not have it without irc."""
    # Without gradients irc.compile hands few calls on to Dynamo: those that draw numbers are.
    # Gradients that lie in each other are wrong when they are added to, whoever lets them.
    is_handed_on = name != "way-compile" or failure.kind == "crash" or scene.draws
    return failure.kind != "memory" and is_handed_on


def _check(scene: Scene, manner: Manner, features: Any) -> Failure | None:
    try:
        if scene.hook == "backward" and not _records(scene, gradients=manner.gradients):
            return None  # eager runs such a hook by an op that records for any argument
        wanted = observe(scene, lambda target: target, gradients=manner.gradients)
        wide = observe(scene.widened(), lambda target: target, gradients=manner.gradients)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None  # eager does not run it this way
    torch._dynamo.reset()
    try:
        with instructions(features), guarded.guarded_arenas():
            seen = observe(scene, manner.way, gradients=manner.gradients)
    except Exception as error:
        cause = getattr(error, "inner_exception", error)
        kind = "refused" if isinstance(cause, IrcError) else "crash"
        return Failure(kind, f"{type(cause).__name__}: {cause}"[:600])
    texts = differences(scene, seen, wanted, wide)
    if any(text.startswith(TOGETHER) for text in texts):
        return Failure("memory", "; ".join(texts))
    kind = "type" if texts and re.search(r"strides|shared|hooks|is torch|repeat", texts[0]) else ""
    return Failure(kind or "wrong", "; ".join(texts)) if texts else None


def _records(scene: Scene, *, gradients: bool) -> bool:
    """True where a result records gradients without a hook, or none is to."""
    plain = observe(replace(scene, hook=""), lambda target: target, gradients=gradients)
    return not gradients or any(y.requires_grad for y in plain.results)


def shrunk(scene: Scene, fails: Callable[[Scene], bool]) -> Scene:
    """Return a smaller scene that fails in the same way."""
    again = True
    while again:
        again = False
        for candidate in _smaller(scene):
            if fails(candidate):
                scene, again = candidate, True
                break
    return scene


def _smaller(scene: Scene) -> Iterator[Scene]:
    """Yield scenes without a hook, a result, a statement, an argument or a layout."""
    if scene.hook:
        yield replace(scene, hook="")
    if len(scene.results) > 1:
        for i in range(len(scene.results)):
            yield replace(scene, results=scene.results[:i] + scene.results[i + 1 :])
    for i, (defined, line) in enumerate(scene.lines):
        rest = scene.lines[:i] + scene.lines[i + 1 :]
        is_write = not line.startswith(f"{defined} = ")
        if is_write or not (defined in scene.results or _reads(rest, defined)):
            yield replace(scene, lines=rest)
    for i, x in enumerate(scene.arguments):
        alone = scene.arguments[:i] + scene.arguments[i + 1 :]
        read = _reads(scene.lines, x.name) or any(x.name in a.of for a in alone)
        if alone and not read and x.name not in scene.results:
            yield replace(scene, arguments=alone)
        if x.layout != "plain":
            plain = replace(x, layout="plain")
            yield replace(scene, arguments=(*scene.arguments[:i], plain, *scene.arguments[i + 1 :]))


def _reads(lines: Any, name: str) -> bool:
    return any(re.search(rf"\b{name}\b", line) for _, line in lines)
