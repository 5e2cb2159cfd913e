"""What a caller sees of a call: numbers, dtypes, strides, shared memory, writes, hooks, seeds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.fuzz.scenes import Module, Scene, hooked
from tests.memory_layout import layout, lies_alike, overlapping

TOGETHER = "gradients lie in memory of others"
"""How a difference begins that says so."""

Way = Callable[[Any], Any]
"""Makes of a module or function what is called instead."""


@dataclass
class Observed:
    """One call of a scene.

    Attributes:
        results: what it returned.
        arguments: as the call left them.
        gradients: ``.grad`` of the arguments that want one, None for others; added to by each of
            two calls in :func:`observe`.
        handed: gradients that :func:`torch.autograd.grad` returns, of a call of its own.
        shared: pairs of names of tensors that have elements in common: a gradient, kept or handed
            out, and an argument, a result, a gradient of a result, or another gradient.
        written: for each argument, whether it changed and torch counts it as written; a copy of a
            tensor onto itself is no write in a program.
        calls: notes of hooks.
        again: results of a second call after the same seed, and of a third without one.
    """

    results: list[Tensor]
    arguments: list[Tensor]
    gradients: list[Tensor | None]
    written: list[bool]
    handed: list[Tensor | None] = field(default_factory=list["Tensor | None"])
    shared: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    calls: list[str] = field(default_factory=list[str])
    again: list[list[Tensor]] = field(default_factory=list[list[Tensor]])


def observe(scene: Scene, way: Way, *, gradients: bool) -> Observed:
    """Call a scene as a user does, some times.

    Args:
        scene: the scene.
        way: how it is compiled.
        gradients: arguments record them, and backward runs.

    Raises:
        Exception: whatever the call raises.
    """
    calls: list[str] = []
    call: Any
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # What irc fails on torch runs, with a warning: here it is a failure.
        warnings.filterwarnings("error", message=r"warning\[internal\]")
        if scene.hook:
            call = way(Module(scene))
            hooked(call, scene.hook, calls)
        else:
            function = scene.function()
            gate = nn.Tanh()
            call = way(lambda *arguments: function(gate, *arguments))
        seen = once(scene, call, gradients=gradients)
        seen.calls = list(calls)
        if gradients:
            take_again(scene, call, seen)
        if scene.random:
            seen.again = [
                once(scene, call, gradients=gradients, seed=seed).results for seed in (5, None)
            ]
    return seen


def take_again(scene: Scene, call: Any, seen: Observed) -> None:
    """Let a second backward pass add to the gradients of a first, and a third hand out its own."""
    once(scene, call, gradients=True, kept=seen.gradients)
    third = once(scene, call, gradients=True, hands_out=True)
    seen.handed = third.handed
    seen.shared |= third.shared


def once(
    scene: Scene,
    call: Any,
    *,
    gradients: bool,
    seed: int | None = 5,
    kept: Sequence[Tensor | None] = (),
    hands_out: bool = False,
) -> Observed:
    """Call a scene once.

    Args:
        scene: the scene, for its arguments.
        call: what takes them.
        gradients: arguments record them, and backward runs.
        seed: that is set before.
        kept: ``.grad`` of the arguments before the call.
        hands_out: the gradients are those of :func:`torch.autograd.grad`.
    """
    arguments = scene.draw(gradients=gradients)
    for x, grad in zip(arguments, kept, strict=False):
        x.grad = grad
    before = [(x._version, x.detach().clone()) for x in arguments]
    if seed is not None:
        torch.manual_seed(seed)
    with torch.set_grad_enabled(gradients):
        returned = call(*arguments)
    results = list(returned)
    written = [
        x._version != version and not torch.equal(x, held)
        for x, (version, held) in zip(arguments, before, strict=True)
    ]
    grads: list[Tensor | None] = [None] * len(arguments)
    handed: list[Tensor | None] = [None] * len(arguments)
    seen = Observed(results, arguments, grads, written, handed)
    outputs = [y for y in results if y.requires_grad]
    leaves = [i for i, x in enumerate(arguments) if x.requires_grad and x.is_leaf]
    if gradients and outputs and leaves:
        weights = [_weight(y, i) for i, y in enumerate(outputs)]
        if hands_out:
            derivatives = torch.autograd.grad(
                outputs, [arguments[i] for i in leaves], weights, allow_unused=True
            )
            for i, gradient in zip(leaves, derivatives, strict=True):
                handed[i] = gradient
            others = {"argument": arguments, "result": results, "gradient of result": weights}
            seen.shared = _shared(others, "gradient of argument", handed)
        else:
            # Nobody holds a result's gradient, so that an argument's may keep its memory.
            losses = [(y * w).sum() for y, w in zip(outputs, weights, strict=True)]
            torch.autograd.backward([x.real if x.is_complex() else x for x in losses])
            for i in leaves:
                grads[i] = arguments[i].grad
            others = {"argument": arguments, "result": results}
            seen.shared = _shared(others, ".grad of argument", grads)
    return seen


def _weight(y: Tensor, number: int) -> Tensor:
    """Return a gradient of a result that lies as that does: so AOTAutograd lays it."""
    generator = torch.Generator().manual_seed(number)
    wide = torch.complex128 if y.is_complex() else torch.float64
    numbers = torch.randn(y.shape, generator=generator, dtype=wide).to(y.dtype)
    return torch.empty_like(y).copy_(numbers)


def _shared(
    others: Mapping[str, Sequence[Tensor]], kind: str, gradients: Sequence[Tensor | None]
) -> set[tuple[str, str]]:
    named: list[tuple[str, Tensor | None]] = [
        (f"{name} {i}", x) for name, tensors in others.items() for i, x in enumerate(tensors)
    ]
    last = len(named)
    named += [(f"{kind} {i}", x) for i, x in enumerate(gradients)]
    pairs = overlapping([x for _, x in named])
    return {(named[i][0], named[j][0]) for i, j in pairs if j >= last}


def sharing(seen: Observed) -> list[tuple[int, int]]:
    """Return which results lie in the memory of which arguments, or of other results."""
    tensors = [*seen.arguments, *seen.results]
    places = [x.untyped_storage().data_ptr() if x.numel() else -i for i, x in enumerate(tensors, 1)]
    return [
        (i, j)
        for j in range(len(seen.arguments), len(tensors))
        for i in range(j)
        if places[i] == places[j]
    ]


def differences(scene: Scene, seen: Observed, wanted: Observed, wide: Observed) -> list[str]:
    """Say what a caller sees otherwise.

    Args:
        scene: the scene.
        seen: through irc.
        wanted: in eager.
        wide: in eager, in float64: where that has other whole numbers, rounding decides.
    """
    texts: list[str] = []
    for i, (name, one, two, three) in enumerate(
        zip(scene.results, seen.results, wanted.results, wide.results, strict=True)
    ):
        what = f"result {i} ({name})"
        if (one.dtype, one.shape) != (two.dtype, two.shape):
            texts.append(f"{what} is {one.dtype} {list(one.shape)}, "
                         f"not {two.dtype} {list(two.shape)}")  # fmt: skip
        elif layout(one)[0] != layout(two)[0]:
            texts.append(f"{what} has strides {one.stride()}, not {two.stride()}")
        elif name not in scene.random:
            texts += _apart(scene, what, one, two, three)
        if two.requires_grad and not one.requires_grad:
            texts.append(f"{what} records no gradient")
    if (one := sharing(seen)) != (two := sharing(wanted)):
        texts.append(f"memory is shared by {one}, not by {two} (arguments, then results)")
    # That eager's lie together promises nothing; where they do not, nobody expects a write to both.
    if more := seen.shared - wanted.shared:
        texts.append(f"{TOGETHER}: {sorted(more)}")
    apart = bool(wanted.shared - seen.shared)
    kinds = (("argument", "arguments"), ("gradient of", "gradients"),
             ("gradient handed out of", "handed"))  # fmt: skip
    for kind, part in kinds:
        for x, one, two, three in zip(
            scene.arguments,
            *(getattr(each, part) for each in (seen, wanted, wide)),
            strict=True,
        ):
            if one is None or two is None:
                # Of what does not matter eager has None or zeros, by the ops on the way.
                some = one if two is None else two
                if some is not None and bool(some.any()):
                    texts.append(f"{kind} {x.name} is {'None' if one is None else 'not None'}")
                continue
            if part != "arguments" and not lies_alike(one, two, apart=apart):
                texts.append(f"{kind} {x.name} has strides and offset {layout(one)}, not "
                             f"{layout(two)}")  # fmt: skip
            # Eager adds twice to gradients of two arguments that lie in each other.
            if not scene.random and not (apart and part == "gradients"):
                texts += _apart(scene, f"{kind} {x.name}", one, two, three)
    for x, one, two in zip(scene.arguments, seen.written, wanted.written, strict=True):
        if one is not two:
            texts.append(f"argument {x.name} is {'' if one else 'not '}counted as written")
    if seen.calls != wanted.calls:
        texts.append(f"hooks ran: {seen.calls}, not {wanted.calls}")
    return texts + _repeats(scene, seen, wanted)


CERTAIN = 10
"""So many numbers that differ in eager do not all agree by chance."""


def _repeats(scene: Scene, seen: Observed, wanted: Observed) -> list[str]:
    """Say where a seed does not repeat what it repeats in eager, or repeats what it does not."""
    texts: list[str] = []
    for number, words in ((0, "after the same seed"), (1, "without a seed")):
        if not scene.random:
            break
        for i, name in enumerate(scene.results):
            if name not in scene.random:
                continue
            here = torch.equal(_plain(seen.results[i]), _plain(seen.again[number][i]))
            eager = torch.equal(_plain(wanted.results[i]), _plain(wanted.again[number][i]))
            if number == 0:
                wrong = eager and not here
            else:  # few draws may be equal by chance, in eager as here
                one, two = (_plain(each[i]) for each in (wanted.results, wanted.again[number]))
                wrong = here and int((one != two).sum()) >= CERTAIN
            if wrong:
                says = "repeats" if here else "does not repeat"
                texts.append(f"result {i} ({name}) {says} {words}")
    return texts


def _plain(x: Tensor) -> Tensor:
    return x.detach().resolve_conj().resolve_neg()


def _apart(scene: Scene, what: str, one: Tensor, two: Tensor, three: Tensor) -> Sequence[str]:
    """Compare numbers: eager's own error, ten times, and some rounding units of the largest."""
    one, two, three = (_plain(x) for x in (one, two, three))
    if one.shape != two.shape or one.dtype != two.dtype or not one.numel():
        same = one.shape == two.shape and one.dtype == two.dtype
        return [] if same else [f"{what} is {one.dtype} {list(one.shape)}"]
    if not (one.is_floating_point() or one.is_complex()):
        wrong = (one != two) & (two == three.to(two.dtype))
    else:
        kind = torch.complex128 if one.is_complex() else torch.float64
        a, b, c = (x.to(kind) for x in (one, two, three))
        own = (b - c).abs().nan_to_num(posinf=0.0)
        scale = float(c.abs().nan_to_num(posinf=0.0).max())
        allowed = 10 * float(own.max()) + 200 * scene.unit * (1 + scale)
        wrong = ~((a - b).abs() <= allowed) & ~(a == b) & ~(a.isnan() & b.isnan())
    if not bool(wrong.any()):
        return []
    at = tuple(wrong.nonzero()[0].tolist())
    return [f"{what}: {int(wrong.sum())} of {wrong.numel()} elements, first at {list(at)}: "
            f"{one[at].item()!r}, not {two[at].item()!r}"]  # fmt: skip
