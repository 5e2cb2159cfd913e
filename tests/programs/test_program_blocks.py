"""What layers of a step of one program take and hold, against its plan."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from irc.calls.step_plan import captured_step, training_plan
from irc.choices import recipe_option
from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh
from irc.pipeline import Options
from irc.plan.schema import Plan
from irc.programs.layer_times import COMPUTE, LayerTimes, Places, inner
from irc.programs.program_blocks import blocks_of_program
from irc.programs.short_steps import LayerOps, layer_ops
from irc.search.blocks import Content
from irc.simulate.plan import Contention, predict
from irc.simulate.verdicts import verdict_of
from tests.programs.models import GPT

LAYERS, CLUSTER, MESH = 4, "2x8xH100", Mesh.parse("data=16")
WIDE = 1024
"""Of a layer whose weights take long over the network, and whose products do not."""


@cache
def planned(width: int = 128) -> tuple[Plan, LayerOps]:
    model = GPT(LAYERS, width).to(torch.bfloat16)
    ids = torch.zeros((16, 12), dtype=torch.int64)
    recipe = recipe_option(model, None, "adamw", "", 1, "none", None)
    captured, _ = captured_step(model, None, recipe, (ids, ids.clone()), {})
    ops = layer_ops(captured.program.module)
    assert ops is not None
    options = Options(mesh=MESH, cluster=CLUSTER, layout="fsdp", brief=True)
    return training_plan(captured.program, recipe, options, model).plan, ops


def test_so_many_layers_as_were_planned_take_and_hold_what_the_plan_does() -> None:
    plan, ops = planned()
    cluster = find_cluster(CLUSTER)
    own = blocks_of_program(plan, ops, Contention.of(cluster, MESH))
    piece, whole = own.stage(Content(LAYERS, True, True)), verdict_of(plan, cluster)
    assert sum(piece.seconds.values()) == pytest.approx(whole.step_s)
    assert sum(piece.bare_s.values()) == pytest.approx(whole.exposed_s)
    kept = (piece.held_bytes, *piece.saved_bytes.values(), *piece.arena_bytes.values())
    assert sum(kept) == pytest.approx(whole.num_bytes)


def test_a_layer_takes_as_long_as_compute_or_a_link_in_both_directions_together() -> None:
    """What was gathered for backward before it began counted as if forward waited for it."""
    plan, ops = planned(WIDE)
    contention = Contention.of(find_cluster(CLUSTER), MESH)
    layer = blocks_of_program(plan, ops, contention).layer
    places, streams, before = Places(plan, ops), dict[str, list[float]](), 0.0
    for place, action, start, end in places.of_actions(predict(plan, contention=contention)):
        own = streams.setdefault(action.stream, [0.0] * LAYERS)
        is_compute = action.stream == COMPUTE
        places.share(own, place, end - (before if is_compute else start))
        before = end if is_compute else before
    assert sum(layer.seconds.values()) == pytest.approx(max(map(inner, streams.values())))
    assert min(layer.seconds.values()) > 0.0


def test_what_is_gathered_ahead_for_backward_is_not_held_for_each_layer() -> None:
    """Links that have time gather for backward early: for a few layers, of however many."""
    plan, ops = planned(WIDE)
    own = blocks_of_program(plan, ops, Contention.of(find_cluster(CLUSTER), MESH))
    assert 0.0 < own.layer.saved_bytes["F-B"] < 12 * WIDE * WIDE * 2


def test_gathers_sums_and_updates_are_of_the_layers_of_their_weights() -> None:
    """They have no op of a layer in their ids: a wait for each layer's weights was one of all."""
    plan, ops = planned()
    places = Places(plan, ops)
    for begin in ("arg", "step"):
        often = [0.0] * LAYERS
        for place, step in enumerate(places.steps):
            if step.id.startswith(begin):
                places.share(often, place, 1.0)
        assert often[0] > 0.0, begin
        assert often == pytest.approx([often[0]] * LAYERS), begin


def test_collectives_pile_up_where_links_take_longer_than_compute() -> None:
    """The first layer to wait for them alone seemed to take long, and one more nothing for it."""
    places = Places(*planned())
    own = [next(n for n, each in enumerate(places.layers) if each == (k,)) for k in range(LAYERS)]
    times = LayerTimes(places)
    for place in own:
        times.add(place, COMPUTE, 1.0)
        times.add(place, "link data", 3.0)
    times.add(own[0], COMPUTE, 8.0, 8.0)
    assert (times.seconds, times.idle_s) == (12.0, 8.0)
    assert (times.layer_s, times.layer_idle_s) == (3.0, 2.0)


def test_an_inner_layer_is_none_of_the_first_and_last_quarter() -> None:
    assert inner([5.0, 1.0, 3.0, 7.0]) == 2.0
