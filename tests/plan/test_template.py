"""Templates of plans: polynomials found from witnesses, and checked at others."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.calls.open_plans import OpenPlans
from irc.dialects.size import Dim, Size, product, symbol, value_of
from irc.dialects.text import load
from irc.passes.bind_sizes import BindSizesPass
from irc.pipeline import Options, lower
from irc.plan.arena import Interval, aligned
from irc.plan.template.fit import Fitter
from irc.plan.template.stack import stack
from irc.plan.template.template import PlanTemplate, Witness, plan_template
from irc.plan.template.unify import DifferentError, Real, evaluate, unify
from irc.plan.template.witnesses import witnesses
from irc.plan.verify import verify_plan
from irc.program import Program

WITNESSES = [
    {"B": 13, "S": 127},
    {"B": 17, "S": 113},
    {"B": 19, "S": 109},
    {"B": 23, "S": 131},
]
MODEL = """
func.func @forward(%w: !flow.tensor<[40, 24], f32> {role = "parameter", name = "w"},
    %x: !flow.tensor<[B, S, 24], f32> {role = "input", name = "x"})
    -> (!flow.tensor<[B, S, 40], f32> {role = "output", name = "y"}) {
  %0 = flow.contract(%x, %w) {spec = "abk,nk->abn", loc = "m.py:3", id = "n0"}
      : (!flow.tensor<[B, S, 24], f32>, !flow.tensor<[40, 24], f32>)
      -> !flow.tensor<[B, S, 40], f32>
  %1 = flow.pointwise(%0) {fn = "relu", loc = "m.py:4", id = "n1"}
      : (!flow.tensor<[B, S, 40], f32>) -> !flow.tensor<[B, S, 40], f32>
  %2 = flow.reduce(%1) {fn = "max", dims = array<i64: 1>, keep_dims = true, loc = "m.py:5",
      id = "n2"} : (!flow.tensor<[B, S, 40], f32>) -> !flow.tensor<[B, 1, 40], f32>
  %3 = flow.pointwise(%1, %2) {fn = "sub", loc = "m.py:6", id = "n3"}
      : (!flow.tensor<[B, S, 40], f32>, !flow.tensor<[B, 1, 40], f32>)
      -> !flow.tensor<[B, S, 40], f32>
  func.return %3 : !flow.tensor<[B, S, 40], f32>
}
"""


def program_at(values: Mapping[str, int]) -> Program:
    module = load(MODEL)
    text = ",".join(f"{name}={number}" for name, number in values.items())
    BindSizesPass(text).apply(None, module)  # type: ignore[arg-type]  # it needs no context
    return Program(module)


def witness(values: Mapping[str, int]) -> Witness:
    program = program_at(values)
    lower(program, Options(any_rows=True), is_placed=False)
    return Witness.of(values, program.module)


@pytest.fixture(scope="module")
def witness_plans() -> list[Witness]:
    return [witness(values) for values in [*WITNESSES, {"B": 29, "S": 103}]]


@dataclass
class Anything:
    """What a trace without conditions says."""

    most: Mapping[str, int]

    @property
    def places(self) -> Mapping[str, object]:
        return {"B": 0, "S": 1}

    def tie_equal(self, values: Mapping[str, int]) -> bool:
        return False

    def admits(self, values: Mapping[str, int]) -> bool:
        return all(2 <= n <= self.most.get(name, n) for name, n in values.items())

    def extended(self, values: Mapping[str, int]) -> dict[str, int]:
        return dict(values)


B, S = symbol("B"), symbol("S")
POLYNOMIALS: list[Dim] = [
    B * S * 768, S * S, 12 * S, S + -1, B * S * S * 12, S * 2 + 3, B * S + B, B * (S + 2) * (S + 2),
    B * B * S * S, (B + 1) * (S + -2), S * 64 + 512, -1 * S,
]  # fmt: skip


@pytest.mark.parametrize("dim", POLYNOMIALS, ids=str)
def test_polynomials_are_found(dim: Dim) -> None:
    assert Fitter(WITNESSES).fit(tuple(value_of(dim, w) for w in WITNESSES)) == dim


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-5000, 5000).filter(bool),
    st.integers(-5000, 5000),
    st.lists(st.sampled_from("BS"), max_size=3),
    st.lists(st.sampled_from("BS"), max_size=3),
)
def test_sums_of_two_products_are_found(a: int, b: int, one: list[str], other: list[str]) -> None:
    dim = product(map(symbol, one)) * a + product(map(symbol, other)) * b
    assert Fitter(WITNESSES).fit(tuple(value_of(dim, w) for w in WITNESSES)) == dim


def test_what_is_no_polynomial_is_not_fitted() -> None:
    fitter = Fitter(WITNESSES)
    for step in (2, 4, 16, 64):
        assert fitter.fit(tuple(-(-w["S"] // step) for w in WITNESSES)) is None
    assert fitter.fit(tuple(min(w["S"], 120) for w in WITNESSES)) is None
    numbers = random.Random(0)
    assert fitter.fit(tuple(numbers.randrange(10**6) for _ in WITNESSES)) is None


def test_trees_unify_to_polynomials_and_evaluate_back() -> None:
    def tree(w: Mapping[str, int]) -> object:
        return {"a": (w["S"], 5, "text"), "b": [w["B"] * w["S"] * 1.0, 1 / w["S"]], "c": None}

    fitter = Fitter(WITNESSES)
    unified = unify([tree(w) for w in WITNESSES], fitter)
    assert unified == {"a": (S, 5, "text"), "b": [Real(B * S), Real(S, inverse=True)], "c": None}
    values = {"B": 3, "S": 7}
    assert evaluate(unified, lambda size: value_of(size, values)) == tree(values)


@pytest.mark.parametrize(
    ("trees", "place"),
    [
        ([{"a": (1, 2)}, {"a": (1,)}], "a: 2 entries against 1 entries"),
        ([{"a": "add"}, {"a": "sub"}], "a: add against sub"),
        ([{"a": 1}, {"a": "1"}], "a: int against str"),
        ([{"a": True}, {"a": False}], "a: True against False"),
    ],
)
def test_the_place_of_a_difference_is_named(trees: list[object], place: str) -> None:
    with pytest.raises(DifferentError, match=place):
        unify(trees, Fitter([{"S": 17}, {"S": 19}]))


def test_numbers_that_no_size_is() -> None:
    """NaN agrees with NaN, and where one has an infinity there is no common tree."""
    fitter = Fitter([{"S": 17}, {"S": 19}])
    nan = unify([(float("nan"),), (float("nan"),)], fitter)
    assert isnan(nan[0])
    for trees in ([float("inf"), 19.0], [float("nan"), 19.0], [float("inf"), float("-inf")]):
        with pytest.raises(DifferentError):
            unify(trees, fitter)


def test_a_template_is_the_plan_at_other_sizes(witness_plans: list[Witness]) -> None:
    template = plan_template(witness_plans)
    for values in ({"B": 2, "S": 2}, {"B": 3, "S": 200}, {"B": 64, "S": 17}):
        own = witness(values)
        assert template.agrees(own) is None
        plan = template.at(values)
        verify_plan(plan)
        assert [b.shape for b in plan.buffers] == [b.shape for b in own.plan.buffers]
        for kernel, wanted in zip(template.kernels, own.kernels, strict=True):
            sized = kernel.at(values)
            assert sized.task_mapping == wanted.task_mapping
            assert [str(op) for op in sized.body.block.ops] == [
                str(op) for op in wanted.body.block.ops
            ]
    assert template.span.holds({"B": 50, "S": 150})
    assert not template.span.holds({"B": 50, "S": 300})


def test_a_wrong_polynomial_is_caught(
    witness_plans: list[Witness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fit that agrees with the witnesses it is from, and is wrong, does not pass the last one."""
    right = Fitter.fit
    vanishing: Dim = product(S + -w["S"] for w in WITNESSES)

    def planted(fitter: Fitter, values: tuple[int, ...]) -> Dim | None:
        fitted = right(fitter, values)
        return fitted + vanishing if isinstance(fitted, Size) else fitted

    monkeypatch.setattr(Fitter, "fit", planted)
    with pytest.raises(DifferentError, match="the plan held back"):
        plan_template(witness_plans)


