"""The lowering of mappings: the same tasks as by enumeration, with few divisions."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from irc.dialects.mapping import Atom, TaskMapping
from irc.dialects.mapping_attr import parse_mapping
from irc.kernels.mapping.unfold import C, Numbers, digits, loops, starts

ATOMS = st.builds(
    Atom,
    st.sampled_from(["spatial", "repeat", "replicate"]),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
)
MAPPINGS = st.lists(ATOMS, min_size=1, max_size=4).map(lambda atoms: TaskMapping(tuple(atoms)))


def unfolded(mapping: TaskMapping, start: list[int]) -> list[tuple[int, ...]]:
    tasks: list[tuple[int, ...]] = []
    for counters in product(*(range(loop.extent) for loop in loops(mapping))):
        task = list(start)
        for loop, counter in zip(loops(mapping), counters, strict=True):
            task[loop.dim] += counter * loop.stride
        tasks.append(tuple(task))
    return tasks


@settings(max_examples=50)
@given(MAPPINGS)
def test_starts_and_loops_are_the_tasks(mapping: TaskMapping) -> None:
    for worker in range(mapping.num_workers):
        start = starts(mapping, worker, Numbers())
        assert unfolded(mapping, start) == mapping.tasks(worker)


@settings(max_examples=50)
@given(MAPPINGS)
def test_the_text_computes_the_starts(mapping: TaskMapping) -> None:
    for worker in range(mapping.num_workers):
        text = starts(mapping, "w", C())
        values = [eval(part.replace("/", "//"), {"w": worker}) for part in text]
        assert values == starts(mapping, worker, Numbers())


def test_a_worker_costs_one_division_per_digit_and_none_where_it_is_one_number() -> None:
    tile = parse_mapping("spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)")
    text = " ".join(starts(tile, "t", C()))
    assert text.count("/") == 3 and text.count("%") == 3 and len(digits(tile)) == 4
    assert starts(parse_mapping("spatial(2, 1) * spatial(64, 1)"), "t", C()) == ["t", "0"]


def test_no_tasks_are_listed() -> None:
    huge = parse_mapping("spatial(1000000, 1000000) * repeat(1000000, 1000000)")
    assert len(loops(huge)) == 2 and len(starts(huge, "w", C())) == 2
