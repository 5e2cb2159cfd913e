"""Seconds of collectives: the cheapest of the algorithms that a library may run.

``num_bytes`` is always what one rank holds where its buffer is full: the buffer of an all-reduce,
the result of an all-gather, the operand of a reduce-scatter or an all-to-all. Times are per rank,
never traffic summed over ranks.

Each algorithm on each protocol is a line, ``fixed + num_bytes * slope``, so a collective is the
least of a few lines: it rises with the size (a model with dips makes a planner pad tensors), and
it is priced in nanoseconds.

With p ranks, alpha the latency of a step and beta the seconds of a byte (Patarasuk and Yuan 2009;
Chan et al. 2007, section 4; Sanders, Speck and Traeff 2009 for the trees):

    ring         all-gather, reduce-scatter   (p - 1) alpha +    (p - 1)/p n beta
                 all-reduce                 2 (p - 1) alpha +  2 (p - 1)/p n beta
    tree         all-reduce                 2 log2(p) alpha +  2 n beta
    in-switch    all-reduce                         2 alpha +  (1 + 1/p) n beta
    hierarchical all-reduce    reduce-scatter inside, all-reduce of n/g across, all-gather inside
                 all-gather    of n/g across, then inside; reduce-scatter: the same backwards
    pairwise     all-to-all    a message to each peer; each level carries what crosses it
    direct       all-gather, reduce-scatter 2 (p - 1) alpha +    (p - 1)/p n beta
                 all-reduce                 2 (p - 1) alpha +  3/2 (p - 1) n beta
                 among few processes of hosts: a message to each peer, announced and sent

Where a link states a library's protocols, a rank's own n/p of rings and of pairwise exchanges goes
through its memory (read and written), as one step more at that speed: NCCL's published curves of
two ranks are up to a third slower for it.

A step of a ring through nodes is charged the latency of the link that it takes, as in NCCL's model
(`src/graph/tuning.cc`): of p - 1 steps, all but those between nodes stay inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2, prod

from irc.cluster.links import AxisLink, Collective, Fit, Hop, Protocol, ring_bytes_per_s
from irc.errors import InternalError

OWN_MESSAGE_BYTES = 1 << 19
"""In a bucket among processes of a host, more than so much goes by itself: joining is copies."""

SHARED_BYTES = 1 << 21
"""Full gathers of a bucket together: from so much on few processes copy them from shared memory."""


@dataclass(frozen=True)
class Line:
    """One algorithm: ``fixed_s + num_bytes * s_per_byte``."""

    name: str
    fixed_s: float
    s_per_byte: float

    def seconds(self, num_bytes: float) -> float:
        """Return the time for a size."""
        return self.fixed_s + num_bytes * self.s_per_byte

    def then(self, other: Line, part: float = 1.0) -> Line:
        """Return this and then another on ``part`` of the bytes."""
        fixed = self.fixed_s + other.fixed_s
        name = " + ".join(dict.fromkeys(filter(None, (self.name, other.name))))
        return Line(name, fixed, self.s_per_byte + part * other.s_per_byte)


def collective_s(
    kind: Collective, link: AxisLink, num_bytes: float, copy_bytes_per_s: float
) -> float:
    """Return the seconds of one collective, as the runtime runs it on this link.

    A collective that the runtime lacks is priced as what it runs instead (its local chunk is a copy
    at ``copy_bytes_per_s``).

    >>> link = AxisLink(ranks=4, latency_s=1e-6, bytes_per_s=1e9, launch_s=0.0)
    >>> f"{collective_s('all_gather', link, 4_000_000, 1e12) * 1e3:.3f} ms"  # 3 of 1 us and 1 MB
    '3.003 ms'
    >>> nvlink = AxisLink(ranks=8, latency_s=1e-6, bytes_per_s=100e9, launch_s=0.0)
    >>> f"{collective_s('all_reduce', nvlink, 64 * 2**20, 1e12) * 1e3:.2f} ms"
    '1.19 ms'
    """
    return seconds_of(lines(kind, link, copy_bytes_per_s), num_bytes)


def seconds_of(choices: Sequence[Line], num_bytes: float) -> float:
    """Return the least of some lines; nothing takes no time."""
    return min((line.seconds(num_bytes) for line in choices), default=0.0)


def chosen(choices: Sequence[Line], num_bytes: float) -> Line:
    """Return the line that is least, the first of equal ones."""
    return min(choices, key=lambda line: line.seconds(num_bytes))


def lines(kind: Collective, link: AxisLink, copy_bytes_per_s: float) -> tuple[Line, ...]:
    """Return the algorithms that are cheapest at some size; none where there is one rank.

    >>> far = Hop(8, 1e9, 5e-6, 0.0, tree=True)
    >>> link = AxisLink(8, 5e-6, 1e9, 0.0, hops=(far,))
    >>> [line.name for line in lines("all_reduce", link, 1e12)]
    ['tree', 'ring']
    """
    if link.ranks == 1:
        return ()
    if kind in link.emulated:
        return _cheapest(_emulated(kind, link, copy_bytes_per_s))
    if kind in link.fits:
        return (_fitted(kind, link.fits[kind], link.ranks, link.processes),)
    if link.direct and kind != "all_to_all":
        return _cheapest(_direct(kind, link.levels, copy_bytes_per_s))
    return _cheapest(_algorithms(kind, link.levels, copy_bytes_per_s))


def _algorithms(kind: Collective, hops: tuple[Hop, ...], copy: float) -> list[Line]:
    match kind:
        case "all_reduce":
            apart = [*_trees(hops), *_in_switch(hops)]
            return [*_rings(2, hops, copy), *apart, *_hierarchical(kind, hops, copy)]
        case "all_gather" | "reduce_scatter":
            return [*_rings(1, hops, copy), *_hierarchical(kind, hops, copy)]
        case "all_to_all":
            return [*_pairwise(hops, copy), *_staged(hops, copy)]


def _rings(rounds: int, hops: tuple[Hop, ...], copy: float) -> list[Line]:
    ranks = _ranks(hops)
    speed = ring_bytes_per_s(hops)
    slope, own = rounds * (ranks - 1) / ranks / speed, _own(hops, speed, copy)
    rings: list[Line] = []
    for choice in _protocols(hops):
        steps, below = 0.0, ranks
        for hop, protocol in zip(hops, choice, strict=True):
            # Of the ring's steps, those that join the groups below inside one group of this level.
            below //= hop.fan
            steps += below * (hop.fan - 1) * protocol.latency_s
        launch = choice[-1].launch_s
        part = min(protocol.part for protocol in choice)
        rings.append(Line(_named("ring", choice), launch + rounds * steps, slope / part + own))
    return rings


def _direct(kind: Collective, hops: tuple[Hop, ...], copy: float) -> list[Line]:
    """Return a message to each peer and one from each: announced, then sent, and no thread for it.

    An all-reduce receives all that each peer has and adds it up on one thread, half as much again
    by the byte, so that long ones go around a ring.
    """
    peers, latency_s = _ranks(hops) - 1, max(hop.latency_s for hop in hops)
    fixed, speed = 2 * peers * latency_s, min(hop.bytes_per_s for hop in hops)
    if kind != "all_reduce":
        return [Line("direct", fixed, peers / (peers + 1) / speed)]
    return [Line("direct", fixed, 1.5 * peers / speed), *_algorithms(kind, hops, copy)]


def _own(hops: tuple[Hop, ...], bytes_per_s: float, copy_bytes_per_s: float) -> float:
    """Return what a byte adds for a rank's own part: a step of its memory, or of the link."""
    if not any(hop.protocols for hop in hops):
        return 0.0
    return min(2 / copy_bytes_per_s, 1 / bytes_per_s) / _ranks(hops)


