"""Values of attributes come back as they went, whichever went before."""

from typing import Any

import pytest

from irc.dialects.attributes import to_attribute, to_python

VALUES: list[Any] = [
    1,
    True,
    0,
    False,
    -1,
    2**63 - 1,
    1.0,
    0.0,
    -0.0,
    "1",
    "",
    (),
    (1, 2),
    (1.0, -0.0),
]


@pytest.mark.parametrize("value", [*VALUES, *VALUES[::-1]])
def test_a_value_comes_back(value: Any) -> None:
    assert repr(to_python(to_attribute(value))) == repr(value)


def test_bools_in_a_list_are_integers() -> None:
    assert repr(to_python(to_attribute((True, 2)))) == "(1, 2)"


def test_what_no_integer_of_64_bits_holds_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(Exception, match="9223372036854775808"):
            to_attribute(2**64)
