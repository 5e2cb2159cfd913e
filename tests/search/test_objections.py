"""What an expert would call wrong is in no plan, unless nothing else fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.cluster.load import find_cluster
from irc.cluster.topology import Cluster
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.configurations import Configuration, Outline, estimated_s
from irc.search.everything import Search
from irc.search.judge import Verdict
from irc.search.meshes import factorisations
from irc.search.objections import objection

OUTLINE = Outline(1e15, "bf16", 2e9, 2**26, layers=12, samples=32, launches=100)


@dataclass
class Estimates:
    """Judges by the closed form, which likes tensor parallelism as it is told to."""

    cluster: Cluster
    samples: int
    only: str = ""
    prices: bool = False

    def budget_bytes(self, configuration: Configuration) -> int | None:
        return None

    def within(self, memory_bytes: int) -> Estimates:
        return self

    def unpinned(self) -> None:
        return None

    def begin(self, configurations: Iterable[Configuration], *, is_whole: bool) -> None:
        """Compute nothing ahead."""

    def end(self) -> None:
        """End nothing."""

    def in_pieces(self) -> bool:
        return self.prices

    def price(self, configuration: Configuration) -> Verdict | None:
        return self.judge(configuration)

    def least_s(self, configuration: Configuration, *, is_fitted: bool) -> float:
        return 0.0

    def fitting(self, configuration: Configuration, beat_s: float = inf) -> Configuration | None:
        return None

    def outline(self) -> Outline:
        return replace(OUTLINE, samples=self.samples)

    def meshes(self, devices: int, recompute: str) -> Sequence[Mesh]:
        return factorisations(devices)[-4:]

    def judge(self, configuration: Configuration, *, brief: bool = True) -> Verdict:
        if self.only and str(configuration.mesh) != self.only:
            raise IrcError("pipeline-memory", "a rank holds too much")
        seconds = estimated_s(self.outline(), self.cluster, configuration)
        wrong = objection(configuration, self.cluster)
        return Verdict(seconds / (100 if wrong else 1), 10**9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["1x8xH100", "2x8xH100", "3x8xH100", "4x4xA100", "8x2xL4", "6x8xH100"]),
    st.sampled_from([1, 2, 3, 6, 7, 12, 16, 48, 96, 100]),
    st.booleans(),
)
def test_matrices_stay_in_nodes_and_batches_exist(name: str, samples: int, prices: bool) -> None:
    cluster = find_cluster(name)
    judge = Estimates(cluster, samples, prices=prices)
    outcome = Search(judge, cluster).run(cluster.num_devices)
    right = [each for each in outcome.judged if each.verdict and not each.objection]
    for each in outcome.judged:
        own = each.configuration
        data = own.mesh.size("data") if "data" in own.mesh.names else 1
        if each.verdict is not None:
            assert samples % (data * own.micro_batches) == 0
            assert each.objection == objection(own, cluster)
        else:
            assert each.error is not None
            assert each.error.code == "mesh-axis-indivisible"
    # Whatever the judge says of it: it is there only where nothing else has a plan.
    assert (outcome.best.objection == "") == bool(right)
    if samples % cluster.num_devices == 0:
        assert right


@pytest.mark.parametrize("only", ["tensor=16", "data=2,tensor=8"])
def test_what_alone_fits_is_taken_and_says_so(only: str) -> None:
    cluster = find_cluster("2x8xH100")
    best = Search(Estimates(cluster, 16, only), cluster).run(16).best
    assert str(best.configuration.mesh) == only
    assert bool(best.objection) == (only == "tensor=16")


def test_what_the_user_states_is_shown_but_not_chosen() -> None:
    cluster = find_cluster("2x8xH100")
    pinned = Configuration(Mesh.parse("tensor=16"), layout="tp")
    outcome = Search(Estimates(cluster, 16), cluster).run(16, [pinned])
    (own,) = [each for each in outcome.judged if each.is_pinned]
    assert own.verdict is not None
    assert own.objection == "tensor=16 divides matrices across nodes"
    assert outcome.best is not own
