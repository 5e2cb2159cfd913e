"""The mesh that wins: by seconds added up, or among the near ones by what a simulation says."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from irc.cluster.load import find_cluster
from irc.dialects.text import context
from irc.frontends.torch.capture import capture
from irc.passes.canonicalize import CanonicalizePass
from irc.search.graph import Wishes
from irc.search.meshes import MAX_NEAR, search_meshes
from irc.search.solved import Plan
from tests.search.plans import Mlp, empty


def mlp() -> ModuleOp:
    module = capture(Mlp(1024, 4096).to("meta"), (empty(512, 1024),)).program.module
    CanonicalizePass().apply(context(), module)
    return module


def test_near_meshes_are_compared_by_simulation() -> None:
    module, cluster = mlp(), find_cluster("8xH100")
    added_up = search_meshes(module, cluster, 4, Wishes("any"))
    assert all(tried.step_s is None for tried in added_up.tried)
    asked: list[Plan] = []

    def step_s(plan: Plan) -> float:
        """Prefer what is dearest."""
        asked.append(plan)
        return 1.0 - plan.solution.seconds

    simulated = search_meshes(module, cluster, 4, Wishes("any"), step_s=step_s)
    near = [tried for tried in simulated.tried if tried.step_s is not None]
    assert 1 <= len(near) <= MAX_NEAR
    assert [str(tried.mesh) for tried in simulated.tried[: len(near)]] == [
        str(tried.mesh) for tried in sorted(near, key=lambda tried: -tried.seconds)
    ]
    assert str(simulated.cost.mesh) == str(near[0].mesh)


def test_a_mesh_that_is_planned_again_may_fall_behind() -> None:
    """The plan is that of the first mesh, whatever the winner takes once it is planned in full."""
    module, cluster = mlp(), find_cluster("8xH100")
    level = search_meshes(module, cluster, 4, Wishes("any"), step_s=lambda _: 1.0).tried[0].mesh

    def step_s(plan: Plan) -> float:
        """Give the winner of few ways the longest step once all are looked at."""
        is_full = plan.graph.options.ways is None
        other = 1.0 if plan.graph.mesh != level else 2.0
        return 5.0 if is_full and plan.graph.mesh != level else other

    ranking = search_meshes(module, cluster, 4, Wishes("any"), step_s=step_s)
    assert ranking.tried[0].mesh == ranking.cost.mesh == ranking.plan.graph.mesh
    steps = [tried.step_s for tried in ranking.tried if tried.step_s is not None]
    assert len(steps) > 1
    assert steps == sorted(steps)


def test_without_a_simulation_the_sum_decides() -> None:
    """As of processes of one host, which take each other's cores."""
    module, cluster = mlp(), find_cluster("8xH100")
    added_up = search_meshes(module, cluster, 4, Wishes("any"))
    unknown = search_meshes(module, cluster, 4, Wishes("any"), step_s=lambda _: None)
    assert str(unknown.cost.mesh) == str(added_up.cost.mesh)
    assert all(tried.step_s is None for tried in unknown.tried)
