"""The table of a segment's calls, from what kernels say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from irc.backends.cpu.info import KernelInfo
from irc.backends.cpu.loops.steps import FAULT
from irc.backends.cpu.loops.units import MAX_ARGS
from irc.dialects.size import Dim, Size, bind, value_of
from irc.errors import InternalError
from irc.plan.native import HEADER, Table, thread_bytes


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
    scratch = max((value_of(i.scratch_bytes, {}) for i in used), default=0)
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
        words += [call.kernel, len(call.args), info.pieces if info.parallel else 0, *weight]
        words += [int(info.checks), length]
        words += [word for arg in call.args for word in arg]
        length += len(call.sizes)
    return Table(
        (*words, *values),
        len(calls),
        thread_bytes(scratch, checked=any(info.checks for info in used)),
        any(info.parallel for info in used),
        tuple(info.name for info in used if info.checks),
        FAULT,
    )


def _next_weights(
    infos: Sequence[KernelInfo], calls: Sequence[KernelCall]
) -> list[tuple[int, int, int]]:
    """Return for each call the weight that a later one streams: base, offset and bytes."""
    weights: list[tuple[int, int, int]] = []
    following = (0, 0, 0)
    for call in reversed(calls):
        weights.append(following)
        info = infos[call.kernel]
        if info.weight >= 0:
            following = (*call.args[info.weight], info.weight_bytes)
    return weights[::-1]


@dataclass(frozen=True)
class SizedCalls:
    """What of some calls follows from sizes, beside their arguments.

    Attributes:
        work: for each call how much it does, where that decides whether several threads pay.
        least_work: from so much on they do.
        pieces: into how many parts a large call divides each thread's share.
        following: for each call where the next weight begins, if that is no number.
        scratch: bytes of a thread's scratch memory, in one call or another.
        extents: of loops, each at least 1.
    """

    work: tuple[Dim | None, ...]
    least_work: tuple[int, ...]
    pieces: tuple[int, ...]
    following: tuple[Dim | None, ...]
    scratch: tuple[Dim, ...]
    extents: tuple[Dim, ...]


def sized_calls(infos: Sequence[KernelInfo], calls: Sequence[KernelCall]) -> SizedCalls:
    """Return what :func:`call_table` would find for any sizes.

    Args:
        infos: of the kernels.
        calls: with names in their sizes, and in the offsets of their arguments.
    """
    used = [infos[call.kernel] for call in calls]
    named = [
        dict(zip(i.sizes, call.sizes, strict=True)) for i, call in zip(used, calls, strict=True)
    ]
    following = [offset for _, offset, _ in _next_weights(infos, calls)]
    pairs = list(zip(used, named, strict=True))
    return SizedCalls(
        tuple(_in_call(i.work, names) if i.parallel and i.sizes else None for i, names in pairs),
        tuple(info.least_work for info in used),
        tuple(info.pieces for info in used),
        tuple(offset if isinstance(offset, Size) else None for offset in following),
        tuple(dict.fromkeys(_in_call(i.scratch_bytes, names) for i, names in pairs)),
        tuple(dict.fromkeys(_in_call(e, names) for i, names in pairs for e in i.extents)),
    )


def _in_call(dim: Dim, names: Mapping[str, Dim]) -> Dim:
    """Return a kernel's size in the names of the plan."""
    return bind(dim, cast("Mapping[str, int]", names))