def _trees(hops: tuple[Hop, ...]) -> list[Line]:
    """Up and down: chains inside, the two trees of Sanders et al. across the outermost level."""
    if not hops[-1].tree:
        return []
    trees: list[Line] = []
    for choice in _protocols(hops):
        inner = zip(hops[:-1], choice[:-1], strict=True)
        depth = sum((hop.fan - 1) * protocol.latency_s for hop, protocol in inner)
        depth += ceil(log2(hops[-1].fan)) * choice[-1].latency_s
        slope = 2 / ring_bytes_per_s(hops) / min(protocol.part for protocol in choice)
        trees.append(Line(_named("tree", choice), choice[-1].launch_s + 2 * depth, slope))
    return trees


def _in_switch(hops: tuple[Hop, ...]) -> list[Line]:
    """The switch sums: a rank reads its part of the sum once and writes it to all at once.

    It sends its whole buffer, for the others' parts, and the sum of its own: n + n/p.
    """
    hop = hops[0]
    if len(hops) > 1 or not hop.in_switch_bytes_per_s:
        return []
    slow = max(_protocols(hops), key=lambda choice: choice[0].part)[0]
    slope = (1 + 1 / hop.fan) / hop.in_switch_bytes_per_s
    # Its set-up is that of a ring inside a node of eight: NCCL's base latency for NVLS is 23 us.
    return [Line("in-switch", max(slow.launch_s, IN_SWITCH_S) + 2 * slow.latency_s, slope)]


IN_SWITCH_S = 23e-6


