"""Scenes of views alone: chains of them, writes through them, arguments and results in one memory.

One compiled function is called with arguments of the same shapes that lie in several ways: what is
a view in one call is a copy in another. Whole memories are compared, not only what arguments show
of them, and whether torch counts arguments as written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.fuzz import ways
from tests.fuzz.check import Failure
from tests.fuzz.observed import TOGETHER, Observed, Way, differences, once, take_again
from tests.fuzz.scene_motifs import view_of
from tests.fuzz.scene_writer import SceneWriter
from tests.fuzz.scenes import Argument, Scene

KINDS = ("f32", "f32", "f32", "i64", "c64")
LAYOUTS = ("plain", "sliced", "transposed", "offset")
WRITES = ("{x}.add_(1)", "{x}.mul_(2)", "{x}.copy_({y})", "{x}.add_({y})", "{x}[...] = 3",
          "{x}.zero_()", "{x}.neg_()", "{x} += 1")  # fmt: skip
READS = ("{x} * 2", "{x} + {y}", "{x}.sum()", "{x}.clone()", "{x}.contiguous()", "{x}.reshape(-1)",
         "torch.stack([{x}, {x}])")  # fmt: skip


def view_scene(seed: int) -> Scene:
    """Return the scene of a seed."""
    w = SceneWriter(seed)
    dtype = w.rng.choice(KINDS)
    shapes = ((3, 4), (4, 6), (2, 3, 4), (6,), (4, 4), (2, 2, 3, 2), (1, 5), (5, 1, 2))
    w.add(
        Argument("x0", w.rng.choice(shapes), dtype, w.rng.choice(LAYOUTS), wants=_wants(w, dtype))
    )
    if w.rng.random() < 0.3:
        w.shared("x0")
    elif w.rng.random() < 0.3:
        w.add(Argument("x1", w.values["x0"].shape, dtype, w.rng.choice(LAYOUTS)))
    for _ in range(w.rng.randint(1, 4)):
        _chain(w)
    return replace(w.finish(), hook="")


def _wants(w: SceneWriter, dtype: str) -> bool:
    return dtype != "i64" and w.rng.random() < 0.7


def _chain(w: SceneWriter) -> None:
    """Some views of a value; then a write to one of them or to what it is of, and a read."""
    x = w.pick()
    assert x is not None
    if x.startswith("x") and w.rng.random() < 0.4:
        x = w.define(f"{x} * 2", x) or x
    names = [x]
    for _ in range(w.rng.randint(1, 3)):
        value = w.values[names[-1]]
        if not value.ndim:
            break
        form = view_of(w, names[-1]) if w.rng.random() < 0.8 else _strided(w, names[-1])
        view = w.define(form, names[-1])
        names += [view] if view else []
    if w.rng.random() < 0.7:
        target = w.rng.choice(names)
        if not w.is_expanded(w.values[target]):
            like = w.pick(lambda t: t.ndim == 0 or t.shape == w.values[target].shape) or target
            statement = w.rng.choice(WRITES).format(x=target, y=like)
            w.change(target, statement, target, like)
    if w.rng.random() < 0.7:
        read = w.rng.choice(names)
        like = w.pick(lambda t: t.ndim == 0 or t.shape == w.values[read].shape) or read
        w.define(w.rng.choice(READS).format(x=read, y=like), read, like)


def _strided(w: SceneWriter, x: str) -> str:
    """A piece of a value's own memory, or of all that is around it."""
    value = w.values[x]
    span = value.untyped_storage().nbytes() // value.itemsize
    start = w.rng.randint(0, max(span - 3, 0))
    if value.storage_offset() + 3 <= span and w.rng.random() < 0.5:
        return (
            f"{x}.as_strided((2,), (2,))" if w.rng.random() < 0.5 else f"{x}.as_strided((3,), (1,))"
        )
    return f"{x}.as_strided((3,), (1,), {start})"


def variants(scene: Scene) -> Iterator[Scene]:
    """Yield a scene with its arguments lying in other ways, the first time in its own."""
    yield scene
    for layout in LAYOUTS:
        yield replace(
            scene,
            arguments=tuple(x if x.of else replace(x, layout=layout) for x in scene.arguments),
        )


def check_views(scene: Scene, way: Way, *, gradients: bool) -> Failure | None:
    """Call one compiled function with arguments in all layouts; return what differs from eager."""
    torch._dynamo.reset()
    function = scene.function()
    fast = way(lambda *arguments: function(None, *arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in variants(scene):
            try:
                wanted = _observed(each, lambda *arguments: function(None, *arguments), gradients)
                wide = _observed(
                    each.widened(), lambda *arguments: function(None, *arguments), gradients
                )
            except (RuntimeError, IndexError, TypeError, ValueError):
                continue  # eager refuses a layout: a view of it that there cannot be
            try:
                seen = _observed(each, fast, gradients)
            except Exception as error:
                return Failure("crash", f"{_said(each)}: {type(error).__name__}: {error}"[:600])
            texts = differences(each, seen, wanted, wide)
            texts += _around(seen.arguments, wanted.arguments)
            if texts:
                kind = "memory" if any(text.startswith(TOGETHER) for text in texts) else "wrong"
                return Failure(kind, f"{_said(each)}: {'; '.join(texts)}")
    return None


def _observed(scene: Scene, call: Any, gradients: bool) -> Observed:
    seen = once(scene, call, gradients=gradients)
    if gradients:
        take_again(scene, call, seen)
    return seen


def check(scene: Scene, name: str) -> Failure | None:
    """Check a scene in one of the ways; what torch gets wrong without irc is not counted."""
    manner = ways.WAYS[name]
    failure = check_views(scene, manner.way, gradients=manner.gradients)
    if failure is None or not ways.may_be_torch(name, scene, failure):
        return failure
    without = check_views(scene, ways.aot_eager, gradients=manner.gradients)
    return failure if without is None or without.kind != failure.kind else None


def _said(scene: Scene) -> str:
    return ", ".join(f"{x.name} {x.layout}" for x in scene.arguments if not x.of)


def _around(seen: list[Tensor], wanted: list[Tensor]) -> list[str]:
    """Say where memory around an argument was written, which the argument does not show."""
    return [
        f"the memory around argument {i} differs"
        for i, (one, other) in enumerate(zip(seen, wanted, strict=True))
        if not _alike(_memory(one), _memory(other))
    ]


def _alike(one: Tensor, other: Tensor) -> bool:
    """True but for rounding: what is written may be a sum."""
    try:
        torch.testing.assert_close(one, other)
    except AssertionError:
        return False
    return True


def _memory(tensor: Tensor) -> Tensor:
    plain: Any = torch.empty(0, dtype=tensor.dtype)
    return plain.set_(tensor.detach().untyped_storage()).nan_to_num()


def _directed(*lines: str, layout: str = "plain") -> Scene:
    named = tuple((line.partition(" = ")[0], line) for line in lines)
    return Scene(1, (Argument("x0", (4, 6), "f32", layout),), named, (named[-1][0],))


DIRECTED = (
    _directed("v0 = x0.contiguous()", "v1 = v0.add_(1) * 2", layout="sliced"),
    _directed("v0 = x0.t()"),
    _directed("v0 = x0 * 2", "v1 = v0[..., ::2].add_(1)"),
)
"""Scenes for planted faults; seeds come after."""