def test_every_wrong_number_of_a_plan_is_caught(witness_plans: list[Witness]) -> None:
    """One number of one plan is changed: no template comes of it."""
    third = witness_plans[2]
    for index, buffer in enumerate(third.plan.buffers):
        if not any(n > 1 for n in buffer.shape):
            continue
        changed = list(third.plan.buffers)
        changed[index] = replace(buffer, shape=(buffer.shape[0] + 1, *buffer.shape[1:]))
        wrong = replace(third, plan=replace(third.plan, buffers=tuple(changed)))
        with pytest.raises(DifferentError):
            plan_template([*witness_plans[:2], wrong, *witness_plans[3:]])


def test_another_structure_is_no_agreement(witness_plans: list[Witness]) -> None:
    template = plan_template(witness_plans)
    other = witness({"B": 5, "S": 11})
    fewer = replace(other, plan=replace(other.plan, steps=other.plan.steps[:-1]))
    reason = template.agrees(fewer)
    assert reason is not None and "steps" in reason
    assert not template.span.holds(other.values)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 9), st.integers(0, 4)), max_size=12),
       st.randoms(use_true_random=False))  # fmt: skip
def test_a_stack_overlaps_at_no_sizes(
    raw: list[tuple[int, int, int]], numbers: random.Random
) -> None:
    intervals = [Interval(size, first, first + length) for size, first, length in raw]
    stacked = stack(intervals)
    for sizes in ([i.size_bytes for i in intervals], [numbers.randrange(900) for _ in intervals]):
        offsets, total = stacked.place(sizes)
        for a, b in combinations(range(len(sizes)), 2):
            alive = intervals[a].first <= intervals[b].last
            if alive and intervals[b].first <= intervals[a].last:
                ends = offsets[a] + aligned(sizes[a]), offsets[b] + aligned(sizes[b])
                assert ends[0] <= offsets[b] or ends[1] <= offsets[a]
        assert all(o + aligned(s) <= total for o, s in zip(offsets, sizes, strict=True))


