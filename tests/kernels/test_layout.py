"""Layouts are the twins of mappings, and swizzles only permute."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects.mapping import Atom, TaskMapping
from irc.dialects.mapping_attr import parse_mapping
from irc.kernels.mapping.layout import Layout, is_injective, parse_layout, registers, row_major

ATOMS = st.builds(
    Atom,
    st.sampled_from(["spatial", "repeat", "replicate"]),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.sampled_from([(), (1, 0)]),
).map(lambda a: Atom(a.kind, a.extents) if a.kind == "replicate" else a)
MAPPINGS = st.lists(ATOMS, min_size=1, max_size=4).map(lambda atoms: TaskMapping(tuple(atoms)))


@settings(max_examples=50)
@given(MAPPINGS)
def test_the_twin_numbers_the_tasks_of_every_worker(mapping: TaskMapping) -> None:
    own = registers(mapping)
    assert own.size == len(mapping.tasks(0))
    for worker in range(mapping.num_workers):
        assert [own(task) for task in mapping.tasks(worker)] == list(range(own.size))


@pytest.mark.parametrize(
    "text",
    [
        "row_major(64, 8).swizzle(1, 0, 0) * row_major(1, 8)",
        "row_major(64, 64).xor(3, 3, 3)",
        "column_major(5, 3) * row_major(2, 2)",
        "row_major(2, 3, 4, ranks=[1, 0, 2])",
        "row_major(8, 4).swizzle(1, 0, 1)",
    ],
)
def test_layouts_number_their_elements_once(text: str) -> None:
    layout = parse_layout(text)
    assert str(layout) == text and parse_layout(str(layout)) == layout
    places = [layout(point) for point in product(*map(range, layout.shape))]
    assert sorted(places) == list(range(layout.size))
    assert is_injective(layout)


def test_composition_of_layouts_is_associative() -> None:
    a, b, c = (parse_layout(t) for t in ("local(2, 2)", "column_major(2, 3)", "row_major(3, 2)"))
    for point in product(range(12), range(12)):
        assert (
            ((a * b) * c)(point)
            == (a * (b * c))(point)
            == c((point[0] % 3, point[1] % 2)) + (6 * b((point[0] // 3 % 2, point[1] // 2 % 3)))
        )


def test_the_128_byte_swizzle_is_cutes() -> None:
    # Row r, chunk c of 16 bytes lies in chunk c ^ (r % 8): Swizzle<3, 4, 3> on bytes.
    halves = parse_layout("row_major(64, 64).xor(3, 3, 3)")
    for row, chunk in product(range(64), range(8)):
        assert halves((row, chunk * 8)) == row * 64 + (chunk ^ (row % 8)) * 8
    swizzled = parse_layout("row_major(64, 8).swizzle(1) * row_major(1, 8)")
    assert all(swizzled(p) == halves(p) for p in product(range(64), range(64)))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("row_major(4, 6).swizzle(1)", "no power of two"),
        ("row_major(4, 4).swizzle(2)", "names two of 2 dims"),
        ("row_major(4, 4).xor(2, 1, 1)", "reads bits that it writes"),
        ("row_major(3, 3).xor(1, 0, 1)", "no whole rows"),
        ("row_major(3, 3).xor(1)", "takes 3 numbers"),
        ("diagonal(3)", "column 1"),
        ("row_major(2, 2, ranks=[0, 2])", "permutation"),
    ],
)
def test_what_is_no_layout_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_layout(text)


def test_a_permutation_that_merges_two_elements_is_found() -> None:
    from irc.kernels.mapping.layout import Block, Swizzle

    broken = Layout((Block("row_major", (4, 3), (), (Swizzle(1, 0),)),))
    assert not is_injective(broken) and is_injective(row_major(4, 3))


def test_registers_of_a_fragment_are_indexed_by_coordinates_of_the_tile() -> None:
    tile = parse_mapping("spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)")
    assert registers(tile)((0, 0)) == registers(tile)((32, 64)) == 0
    assert registers(tile)((17, 33)) == 3 * 16 + 5
