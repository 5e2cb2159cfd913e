"""Sizes are polynomials: arithmetic keeps a normal form, and binding is evaluation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irc.dialects.size import Dim, bind, divide, product, symbol

SYMBOLS = st.sampled_from(["B", "S", "T"])
SIZES = st.recursive(
    st.one_of(st.integers(0, 9), SYMBOLS.map(symbol)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
    ),
    max_leaves=6,
)
VALUES = st.fixed_dictionaries({name: st.integers(1, 7) for name in "BST"})


@given(SIZES, SIZES, VALUES)
def test_binding_is_a_homomorphism(a: Dim, b: Dim, values: dict[str, int]) -> None:
    assert bind(a + b, values) == bind(a, values) + bind(b, values)
    assert bind(a * b, values) == bind(a, values) * bind(b, values)
    assert bind(a - b, values) == bind(a, values) - bind(b, values)


@given(SIZES, SIZES)
def test_normal_form_makes_equal_sizes_equal(a: Dim, b: Dim) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert hash(a * (b + 1)) == hash(a * b + a)


@given(SIZES, st.one_of(st.integers(1, 9), SYMBOLS.map(symbol)))
def test_exact_division_undoes_multiplication(a: Dim, b: Dim) -> None:
    assert divide(a * b, b) == a


def test_division_that_leaves_a_rest_is_refused() -> None:
    assert divide(symbol("B") * 3 + 1, 3) is None
    assert divide(symbol("B"), symbol("S")) is None
    assert divide(6, 0) is None


def test_a_name_is_an_identifier() -> None:
    with pytest.raises(ValueError, match="identifier"):
        symbol("__import__('os')")


def test_printing_reads_as_people_write() -> None:
    batch, length = symbol("B"), symbol("S")
    assert str(batch * length + 1) == "B*S + 1"
    assert str(-1 * batch + 4) == "-B + 4"
    assert product([2, batch, 3]) == batch * 6
