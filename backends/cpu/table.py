"""The table of a segment's calls, from what kernels say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from irc.backends.cpu.info import KernelInfo
from irc.backends.cpu.loops.steps import FAULT
from irc.backends.cpu.loops.units import MAX_ARGS
from irc.dialects.size import value_of
from irc.errors import InternalError
from irc.plan.native import HEADER, Table

PAGE = 4096
APART = 128
"""Bytes between the scratch memory of threads, which must not fall on the same cache sets."""


@dataclass(frozen=True)
class KernelCall:
    """One launch: the kernel's number and, per argument, its base's number and a byte offset.

    ``sizes`` are the values of :attr:`KernelInfo.sizes`, in that order.
    """

    kernel: int
    args: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...] = ()


def call_table(infos: Sequence[KernelInfo], calls: Sequence[KernelCall]) -> Table:
    """Return the table of some calls.

    Raises:
        InternalError: a call gives a kernel other buffers or sizes than it takes.
    """
    used = [infos[call.kernel].bound(call.sizes) for call in calls]
    stride = _round_up(max((value_of(i.scratch_bytes, {}) for i in used), default=0))
    if stride or any(info.checks for info in used):
        stride += APART
    words: list[int] = []
    length = sum(HEADER + 2 * len(call.args) for call in calls)
    values = [value for call in calls for value in call.sizes]
    for call, weight, info in zip(calls, _next_weights(infos, calls), used, strict=True):
        if len(call.args) != info.num_args:
            raise InternalError(
                f"kernel {info.name} takes {info.num_args} buffers, not {len(call.args)}"
            )
        if len(call.args) > MAX_ARGS:
            raise InternalError(f"a kernel of {len(call.args)} buffers; at most {MAX_ARGS} go")
        words += [call.kernel, len(call.args), int(info.parallel), *weight]
        words += [int(info.checks), length]
        words += [word for arg in call.args for word in arg]
        length += len(call.sizes)
    return Table(
        (*words, *values),
        len(calls),
        stride,
        any(info.parallel for info in used),
        tuple(info.name for info in used if info.checks),
        FAULT,
    )


def _next_weights(
    infos: Sequence[KernelInfo], calls: Sequence[KernelCall]
) -> list[tuple[int, int, int]]:
    """Return for each call the weight that a later one streams: base, offset and bytes."""
    found: list[tuple[int, int, int]] = []
    following = (0, 0, 0)
    for call in reversed(calls):
        found.append(following)
        info = infos[call.kernel]
        if info.weight >= 0:
            following = (*call.args[info.weight], info.weight_bytes)
    return found[::-1]


def _round_up(size: int) -> int:
    return -(-size // PAGE) * PAGE
