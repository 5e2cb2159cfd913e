"""The graph of units stays acyclic and in order."""

import random
from itertools import pairwise

from irc.dialects.flow import YieldOp
from irc.kernels.fusion.units import Unit, in_order, link, makes_cycle, merge


def chain(count: int) -> list[Unit]:
    units = [Unit("rows", [YieldOp.make([], [])]) for _ in range(count)]
    for a, b in pairwise(units):
        link(b, [a])
    return units


def reaches(target: Unit, start: Unit) -> bool:
    return start is target or any(reaches(target, unit) for unit in start.reads)


def test_a_path_through_another_unit_is_a_cycle() -> None:
    a, b, c = chain(3)
    assert makes_cycle([a], [c])
    assert makes_cycle([a, c], [])
    assert not makes_cycle([a, b], []) and not makes_cycle([b], [a])


def test_merging_sees_what_it_makes_reachable() -> None:
    a, b = chain(2)
    c, d = chain(2)
    owner = {op: unit for unit in (a, b, c, d) for op in unit.ops}
    ac = merge([a, c], "rows", owner)
    bd = [b, d]
    # b and d both read ac; with b also reading d, joining b to ac would pass through d.
    link(b, [d])
    assert makes_cycle([ac, b], []) and not makes_cycle(bd, [])
    assert owner[c.ops[0]] is ac and b.level > d.level > ac.level


def test_random_merges_agree_with_a_search() -> None:
    for seed in range(40):
        draw = random.Random(seed)
        units: list[Unit] = []
        owner = {}
        for _ in range(18):
            unit = Unit("rows", [YieldOp.make([], [])])
            owner[unit.ops[0]] = unit
            link(unit, draw.sample(units, min(len(units), draw.randrange(3))))
            units.append(unit)
            a, b = draw.choice(units), draw.choice(units)
            if a is b:
                continue
            others = [u for u in {*a.reads, *b.reads} if u not in (a, b)]
            cyclic = any(reaches(m, u) for u in others for m in (a, b))
            assert makes_cycle([a, b], []) == cyclic
            if not cyclic:
                units = [u for u in units if u is not b]
                merge([a, b], "rows", owner)
        position = {op: i for i, op in enumerate(owner)}
        order = in_order(units, position)
        assert all(order.index(r) < order.index(u) for u in order for r in u.reads)
        assert all(r.level < u.level for u in order for r in u.reads)
