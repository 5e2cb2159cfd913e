"""Compiled kernels as the executor sees them: a segment runs its launches in one native call.

A segment gets a *base table*: an array of pointers, first the arena, then one for each buffer
that is not in it, in the order of ``Plan.bases``. Each argument of a launch is a base and bytes
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TypeAlias

from irc.errors import InternalError, IrcError, did_you_mean
from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels, Plan

DEVICE_BACKENDS = ("cuda", "triton")
"""Backends whose kernels run on a GPU, or in Triton's interpreter."""
NATIVE_BACKENDS = ("cpu", *DEVICE_BACKENDS)
"""Backends whose kernels this process can run."""


class Segment(Protocol):
    """One native entry."""

    def run(self, table: int) -> None:
        """Run all launches in order; ``table`` is the address of the base table."""
        ...


@dataclass(frozen=True)
class SegmentCall:
    """One launch: the kernel's index, and for each argument its base and bytes from there.

    ``sizes`` are the values of the sizes that the kernel takes, in the order of its description.
    """

    kernel: int
    args: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...] = ()


LoadSegments: TypeAlias = Callable[
    [LoadedPlan, Sequence[Sequence[SegmentCall]], int], Sequence[Segment]
]
"""Given a plan, the launches of each segment and the number of threads: the segments."""


def segment_calls(plan: Plan) -> list[list[SegmentCall]]:
    """Return the launches of each segment, prepared ones first, buffers resolved to addresses."""
    return [
        [
            SegmentCall(call.kernel, tuple(plan.addresses[b] for b in call.args), call.sizes)
            for call in a.calls
        ]
        for a in (*plan.prepared, *plan.actions)
        if isinstance(a, Kernels)
    ]


def load_segments(
    loaded: LoadedPlan, segments: Sequence[Sequence[SegmentCall]], num_threads: int
) -> Sequence[Segment]:
    """Compile the kernels of a plan with its backend; a plan without kernels needs none.

    Raises:
        IrcError: ``backend-unknown``.
    """
    if not segments:
        return []
    if loaded.code == "unknown":
        raise InternalError("kernels are run of which nobody has asked whose they are")
    check_backend(loaded.plan.backend)
    # Backends stand above the runtime: it knows their names, as the register of backends does.
    backend = import_module(f"irc.backends.{loaded.plan.backend}")
    texts = list(loaded.kernel_sources().values())
    if loaded.code == "trusted" and loaded.plan.backend == "cpu":
        backend.compile_read(texts)
    # The first compiles all kernels in one module; the others find them compiled.
    return [backend.load_segment(texts, calls, num_threads) for calls in segments]


def check_backend(name: str) -> None:
    """Refuse a backend whose kernels do not run in this process.

    Raises:
        IrcError: ``backend-unknown``.
    """
    if name not in NATIVE_BACKENDS:
        raise IrcError(
            "backend-unknown",
            f"kernels of backend '{name}' do not run in this process",
            help=did_you_mean(name, NATIVE_BACKENDS),
        )
