"""Collectives of a bucket: put where all may begin, and refused where ranks would wait for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64

from irc.dialects.builder import entry
from irc.dialects.comm import AllReduceOp, CollectiveOp, WaitOp
from irc.dialects.flow import id_of
from irc.dialects.placement import Mesh
from irc.dialects.text import load
from irc.errors import IrcError
from irc.plan.schema import Plan, Start
from irc.plan.verify import verify_plan
from irc.sharding.bucketed import Places, put_together, wait_late
from irc.sharding.collectives import check_collectives
from tests.plan.programs import Task, build_plan

MESH = Mesh.parse("data=2")


def sums(second: str = "f32") -> ModuleOp:
    """Two sums, each awaited at once, of values that are computed one behind the other."""
    kinds = [f"!flow.tensor<[4], {dtype}>" for dtype in ("f32", "f32", second)]
    lines = [f"func.func @forward(%v0: {kinds[0]}) -> ({kinds[1]}, {kinds[2]}) {{"]
    for n in (1, 2):
        before, kind = kinds[n - 1 : n + 1]
        fn = "neg" if kind == before else "cast"
        lines += [
            f'%v{n} = flow.pointwise(%v{n - 1}) {{fn = "{fn}", loc = "m.py:{n}", id = "n{n}"}}'
            f" : ({before}) -> {kind}",
            f'%p{n} = comm.all_reduce(%v{n}) {{axis = "data", fn = "sum", loc = "m.py:{n}",'
            f' id = "s{n}.start"}} : ({kind}) -> !comm.pending<{kind}>',
            f'%s{n} = comm.wait(%p{n}) {{loc = "m.py:{n}", id = "s{n}"}}'
            f" : (!comm.pending<{kind}>) -> {kind}",
        ]
    lines += [f"func.return %s1, %s2 : {kinds[1]}, {kinds[2]}", "}"]
    return load("\n".join(lines))


def ids(module: ModuleOp) -> list[str]:
    return [id_of(op) for op in entry(module).body.block.ops if id_of(op)]


def members(module: ModuleOp) -> list[tuple[CollectiveOp, WaitOp]]:
    waits = [op for op in entry(module).body.block.ops if isinstance(op, WaitOp)]
    starts = [wait.inputs[0].owner for wait in waits]
    return [(s, w) for s, w in zip(starts, waits, strict=True) if isinstance(s, AllReduceOp)]


def test_all_begin_behind_the_last_operand_and_before_a_wait() -> None:
    module = sums()
    wait_late(entry(module).body.block)
    assert ids(module) == ["n1", "s1.start", "n2", "s2.start", "s1", "s2"]
    put_together(members(module))
    assert ids(module) == ["n1", "n2", "s1.start", "s2.start", "s1", "s2"]
    check_collectives(module, MESH)
    assert {start.plain["bucket"] for start, _ in members(module)} == {"s1.start"}
    assert {start.plain["bucket_bytes"] for start, _ in members(module)} == {32}


def many_sums(count: int) -> ModuleOp:
    """Sums of values that are computed one behind the other."""
    kind = "!flow.tensor<[4], f32>"
    lines = [f"func.func @forward(%v0: {kind}) -> ({', '.join([kind] * count)}) {{"]
    for n in range(1, count + 1):
        lines += [
            f'%v{n} = flow.pointwise(%v{n - 1}) {{fn = "neg", loc = "m.py:{n}", id = "n{n}"}}'
            f" : ({kind}) -> {kind}",
            f'%p{n} = comm.all_reduce(%v{n}) {{axis = "data", fn = "sum", loc = "m.py:{n}",'
            f' id = "s{n}.start"}} : ({kind}) -> !comm.pending<{kind}>',
            f'%s{n} = comm.wait(%p{n}) {{loc = "m.py:{n}", id = "s{n}"}}'
            f" : (!comm.pending<{kind}>) -> {kind}",
        ]
    results = ", ".join(f"%s{n}" for n in range(1, count + 1))
    lines += [f"func.return {results} : {', '.join([kind] * count)}", "}"]
    return load("\n".join(lines))


def sums_of(module: ModuleOp) -> list[tuple[CollectiveOp, WaitOp]]:
    return sorted(members(module), key=lambda each: id_of(each[1]))


@pytest.mark.parametrize("is_late", [False, True])
def test_several_buckets_are_put_together_on_one_numbering(*, is_late: bool) -> None:
    one, other = many_sums(9), many_sums(9)
    blocks = [entry(module).body.block for module in (one, other)]
    for block in blocks if is_late else ():
        wait_late(block)
    groups = [(0, 1, 2), (3, 5), (4, 8), (6, 7)]
    places = Places(blocks[0])
    for group in groups:
        put_together([sums_of(one)[n] for n in group], places=places)
        assert places.position == {op: n for n, op in enumerate(blocks[0].ops)}
        put_together([sums_of(other)[n] for n in group])
        assert ids(one) == ids(other)
    check_collectives(one, MESH)


def of_two(module: ModuleOp, size: int = 2, fn: str = "sum") -> None:
    """Say of both that they are in a bucket, wherever they stand."""
    starts = [start for start, _ in members(module)]
    starts[-1].properties["fn"] = StringAttr(fn)
    for start in starts:
        start.properties |= {
            "bucket": StringAttr("b"),
            "bucket_size": IntegerAttr(size, i64),
            "bucket_bytes": IntegerAttr(32, i64),
        }


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("waited for before all of its bucket start", {}),
        ("in a bucket of 3, of which 2 start", {"size": 3}),
        ("with others of another kind", {"fn": "max"}),
    ],
)
def test_what_would_wait_for_ever_is_refused(said: str, options: dict[str, object]) -> None:
    module = sums()
    of_two(module, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(IrcError, match=said) as error:
        check_collectives(module, MESH)
    assert error.value.code == "collective-invalid"


def test_dtypes_are_not_mixed() -> None:
    module = sums("f16")
    of_two(module)
    with pytest.raises(IrcError, match="with others of another kind"):
        check_collectives(module, MESH)
    t = Task("data=2")
    values = [t.argument("input", dtype, (4,), dtype=dtype) for dtype in ("f32", "f16")]
    pending = [t.start(AllReduceOp, value, (4,), axis="data", fn="sum") for value in values]
    plan = build_plan(t.finish(*map(t.wait, pending)))
    verify_plan(plan)
    with pytest.raises(IrcError, match="not alike"):
        verify_plan(bucketed(plan, lambda _: {"bucket": "b", "bucket_size": 2}))


def plan_of_two() -> Plan:
    t = Task("data=2")
    x = t.argument("input", "x", (4,))
    pending = [
        t.start(AllReduceOp, t.pointwise(fn, x), (4,), axis="data", fn="sum")
        for fn in ("neg", "exp")
    ]
    plan = build_plan(t.finish(*map(t.wait, pending)))
    return bucketed(plan, lambda number: {"bucket": "b", "bucket_size": 2})


def bucketed(plan: Plan, attrs: Callable[[int], dict[str, object]]) -> Plan:
    actions = [
        replace(action, attrs={**action.attrs, **attrs(number)})
        if isinstance(action, Start)
        else action
        for number, action in enumerate(plan.actions)
    ]
    return replace(plan, actions=tuple(actions))


def test_a_plan_that_would_wait_for_ever_is_refused() -> None:
    plan = plan_of_two()
    verify_plan(plan)
    with pytest.raises(IrcError, match="unfilled bucket"):
        verify_plan(bucketed(plan, lambda _: {"bucket": "b", "bucket_size": 3}))
    with pytest.raises(IrcError, match="not alike"):
        verify_plan(bucketed(plan, lambda n: {"bucket": "b", "bucket_size": 2 + n}))
