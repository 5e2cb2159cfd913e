"""The native program of a plan: memory, steps and kernel calls, and the code of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from irc.dialects.indexing import ScatterOp
from irc.errors import IrcError
from irc.plan import native
from irc.plan.native import View
from irc.plan.schema import Copy, Kernels, Library, Plan
from irc.runtime.segments import SegmentCall, segment_calls

if TYPE_CHECKING:
    from irc.backends.cpu.native import Kind


def program_of(
    plan: Plan, digest: str, layout: Mapping[int, int], kinds: Sequence[Kind]
) -> native.Program:
    """Return the program of a plan.

    Args:
        plan: also one with sizes for its numbers, where no code is asked for.
        digest: the plan's hash.
        layout: where each weight begins in the file.
        kinds: the kernels, compiled.
    """
    from irc import __version__

    calls, used = calls_of(plan)
    written = {plan.root(i) for i in plan.states()}
    seeds = {i for i in plan.weights if plan.buffers[i].role == "seed"}
    base = {buffer: k for k, buffer in enumerate(plan.bases, 1)}
    return native.Program(
        plan=digest,
        inputs=tuple(_inputs(plan)),
        outputs=tuple(native.Port(plan.buffers[i].name, _view(plan, i)) for i in plan.outputs),
        fresh=tuple(
            native.Fresh(base[i], b.dtype, b.shape)
            for i, b in enumerate(plan.buffers)
            if b.storage == "output"
        ),
        stored=tuple(
            native.Stored(base[i], start, plan.buffers[i].size_bytes, i in written | seeds)
            for i, start in layout.items()
        ),
        steps=tuple(_steps(plan)),
        codes=tuple(kind.code(calls) for kind in kinds),
        arena_bytes=plan.arena_bytes,
        num_bases=1 + len(plan.bases),
        kernels=len(used),
        seeds=tuple(base[i] for i in sorted(seeds & set(layout))),
        irc=__version__,
    )


def calls_of(plan: Plan) -> tuple[list[list[SegmentCall]], list[int]]:
    """Return the calls of each segment, and which kernels of the plan their numbers stand for.

    Those that only prepare weights are not there.
    """
    prepared = sum(isinstance(action, Kernels) for action in plan.prepared)
    return _renumbered(segment_calls(plan)[prepared:])


def _renumbered(
    segments: Sequence[Sequence[SegmentCall]],
) -> tuple[list[list[SegmentCall]], list[int]]:
    """Return the calls with kernels counted anew."""
    number: dict[int, int] = {}
    renumbered = [
        [
            SegmentCall(number.setdefault(call.kernel, len(number)), call.args, call.sizes)
            for call in calls
        ]
        for calls in segments
    ]
    return renumbered, list(number)


def _view(plan: Plan, index: int) -> View:
    buffer, (base, offset) = plan.buffers[index], plan.addresses[index]
    return View(base, offset, buffer.dtype, buffer.shape, buffer.strides)


def _inputs(plan: Plan) -> list[native.Port]:
    ranges = plan.ranges or (None,) * len(plan.inputs)
    return [
        native.Port(plan.buffers[i].name, _view(plan, i), plan.buffers[i].role == "cache", span)
        for i, span in zip(plan.inputs, ranges, strict=True)
    ]


def _steps(plan: Plan) -> list[native.NativeStep]:
    steps: list[native.NativeStep] = []
    tables = 0
    for action in plan.actions:
        match action:
            case Kernels():
                steps.append(native.Segment("segment", tables))
                tables += 1
            case Copy(source=source, target=target):
                steps.append(native.Copy("copy", _view(plan, source), _view(plan, target)))
            case Library():
                steps.append(_library(plan, action))
            case _:
                raise IrcError("world-size", "a collective has no place in a native program")
    return steps


def _library(plan: Plan, action: Library) -> native.Library:
    return native.Library(
        "library",
        action.op,
        tuple(_view(plan, i) for i in action.inputs),
        tuple(_view(plan, i) for i in action.outputs),
        tuple(plan.root(i) in plan.read for i in action.outputs),
        action.attrs,
        action.op == ScatterOp.name and action.is_in_place,
        action.loc,
    )
