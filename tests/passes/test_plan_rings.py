"""Pass plan-rings: the cheapest way, the same numbers; what is asked for is done or refused."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import entry
from irc.dialects.comm import PermuteOp
from irc.dialects.dominance import verify_module
from irc.dialects.text import load
from irc.errors import IrcError
from irc.interpret.levels import difference, random_inputs
from irc.interpret.sharded import run_sharded
from irc.interpret.spmd import run_spmd
from irc.passes.lower_boxing import LowerBoxingPass
from irc.passes.plan_rings import PlanRingsPass
from irc.pipeline import run_passes
from irc.sharding.mesh import mesh_of
from irc.sharding.ring_told import rings_of
from irc.sharding.ring_ways import KEYS, WAYS, ZIGZAG, way_of

CLUSTER = "1x8xH100"


def attention(rows: int, *, causal: bool = True, ranks: int = 4, mask: bool = False) -> ModuleOp:
    """Return attention of a sequence that four ranks split, on level flow+sbp."""
    kind = f"!flow.tensor<[1, 3, {rows}, 8], f32, [seq = S(2)]>"
    bias = f", %m: !flow.tensor<[{rows}, {rows}], f32, [seq = S(0)]>" if mask else ""
    last = f", !flow.tensor<[{rows}, {rows}], f32, [seq = S(0)]>" if mask else ""
    text = f"""builtin.module attributes {{irc.mesh = "seq={ranks}"}} {{
    func.func @forward(%q: {kind}, %k: {kind}, %v: {kind}{bias}) -> {kind} {{
      %y = flow.attention(%q, %k, %v{", %m" if mask else ""})
          {{is_causal = {str(causal).lower()}, scale = 0.5 : f64, id = "n0", loc = "m.py:1"}}
          : ({kind}, {kind}, {kind}{last}) -> {kind}
      func.return %y : {kind}
    }}
    }}"""
    module = load(text, "test")
    verify_module(module)
    return module


@pytest.mark.parametrize("way", WAYS)
def test_a_ring_goes_as_asked_and_numbers_stay(way: str) -> None:
    module = attention(48)
    inputs, mesh = random_inputs(module), mesh_of(module)
    (before,) = run_sharded(module, inputs, mesh, dtype=torch.float64)
    run_passes(module, [PlanRingsPass(way=way, cluster=CLUSTER)])
    (ring,) = rings_of(module)
    assert ring.way == way_of(next(iter(entry(module).body.block.ops))) == way  # type: ignore[arg-type]
    run_passes(module, [LowerBoxingPass()])
    verify_module(module)
    num_permutes = sum(isinstance(op, PermuteOp) for op in entry(module).body.block.ops)
    # A hop of k and v and nothing else; of q, and back y and its log-sums; four halves that swap.
    assert num_permutes == dict(zip(WAYS, (6, 16, 9, 22), strict=True))[way]
    (after,) = run_spmd(module, inputs, mesh, dtype=torch.float64)
    assert difference(after, before) < 1e-12
    assert len(set(ring.work.flops)) == (1 if ZIGZAG in way else 4)


def test_the_way_is_the_one_that_ends_first() -> None:
    for rows, causal in ((2**16, True), (2**16, False), (64, True)):
        module = attention(rows, causal=causal)
        run_passes(module, [PlanRingsPass(cluster=CLUSTER)])
        (ring,) = rings_of(module)
        assert ring.seconds[ring.way] == min(ring.seconds.values())
        if rows > 64:
            assert (ring.way == ZIGZAG) == causal


def test_a_mask_and_odd_chunks_leave_keys_or_say_why() -> None:
    for module, asked in ((attention(48, mask=True), "tokens"), (attention(36), ZIGZAG)):
        with pytest.raises(IrcError) as refusal:
            run_passes(module.clone(), [PlanRingsPass(way=asked, only="n0", cluster=CLUSTER)])
        assert refusal.value.code == "option-value"
        assert f"'n0' does not go by {asked}" in str(refusal.value)
        run_passes(module, [PlanRingsPass(way=asked, cluster=CLUSTER)])
        assert rings_of(module)[0].way == KEYS


@pytest.mark.parametrize(
    ("options", "says"),
    [({"way": "zigzig"}, "zigzag"), ({"only": "n1"}, "no ring has the id 'n1'")],
)
def test_what_is_not_there_is_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(IrcError) as refusal:
        run_passes(attention(48), [PlanRingsPass(cluster=CLUSTER, **options)])
    assert refusal.value.code == "option-value"
    assert says in str(refusal.value)


def test_what_is_not_named_stays_as_it_is() -> None:
    module = attention(2**16)
    run_passes(module, [PlanRingsPass(only="n0", cluster=CLUSTER)])
    assert rings_of(module)[0].way == ZIGZAG
    run_passes(module, [PlanRingsPass(only="n0", way=KEYS, cluster=CLUSTER)])
    assert rings_of(module)[0].way == ZIGZAG, "a decision is made once"
