"""Layouts by name say how axes are used, and not only where weights lie."""

from __future__ import annotations

from collections import Counter

import pytest

from irc.constraints.layouts import parse_layout
from irc.dialects.placement import Mesh, Partial, Placement, Split
from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options
from irc.plan.schema import Plan, Start, placement_of
from irc.programs.halves import Halves, pack_halves, plan_halves, unpack_halves
from tests.training.models import TARGETS, TOKENS, small_gpt


def planned(mesh: str, layout: str, rows: int = 8) -> Halves:
    module = small_gpt()
    program = capture(module, (TOKENS[:rows], TARGETS[:rows])).program
    options = Options(mesh=Mesh.parse(mesh), layout=layout, cluster="demo-gpus")
    return plan_halves(program, options, [n for n, _ in module.named_parameters()], [])


def collectives(plan: Plan) -> Counter[str]:
    return Counter(action.op for action in plan.actions if isinstance(action, Start))


def launches(plan: Plan) -> Counter[str]:
    """Count what the library is asked to begin: of a bucket one for all."""
    starts = [action for action in plan.actions if isinstance(action, Start)]
    begun = {(start.op, start.attrs.get("bucket", start.id)) for start in starts}
    return Counter(op for op, _ in begun)


def weights(plan: Plan) -> dict[str, Placement]:
    buffers = [plan.buffers[i] for i in plan.weights]
    return {b.name: placement_of(b) for b in buffers if b.role == "parameter" and b.placement}


def test_samples_are_divided_and_gradients_left_as_sums() -> None:
    """Forward adds up the loss and what divides it at once; backward says nothing to others."""
    halves = planned("data=2", "ddp")
    assert launches(halves.forward.plan) == {"comm.all_reduce": 1}
    assert not collectives(halves.backward.plan)
    assert not weights(halves.forward.plan)
    plan = halves.backward.plan
    assert {placement_of(plan.buffers[i])["data"] for i in plan.outputs} == {Partial()}


def test_what_is_stored_is_gathered_for_each_use() -> None:
    """Backward gathers the matrices again, and nothing but matrices."""
    halves = planned("data=2", "fsdp")
    assert all(p["data"] == Split(0) for p in weights(halves.forward.plan).values())
    assert collectives(halves.forward.plan)["comm.all_gather"] == 28
    assert set(collectives(halves.backward.plan)) == {"comm.all_gather"}
    saved = [b for b in halves.backward.plan.buffers if b.role == "saved"]
    whole = {tuple(p.shape) for p in small_gpt().parameters() if p.ndim > 1}
    assert not {buffer.shape for buffer in saved} & whole
    again = unpack_halves(pack_halves(halves))
    assert (again.saved, again.gradients) == (halves.saved, halves.gradients)
    assert again.backward.plan == halves.backward.plan


@pytest.mark.parametrize("layout", ["tp", "tp+sp"])
def test_products_use_their_part_of_a_matrix(layout: str) -> None:
    """No matrix of a layer is gathered, and with sequences divided no activation is whole."""
    halves = planned("tensor=2", layout)
    placements = weights(halves.forward.plan)
    for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down"):
        assert isinstance(placements[f"layers.0.{name}.weight"]["tensor"], Split)
    gathered = [
        plan.buffers[action.outputs[0]].shape
        for plan in (halves.forward.plan, halves.backward.plan)
        for action in plan.actions
        if isinstance(action, Start) and action.op == "comm.all_gather"
    ]
    whole = {tuple(p.shape) for n, p in small_gpt().named_parameters() if "layers" in n}
    assert not set(gathered) & whole


def test_both() -> None:
    halves = planned("data=2,tensor=2", "fsdp+tp")
    plan = halves.backward.plan
    placements = [placement_of(plan.buffers[i]) for i in plan.outputs]
    assert {p["data"] for p in placements} == {Partial()}
    assert any(isinstance(p["tensor"], Split) for p in placements)


def test_what_a_layout_cannot_be() -> None:
    with pytest.raises(IrcError, match="there is no layout 'fdsp'"):
        parse_layout("fdsp", Mesh.parse("data=2"))
    with pytest.raises(IrcError, match="no axis of 'a=2,b=2' is for that"):
        parse_layout("tp", Mesh.parse("a=2,b=2"))
    with pytest.raises(IrcError, match="'tokens' has 7 samples for 2 ranks of data"):
        planned("data=2", "ddp", rows=7)
