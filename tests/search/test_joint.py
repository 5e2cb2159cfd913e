"""Several entries placed together: what one of them decides alone, and what they decide at once."""

from __future__ import annotations

from itertools import product

import pytest
from xdsl.dialects.builtin import ModuleOp

from irc.cluster.presets import PRESETS
from irc.constraints.pins import parse_constraints, pin
from irc.constraints.resolve import resolve
from irc.cost.model import ClusterCost
from irc.dialects.builder import arguments, entry
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.text import load
from irc.errors import IrcError
from irc.search.graph import Wishes, even_placements
from irc.search.joint import place_together
from irc.search.on_mesh import search

MESH = Mesh.parse("tensor=2")


def reader(tokens: int, spec: str, shape: tuple[int, int]) -> ModuleOp:
    """An entry that multiplies with a weight [512, 512] and keeps what comes out in a cache."""
    rows, columns = shape
    return load(
        f"""
        func.func @forward(
            %x: !flow.tensor<[{tokens}, 512], f32> {{role = "input", name = "x"}},
            %w: !flow.tensor<[512, 512], f32> {{role = "parameter", name = "w"}},
            %c: !flow.tensor<[{rows}, {columns}], f32> {{role = "cache", name = "c"}})
            -> (!flow.tensor<[{tokens}, 512], f32> {{role = "output", name = "y"}},
                !flow.tensor<[{rows}, {columns}], f32> {{role = "state", name = "c"}}) {{
          %y = flow.contract(%x, %w) {{spec = "{spec}", loc = "m.py:1", id = "n0"}}
              : (!flow.tensor<[{tokens}, 512], f32>, !flow.tensor<[512, 512], f32>)
              -> !flow.tensor<[{tokens}, 512], f32>
          %s = flow.reduce(%y) {{fn = "sum", dims = array<i64: 0>, keep_dims = true,
              loc = "m.py:2", id = "n1"}}
              : (!flow.tensor<[{tokens}, 512], f32>) -> !flow.tensor<[1, 512], f32>
          %d = flow.pointwise(%c, %s) {{fn = "add", loc = "m.py:3", id = "n2"}}
              : (!flow.tensor<[{rows}, {columns}], f32>, !flow.tensor<[1, 512], f32>)
              -> !flow.tensor<[{rows}, {columns}], f32>
          func.return %y, %d
              : !flow.tensor<[{tokens}, 512], f32>, !flow.tensor<[{rows}, {columns}], f32>
        }}
        """,
        "reader",
    )


def entries() -> dict[str, ModuleOp]:
    """The same weight, read by its columns and by its rows."""
    return {
        "prefill": reader(256, "bk,kn->bn", (64, 512)),
        "decode": reader(1, "bk,nk->bn", (64, 512)),
    }


def cost() -> ClusterCost:
    return ClusterCost(PRESETS["demo-gpus"], MESH)


def seconds(module: ModuleOp, pins: dict[str, Placement]) -> float:
    """The price of one entry whose weights and caches are pinned."""
    module = module.clone()
    pin(module, pins)
    from irc.constraints.pins import module_pins

    return search(
        module, cost(), Wishes(constraints=resolve(module, MESH, module_pins(module)))
    ).solution.seconds


@pytest.mark.parametrize("runs", [{}, {"decode": 400}, {"prefill": 7}])
def test_the_choice_is_the_best_of_all(runs: dict[str, int]) -> None:
    """Tried one by one: no placement of weight and cache is cheaper for both entries together."""
    modules = entries()
    placed = place_together(modules, cost(), runs=runs)
    assert placed["prefill"]["w"] == placed["decode"]["w"]
    assert placed["prefill"]["c"] == placed["decode"]["c"]
    often = {name: runs.get(name, 1) for name in modules}

    def price(w: Placement, c: Placement) -> float:
        return sum(often[n] * seconds(m, {"w": w, "c": c}) for n, m in modules.items())

    shapes = {
        name: value.type.static_shape() for _, name, value in arguments(entry(modules["decode"]))
    }
    tried = {
        (w, c): price(w, c)
        for w, c in product(even_placements(shapes["w"], MESH), even_placements(shapes["c"], MESH))
    }
    best = min(tried.values())
    chosen_s = tried[placed["decode"]["w"], placed["decode"]["c"]]
    print({f"{w} {c}": f"{s * 1e6:.1f} us" for (w, c), s in tried.items()})
    assert chosen_s <= best * 1.000001


def test_the_entry_that_runs_most_decides() -> None:
    modules = entries()
    first, second = (
        place_together(modules, cost(), runs=runs)["decode"]["w"]
        for runs in ({"prefill": 10_000}, {"decode": 10_000})
    )
    alone = {
        name: place_together({name: module}, cost())[name]["w"] for name, module in modules.items()
    }
    assert alone == {"prefill": first, "decode": second}


def test_names_that_two_entries_do_not_share() -> None:
    modules = entries()
    pins = parse_constraints("prefill/w = [tensor = S(0)]; decode/w = [tensor = S(1)]")
    own = {name: ["w"] for name in modules}
    placed = place_together(modules, cost(), own=own, pins=pins)
    assert placed["prefill"]["w"] == Placement.of(tensor=Split(0))
    assert placed["decode"]["w"] == Placement.of(tensor=Split(1))
    assert placed["prefill"]["x"] == Placement.of(tensor=B)


def test_a_cache_of_two_sizes_is_refused() -> None:
    modules = {**entries(), "decode": reader(1, "bk,nk->bn", (32, 512))}
    with pytest.raises(IrcError, match=r"'c' is .*32, 512.* in 'decode' and .*64, 512") as caught:
        place_together(modules, cost())
    assert caught.value.code == "input-mismatch"
