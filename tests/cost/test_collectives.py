"""The alpha-beta forms, by hand and by their properties."""

from itertools import pairwise

import pytest

from irc.cluster.topology import COLLECTIVES, AxisLink, Collective, Hop, Protocol
from irc.cost.collectives import collective_s
from irc.errors import InternalError

COPY = 1e12
KINDS = pytest.mark.parametrize("kind", COLLECTIVES)


def link(
    ranks: int, *, latency: float = 1e-6, emulated: frozenset[Collective] = frozenset()
) -> AxisLink:
    return AxisLink(ranks, latency, 1e9, 5e-6, emulated)


# OneFlow's vectors for T = 1 MiB on 4 ranks, per rank instead of summed: S->B 3 MiB, S(0)->S(1)
# 0.75, # P->S 3, P->B 6. An all-to-all's buffer is a quarter of T.
@pytest.mark.parametrize(
    ("kind", "num_bytes", "moved"),
    [
        ("all_gather", 2**20, 3 * 2**20 / 4),
        ("reduce_scatter", 2**20, 3 * 2**20 / 4),
        ("all_reduce", 2**20, 6 * 2**20 / 4),
        ("all_to_all", 2**18, 0.75 * 2**20 / 4),
    ],
)
def test_bytes_that_a_rank_sends(kind: Collective, num_bytes: int, moved: float) -> None:
    fast = AxisLink(4, 0.0, 1e9, 0.0)
    assert collective_s(kind, fast, num_bytes, COPY) == pytest.approx(moved / 1e9)


def test_what_a_rank_keeps_goes_through_its_memory_where_protocols_are_stated() -> None:
    """A half of 1 GB over the link at 2 GB/s, and a half read and written at 8 GB/s."""
    hop = Hop(2, 2e9, 0.0, 0.0, protocols=(Protocol("Simple", 0.0, 0.0),))
    pair = AxisLink(2, 0.0, 2e9, 0.0, hops=(hop,))
    assert collective_s("all_gather", pair, 10**9, 8e9) == pytest.approx(0.25 + 0.125)
    # It is no slower than a step over the link.
    assert collective_s("all_gather", pair, 10**9, 1e9) == pytest.approx(0.25 + 0.25)


@KINDS
@pytest.mark.parametrize(
    "emulated", [frozenset[Collective](), frozenset[Collective](COLLECTIVES[2:])]
)
def test_more_bytes_never_cost_less(kind: Collective, emulated: frozenset[Collective]) -> None:
    for ranks in (2, 3, 8):
        times = [
            collective_s(kind, link(ranks, emulated=emulated), n, COPY)
            for n in (0, 1, 7, 4096, 10**6, 10**9)
        ]
        assert all(a <= b for a, b in pairwise(times))


@KINDS
def test_one_rank_is_free_and_an_empty_payload_is_not(kind: Collective) -> None:
    assert collective_s(kind, link(1), 10**6, COPY) == 0.0
    assert collective_s(kind, link(3), 0, COPY) > 5e-6


def test_latency_grows_with_the_ring() -> None:
    slow = [collective_s("all_reduce", link(p, latency=1.0), 8, COPY) for p in (2, 4)]
    assert slow == [pytest.approx(2.0, rel=1e-3), pytest.approx(6.0, rel=1e-3)]


def test_what_the_runtime_lacks_is_priced_as_what_it_runs() -> None:
    gathered = collective_s("all_gather", link(4), 4 * 10**6, COPY)
    emulated = link(4, emulated=frozenset({"all_to_all"}))
    assert collective_s("all_to_all", emulated, 10**6, COPY) == pytest.approx(
        gathered + 2 * 10**6 / COPY
    )
    with pytest.raises(InternalError):
        collective_s("all_gather", link(4, emulated=frozenset({"all_gather"})), 1, COPY)
