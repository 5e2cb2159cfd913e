"""Canonical form, equality and coverage of mappings, against enumeration."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import Block
from xdsl.utils.exceptions import VerifyException

from irc.dialects.mapping import (
    Atom,
    TaskMapping,
    auto_map,
    column_spatial,
    repeat,
    replicate,
    spatial,
)
from irc.dialects.mapping_attr import MappingAttr, parse_mapping, verify_coverage
from irc.dialects.mapping_modes import (
    Mode,
    Modes,
    modes_of,
    same_function,
    simplify,
    verify_modes,
)
from irc.dialects.task import KernelOp
from irc.dialects.text import dump, load
from irc.errors import IrcError

EXTENTS = st.tuples(st.integers(1, 4), st.integers(1, 3))
ATOMS = st.builds(
    Atom,
    st.sampled_from(["spatial", "repeat", "replicate"]),
    EXTENTS,
    st.sampled_from([(), (1, 0)]),
).map(lambda a: Atom(a.kind, a.extents) if a.kind == "replicate" else a)
MAPPINGS = st.lists(ATOMS, min_size=1, max_size=4).map(lambda atoms: TaskMapping(tuple(atoms)))


def table(mapping: TaskMapping) -> list[list[tuple[int, ...]]]:
    return [mapping.tasks(worker) for worker in range(mapping.num_workers)]


@settings(max_examples=50)
@given(MAPPINGS)
def test_modes_are_the_mapping(mapping: TaskMapping) -> None:
    modes, slots = modes_of(mapping), len(mapping.tasks(0))
    assert modes.shape == mapping.task_shape
    assert modes.replication == mapping.replication
    for worker, tasks in enumerate(table(mapping)):
        assert tasks == [modes.task(worker, slot) for slot in range(slots)]


@settings(max_examples=50)
@given(MAPPINGS)
def test_each_task_is_done_as_often_as_there_are_replicas(mapping: TaskMapping) -> None:
    counts = Counter(task for tasks in table(mapping) for task in tasks)
    assert set(counts) == set(product(*map(range, mapping.task_shape)))
    assert set(counts.values()) == {mapping.replication}
    verify_coverage(mapping)


@settings(max_examples=50)
@given(MAPPINGS)
def test_simplified_mappings_give_the_same_lists(mapping: TaskMapping) -> None:
    simplified = simplify(mapping)
    assert table(simplified) == table(mapping)
    assert simplify(simplified) == simplified
    assert len(simplified.atoms) <= 2 * len(mapping.atoms)


@settings(max_examples=50)
@given(MAPPINGS, MAPPINGS)
def test_two_mappings_are_one_function_exactly_where_their_modes_are(
    one: TaskMapping, other: TaskMapping
) -> None:
    equal = one.task_shape == other.task_shape and table(one) == table(other)
    assert same_function(one, other) == equal


@settings(max_examples=50)
@given(MAPPINGS, MAPPINGS, MAPPINGS)
def test_composition_is_associative(f: TaskMapping, g: TaskMapping, h: TaskMapping) -> None:
    assert (f * g) * h == f * (g * h)


@settings(max_examples=50)
@given(MAPPINGS)
def test_text_is_printed_back(mapping: TaskMapping) -> None:
    assert parse_mapping(str(mapping)) == mapping
    assert str(parse_mapping(str(mapping))) == str(mapping)


@pytest.mark.parametrize(
    "text",
    [
        "spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)",
        "spatial(4, 2).repeat(2, 2).spatial(4, 8).repeat(4, 4)",
        "column_spatial(16, 2)",
        "spatial(2, 3, 4, ranks=[1, 0, 2])",
        "auto_map(128, 8, workers=256)",
        "auto_map(128, 8, workers=256, ranks=[1, 0])",
        "spatial(4, 1) * replicate(1, 8)",
        "spatial(4, 8, ranks=[0, 1])",
        "spatial() * repeat()",
    ],
)
def test_a_mapping_prints_as_it_was_written_also_in_ir(text: str) -> None:
    assert str(parse_mapping(text)) == text
    attr = MappingAttr(parse_mapping(text))
    quoted = f'"{text}"' if "." in text else text
    module = f"builtin.module attributes {{m = #task.map<{quoted}>}} {{}}"
    again = load(module)
    assert again.attributes["m"] == attr
    assert f"#task.map<{quoted}>" in dump(again)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("spatial(2, 1) * spatial(3, 1)", "spatial(6, 1)"),
        ("repeat(2, 2) * repeat(2, 2)", "repeat(2, 2) * repeat(2, 2)"),
        ("repeat(2, 1) * repeat(1, 2)", "repeat(2, 2)"),
        ("spatial(1, 1) * repeat(1, 1)", "repeat(1, 1)"),
        ("spatial(2, 1) * repeat(1, 3) * spatial(2, 1)", "spatial(4, 1) * repeat(1, 3)"),
        ("replicate(2, 1) * replicate(1, 3)", "replicate(1, 6)"),
        ("column_spatial(4, 8)", "spatial(1, 8) * spatial(4, 1)"),
        ("repeat(1, 4) * spatial(4, 1)", "spatial(4, 1) * repeat(1, 4)"),
    ],
)
def test_canonical_forms(text: str, canonical: str) -> None:
    assert str(simplify(parse_mapping(text))) == canonical


def test_a_large_mapping_is_verified_without_enumeration() -> None:
    verify_coverage(spatial(1 << 40, 3) * repeat(1 << 40, 1 << 40))
    assert same_function(spatial(1 << 40) * spatial(7), spatial(7 << 40))


@pytest.mark.parametrize(
    ("workers", "slots", "says"),
    [
        ((Mode(4, 0, 2),), (), r"misses task \(1,\)"),
        ((Mode(4, 0, 1),), (Mode(2, 0, 2),), r"does task \(2,\) twice"),
        ((Mode(4, 0, 1),), (Mode(2, 0, 8),), r"misses task \(4,\)"),
        ((Mode(8, 0, 1),), (Mode(2, 0, 8),), r"outside \(8,\)"),
        ((Mode(8, 0, 1),), (Mode(2, -1, 0),), "lets one worker do a task again"),
        ((Mode(1 << 30, 0, 2),), (), "combinations of its digits"),
    ],
)
def test_modes_that_are_no_partition_are_named(
    workers: tuple[Mode, ...], slots: tuple[Mode, ...], says: str
) -> None:
    with pytest.raises(VerifyException, match=says):
        verify_modes(Modes(workers, slots, (8,)))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), max_size=3), st.integers(1, 24))
def test_coverage_by_strides_is_exact(digits: list[tuple[int, int]], size: int) -> None:
    modes = Modes((), tuple(Mode(e, 0, s) for e, s in digits), (size,))
    points = [
        sum(v * s for v, (_, s) in zip(p, digits, strict=True))
        for p in product(*(range(e) for e, _ in digits))
    ]
    if sorted(points) == list(range(size)):
        verify_modes(modes)
    else:
        with pytest.raises(VerifyException):
            verify_modes(modes)


def test_an_operand_view_replicates_workers_and_drops_loops() -> None:
    block = parse_mapping("spatial(4, 2) * repeat(2, 2) * column_spatial(4, 8) * repeat(4, 4)")
    rows = block.project(1)
    assert rows.replication == 16 and rows.task_shape == (128, 1)
    verify_coverage(rows)
    for worker in (0, 1, 33, 255):
        wanted = dict.fromkeys((i, 0) for i, _ in block.tasks(worker))
        assert rows.tasks(worker) == list(wanted)


def test_auto_map_spreads_neighbours_over_neighbours() -> None:
    mapping = auto_map(6, 8, workers=12)
    assert str(mapping) == "repeat(2, 2) * spatial(3, 4)"
    verify_coverage(mapping)
    with pytest.raises(ValueError, match="5 workers do not divide"):
        auto_map(6, 8, workers=5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spatial(4, 2) + repeat(2, 2)", "column 15"),
        ("parallel(4)", "column 1"),
        ("spatial(4, 2, ranks=[0, 0])", "each of 0 to 1 once"),
        ("spatial(4", "stops making sense"),
    ],
)
def test_text_that_is_no_mapping_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(IrcError, match=says) as caught:
        parse_mapping(text)
    assert caught.value.code == "mapping-syntax"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("spatial(4, 8) + repeat(2, 1)", "column 15"),
        ("spatial(32, 16).repeat(1, 1)", "stands in quotes"),
        ('"spatial(32, 16)) "', "column 16"),
        ("spatial(32, 16", "stops making sense"),
        ("spatial(32, 16, ranks=[0, 0])", "each of 0 to 1 once"),
        ("auto_map(32, 16, workers=5)", "5 workers do not divide"),
    ],
)
def test_a_mapping_in_a_text_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(IrcError, match=says) as caught:
        load(f'"builtin.module"() ({{}}) {{\n  a = #task.map<{text}>}} : () -> ()', "my.mlir")
    assert caught.value.code == "mapping-syntax"
    assert caught.value.where.startswith("my.mlir:2:")


def test_atoms_must_agree_and_ranks_be_a_permutation() -> None:
    with pytest.raises(VerifyException, match="ranks are each"):
        verify_coverage(TaskMapping((Atom("spatial", (2, 2), (1, 1)),)))
    with pytest.raises(VerifyException, match="dims"):
        verify_coverage(repeat(2, 2) * spatial(2))
    assert column_spatial(4, 2).tasks(1) == [(1, 0)]


def test_a_kernel_does_not_store_its_tasks_several_times() -> None:
    kernel = KernelOp.make(
        "k", Block(), template="rows", space=(4,), parallel=1, num_inputs=0,
        mapping=spatial(4) * replicate(2),
    )  # fmt: skip
    with pytest.raises(VerifyException, match="several times"):
        kernel.verify()


@pytest.mark.parametrize(
    ("mapping", "space", "says"),
    [
        ("spatial(4, 1) * repeat(2, 5)", (7, 5), ""),
        ("spatial(1, 1) * repeat(64, 16)", (7, 5), ""),
        ("spatial(1, 1)", (0, 1), ""),
        ("spatial(4, 1) * repeat(2, 5)", (6, 5), "the last has none in a space of 6"),
        ("spatial(1000000, 1) * repeat(1, 5)", (7, 5), "the last has none in a space of 7"),
        ("spatial(2, 1) * spatial(2, 1) * repeat(2, 5)", (6, 5), "of 4 workers along dim 0"),
        ("spatial(3, 1) * repeat(2, 5)", (7, 5), "mapping covers"),
    ],
)
def test_a_mapping_covers_the_space_and_no_worker_is_beyond_it(
    mapping: str, space: tuple[int, ...], says: str
) -> None:
    kernel = KernelOp.make(
        "k", Block(), template="rows", space=space, parallel=len(space), num_inputs=0,
        mapping=parse_mapping(mapping),
    )  # fmt: skip
    if not says:
        kernel.verify_()
        return
    with pytest.raises(VerifyException, match=says):
        kernel.verify_()
