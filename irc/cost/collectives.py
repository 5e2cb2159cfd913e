"""Seconds of collectives on a ring: the alpha-beta model.

``num_bytes`` is always what one rank holds where its buffer is full: the buffer of an all-reduce,
the result of an all-gather, the operand of a reduce-scatter or an all-to-all. Each of p - 1 steps
moves the p-th part of it (Patarasuk and Yuan 2009; Chan et al. 2007, section 4), so times are per
rank, never traffic summed over ranks. All forms rise with the size: a model with dips makes a
planner pad tensors.
"""

from __future__ import annotations

from irc.cluster.topology import AxisLink, Collective
from irc.errors import InternalError


def collective_s(
    kind: Collective, link: AxisLink, num_bytes: float, copy_bytes_per_s: float
) -> float:
    """Return the seconds of one collective, as the runtime runs it on this link.

    A collective that the runtime lacks is priced as what it runs instead (its local chunk is a copy
    at ``copy_bytes_per_s``).
    """
    if link.ranks == 1:
        return 0.0
    if kind in link.emulated:
        return _emulated_s(kind, link, num_bytes, copy_bytes_per_s)
    match kind:
        case "all_reduce":
            return all_reduce_s(link, num_bytes)
        case "all_gather":
            return all_gather_s(link, num_bytes)
        case "reduce_scatter":
            return reduce_scatter_s(link, num_bytes)
        case "all_to_all":
            return all_to_all_s(link, num_bytes)


def all_gather_s(link: AxisLink, num_bytes: float) -> float:
    """Return the seconds until each rank has all ``num_bytes``, of which it had the p-th part.

    T = launch + (p - 1) (alpha + beta n / p)

    >>> link = AxisLink(ranks=4, latency_s=1e-6, bytes_per_s=1e9, launch_s=0.0)
    >>> f"{all_gather_s(link, 4_000_000) * 1e3:.3f} ms"  # 3 steps of 1 us and 1 MB
    '3.003 ms'
    """
    return link.launch_s + (link.ranks - 1) * _step_s(link, num_bytes / link.ranks)


def reduce_scatter_s(link: AxisLink, num_bytes: float) -> float:
    """Return the seconds until each rank has its p-th part of the sum of buffers of ``num_bytes``.

    An all-gather run backwards: T = launch + (p - 1) (alpha + beta n / p)
    """
    return all_gather_s(link, num_bytes)


def all_reduce_s(link: AxisLink, num_bytes: float) -> float:
    """Return the seconds to sum a buffer that each rank holds in full.

    A reduce-scatter, then an all-gather:

    T = launch + 2 (p - 1) (alpha + beta n / p)

    >>> nvlink = AxisLink(ranks=8, latency_s=1e-6, bytes_per_s=100e9, launch_s=0.0)
    >>> f"{all_reduce_s(nvlink, 64 * 2**20) * 1e3:.2f} ms"
    '1.19 ms'
    """
    return link.launch_s + 2 * (link.ranks - 1) * _step_s(link, num_bytes / link.ranks)


def all_to_all_s(link: AxisLink, num_bytes: float) -> float:
    """Return the seconds in which each rank sends the p-th part of its ``num_bytes`` to each other.

    T = launch + (p - 1) (alpha + beta n / p)

    >>> link = AxisLink(ranks=4, latency_s=0.0, bytes_per_s=1e9, launch_s=0.0)
    >>> f"{all_to_all_s(link, 1_000_000) * 1e3:.2f} ms"  # a 1 MiB-like buffer: 3/4 of it leaves
    '0.75 ms'
    """
    return link.launch_s + (link.ranks - 1) * _step_s(link, num_bytes / link.ranks)


def _emulated_s(kind: Collective, link: AxisLink, num_bytes: float, copy: float) -> float:
    if kind == "all_to_all":
        return all_gather_s(link, num_bytes * link.ranks) + 2 * num_bytes / copy
    if kind == "reduce_scatter":
        return all_reduce_s(link, num_bytes) + 2 * num_bytes / link.ranks / copy
    raise InternalError(f"{kind} cannot be emulated")


def _step_s(link: AxisLink, num_bytes: float) -> float:
    return link.latency_s + num_bytes / link.bytes_per_s