def _hierarchical(kind: Collective, hops: tuple[Hop, ...], copy: float) -> list[Line]:
    if len(hops) == 1:
        return []
    inside, across = hops[:1], hops[1:]
    part = 1 / hops[0].fan
    # A combination only pays where both parts do.
    within = _cheapest(_rings(1, inside, copy))
    beyond = _cheapest(_algorithms(kind, across, copy))
    combinations = [near.then(far, part) for near in within for far in beyond]
    if kind == "all_reduce":
        combinations = [line.then(near) for line in combinations for near in within]
    return [replace(line, name=f"hierarchical({line.name})") for line in combinations]


def _pairwise(hops: tuple[Hop, ...], copy: float) -> list[Line]:
    """A message to each peer; the levels carry theirs at the same time."""
    ranks = _ranks(hops)
    slope, own = 0.0, _own(hops, hops[0].bytes_per_s, copy)
    for level, hop in enumerate(hops):
        leaving = 1 - prod(inner.fan for inner in hops[:level]) / ranks
        slope = max(slope, leaving / hop.bytes_per_s)
    exchanges: list[Line] = []
    for choice in _protocols(hops):
        steps, below = 0.0, 1
        for hop, protocol in zip(hops, choice, strict=True):
            steps += below * (hop.fan - 1) * protocol.latency_s
            below *= hop.fan
        part = min(protocol.part for protocol in choice)
        fixed = choice[-1].launch_s + steps
        exchanges.append(Line(_named("pairwise", choice), fixed, slope / part + own))
    return exchanges


def _staged(hops: tuple[Hop, ...], copy: float) -> list[Line]:
    """An all-to-all inside, then one across: fewer messages, and every byte moves twice."""
    if len(hops) == 1:
        return []
    near = _cheapest(_pairwise(hops[:1], copy))
    far = _cheapest(_algorithms("all_to_all", hops[1:], copy))
    both = [a.then(b) for a in near for b in far]
    return [replace(line, name=f"hierarchical({line.name})") for line in both]


def _protocols(hops: tuple[Hop, ...]) -> list[tuple[Protocol, ...]]:
    """Return the protocols that all levels can speak, each as seen by every level."""
    known = dict.fromkeys(protocol.name for hop in hops for protocol in hop.protocols)
    return [tuple(hop.protocol(name) for hop in hops) for name in known or [""]]


def lines_of_protocols(
    name: str, hops: tuple[Hop, ...], line: Callable[[Sequence[Protocol], str], Line]
) -> list[Line]:
    """Return a line for each protocol that all levels can speak."""
    return [line(choice, _named(name, choice)) for choice in _protocols(hops)]


def _named(algorithm: str, choice: Sequence[Protocol]) -> str:
    return f"{algorithm}/{choice[0].name}" if choice[0].name else algorithm


def _ranks(hops: tuple[Hop, ...]) -> int:
    return prod(hop.fan for hop in hops)


def _fitted(kind: Collective, fit: Fit, ranks: int, processes: int) -> Line:
    rounds = 2 if kind == "all_reduce" else 1
    crowded = max(1.0, processes / fit.cores) if fit.cores else 1.0
    steps = rounds * (ranks - 1) * crowded
    return Line("measured", fit.launch_s + steps * fit.latency_s, steps / ranks / fit.bytes_per_s)


def _emulated(kind: Collective, link: AxisLink, copy: float) -> list[Line]:
    real = replace(link, emulated=frozenset[Collective]())
    match kind:
        case "all_to_all":
            chunk = Line("local chunk", 0.0, 2 / copy)
            whole = lines("all_gather", real, copy)
            return [Line("", 0.0, 0.0).then(line, link.ranks).then(chunk) for line in whole]
        case "reduce_scatter":
            chunk = Line("local chunk", 0.0, 2 / link.ranks / copy)
            return [line.then(chunk) for line in lines("all_reduce", real, copy)]
        case _:
            raise InternalError(f"{kind} cannot be emulated")


def _cheapest(algorithms: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines that are least at some size, from the smallest size to the largest.

    >>> [line.name for line in _cheapest([Line("a", 1, 4), Line("b", 2, 3), Line("c", 2, 1)])]
    ['a', 'c']
    """
    kept: list[Line] = []
    for line in sorted(algorithms, key=lambda line: (line.fixed_s, line.s_per_byte)):
        if kept and line.s_per_byte >= kept[-1].s_per_byte:
            continue
        # The middle one of three is never least where the last passes the first before it does.
        while len(kept) > 1 and _crossing(kept[-2], line) <= _crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(line)
    return tuple(kept)


def _crossing(first: Line, second: Line) -> float:
    """Return the size from which on the second line, which starts higher, is the lower one."""
    return (second.fixed_s - first.fixed_s) / (first.s_per_byte - second.s_per_byte)
