"""Task mappings cover every task exactly once, and the verifier would notice if they did not."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdsl.utils.exceptions import VerifyException

from irc.dialects.mapping import Atom, Task, TaskMapping, compose, repeat, spatial
from irc.dialects.mapping_attr import parse_mapping, verify_coverage

ATOMS = st.tuples(
    st.sampled_from(["spatial", "repeat"]), st.tuples(st.integers(1, 4), st.integers(1, 3))
).map(lambda a: Atom("spatial" if a[0] == "spatial" else "repeat", a[1]))
MAPPINGS = st.lists(ATOMS, min_size=1, max_size=4).map(lambda atoms: TaskMapping(tuple(atoms)))


def by_definition(mapping: TaskMapping, worker: int) -> list[Task]:
    """phi(w) of a composition, folded from the left as the paper writes it."""
    if len(mapping.atoms) == 1:
        return mapping.atoms[0].tasks(worker)
    outer, inner = TaskMapping(mapping.atoms[:-1]), TaskMapping(mapping.atoms[-1:])
    n2, d2 = inner.num_workers, inner.task_shape
    return [
        tuple(a * d + b for a, d, b in zip(t1, d2, t2, strict=True))
        for t1 in by_definition(outer, worker // n2)
        for t2 in by_definition(inner, worker % n2)
    ]


@given(MAPPINGS)
def test_every_composition_is_a_partition(mapping: TaskMapping) -> None:
    tasks = [task for w in range(mapping.num_workers) for task in mapping.tasks(w)]
    assert sorted(tasks) == sorted(product(*map(range, mapping.task_shape)))
    verify_coverage(mapping)


@given(MAPPINGS)
def test_composition_is_associative_and_follows_the_paper(mapping: TaskMapping) -> None:
    for worker in range(mapping.num_workers):
        assert mapping.tasks(worker) == by_definition(mapping, worker)


@given(MAPPINGS)
def test_text_reads_back(mapping: TaskMapping) -> None:
    assert parse_mapping(str(mapping)) == mapping


def test_order_of_composition_matters() -> None:
    rows = [t[0] for t in (repeat(4, 1).atoms and compose(repeat(4, 1), spatial(16, 8))).tasks(0)]
    assert rows == [0, 16, 32, 48]
    assert [t[0] for t in compose(spatial(16, 8), repeat(4, 1)).tasks(0)] == [0, 1, 2, 3]


class Skips(TaskMapping):
    """A planted bug: worker 0 forgets its last task."""

    def tasks(self, worker: int) -> list[Task]:
        done = super().tasks(worker)
        return done[:-1] if worker == 0 else done


class Repeats(TaskMapping):
    """A planted bug: worker 1 does the task of worker 0."""

    def tasks(self, worker: int) -> list[Task]:
        return super().tasks(0 if worker == 1 else worker)


@pytest.mark.parametrize(("planted", "says"), [(Skips, "misses task"), (Repeats, "twice")])
def test_the_verifier_catches_a_planted_bug(planted: type[TaskMapping], says: str) -> None:
    with pytest.raises(VerifyException, match=says):
        verify_coverage(planted(parse_mapping("spatial(2, 2) * repeat(2, 1)").atoms))


@pytest.mark.parametrize(
    "text", ["spatial(2) * repeat(2, 2)", "spatial(0, 1)", "repeat()*spatial(2)"]
)
def test_malformed_mappings_are_refused(text: str) -> None:
    with pytest.raises(VerifyException):
        verify_coverage(parse_mapping(text))