def test_a_quotient_that_is_equal_at_two_witnesses_is_fitted() -> None:
    numbers = (34, 34, 29, 30, 26)
    seen = [{"B": b, "q": q} for b, q in zip((13, 14, 12, 17, 22), numbers, strict=True)]
    assert str(Fitter(seen).fit(tuple(2 * q + 1 for q in numbers))) == "2*q + 1"


def test_what_windows_reach_of_an_image_is_fitted() -> None:
    seen = [
        {"B": b, "H": h, "W": w, "p": -(-h // 2), "q": -(-w // 2)}
        for b, h, w in [(13, 67, 97), (14, 62, 94), (17, 116, 124), (12, 68, 92), (22, 61, 101)]
    ]
    fitted = Fitter(seen).fit(tuple(3 * w["B"] * (2 * w["p"] + 1) * (2 * w["q"] - 1) for w in seen))
    p, q, b = symbol("p"), symbol("q"), symbol("B")
    assert fitted == product([b, p * 2 + 1, q * 2 - 1]) * 3


def test_each_quotient_has_several_numbers_at_the_witnesses() -> None:
    def halved(values: Mapping[str, int]) -> dict[str, int]:
        """An image that is halved six times, beside one that is halved twice."""
        full = dict(values)
        for name, times in (("H", 6), ("W", 2)):
            n = values[name]
            for time in range(times):
                n = full[f"{name}{time}"] = -(-n // 2)
        return full

    chosen = witnesses({"N": 2, "H": 256, "W": 384}, lambda _: True, extended=halved)
    assert len(chosen) == 5
    for name in halved(chosen[0]):
        assert len({halved(values)[name] for values in chosen}) >= 3, name


def test_witnesses_are_admitted_and_apart() -> None:
    chosen = witnesses({"B": 2, "S": 128}, lambda v: v["S"] <= 128 and v["S"] % 8 == 0)
    assert len(chosen) == 5 and all(v["S"] % 8 == 0 and v["S"] != 128 for v in chosen)
    assert len({v["S"] for v in chosen}) == len({v["B"] for v in chosen}) == 5
    assert witnesses({"S": 7}, lambda v: v["S"] == 7) == []


def test_no_size_follows_from_another_at_the_witnesses() -> None:
    """13 + 47 = 17 + 43 = 19 + 41 = 23 + 37 = 29 + 31: a length would be read off the batch."""
    chosen = witnesses({"B": 1, "N": 50, "M": 50}, lambda v: v["M"] < v["N"] and v["B"] < v["M"])
    sums = {v["B"] + v["M"] for v in chosen}
    assert len(chosen) == 5 and len(sums) > 1
    for a, b in (("B", "N"), ("B", "M"), ("N", "M")):
        points = np.array([[1, v[a], v[b]] for v in chosen])
        assert np.linalg.matrix_rank(points) == 3
    # Where one does follow, there are witnesses all the same.
    assert len(witnesses({"A": 9, "B": 10}, lambda v: v["B"] == v["A"] + 1)) == 5


@pytest.mark.parametrize("step", [1, 3000, 1 << 14, 7919])
def test_a_size_of_millions_has_witnesses_soon(step: int) -> None:
    asked: list[int] = []

    def admitted(values: Mapping[str, int]) -> bool:
        asked.append(values["N"])
        return values["N"] % step == 0

    chosen = witnesses({"N": 4_000_000 // step * step}, admitted)
    assert len({v["N"] for v in chosen}) == 5 and all(v["N"] % step == 0 for v in chosen)
    assert len(asked) < 20_000


def test_quotients_ask_for_all_remainders() -> None:
    chosen = witnesses({"H": 32}, lambda _: True, extended=lambda v: {**v, "q": v["H"] // 2})
    assert {v["H"] % 2 for v in chosen} == {0, 1}


def test_quotients_by_much_differ() -> None:
    chosen = witnesses({"N": 9600}, lambda _: True, extended=lambda v: {**v, "q": v["N"] // 160})
    assert len({v["N"] // 160 for v in chosen}) == len(chosen) == 5


def test_one_template_serves_all_sizes() -> None:
    plans = OpenPlans(Anything({}), program_at, Options())
    plans.at({"B": 4, "S": 32})
    planned = plans.work.planned
    assert len(plans.templates) == 1
    for values in ({"B": 2, "S": 2}, {"B": 7, "S": 100}, {"B": 8, "S": 33}):
        loaded = plans.at(values)
        verify_plan(loaded.plan)
    assert plans.work.planned == planned
    assert plans.work.bound == 4
    assert plans.work.reasons == []


def test_sizes_beyond_are_planned_once_and_then_known() -> None:
    plans = OpenPlans(Anything({}), program_at, Options())
    plans.at({"B": 4, "S": 32})
    before = plans.work.planned
    plans.at({"B": 4, "S": 2000})
    plans.at({"B": 4, "S": 1999})
    assert plans.work.planned == before + 1


def test_too_few_sizes_make_no_template() -> None:
    plans = OpenPlans(Anything({"B": 3, "S": 3}), program_at, Options())
    loaded = plans.at({"B": 3, "S": 3})
    verify_plan(loaded.plan)
    assert plans.templates == []
    assert any("too few sizes" in reason for reason in plans.work.reasons)


def test_kernels_of_a_gpu_take_sizes_too() -> None:
    plans = OpenPlans(Anything({}), program_at, Options(backend="cuda"))
    plans.at({"B": 4, "S": 32})
    (before, shared), (entry,) = (plans.work.emitted, plans.work.shared), plans.templates
    assert shared > 0 and {kernel.division for kernel in entry.template.kernels} <= {
        "same",
        "tiles",
    }
    verify_plan(plans.at({"B": 5, "S": 31}).plan)
    assert (plans.work.emitted, plans.work.shared) == (2 * before, shared)


def test_templates_are_typed(witness_plans: list[Witness]) -> None:
    assert isinstance(plan_template(witness_plans), PlanTemplate)
