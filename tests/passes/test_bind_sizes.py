"""Names become numbers everywhere, and what is missing is named."""

import pytest

from irc.dialects.text import context, dump, load
from irc.errors import IrcError
from irc.passes.bind_sizes import BindSizesPass, parse_sizes

PROGRAM = """
func.func @block(%x: !flow.tensor<[B, 4*S + 1], f32>) -> !flow.tensor<[B, 4*S + 1], f32> {
  func.return %x : !flow.tensor<[B, 4*S + 1], f32>
}
func.func @forward(%x: !flow.tensor<[B, 4*S + 1], f32>) -> !flow.tensor<[B], f32> {
  %0 = func.call @block(%x)
      : (!flow.tensor<[B, 4*S + 1], f32>) -> !flow.tensor<[B, 4*S + 1], f32>
  %1 = flow.reduce(%0) {fn = "sum", dims = array<i64: 1>, keep_dims = false}
      : (!flow.tensor<[B, 4*S + 1], f32>) -> !flow.tensor<[B], f32>
  func.return %1 : !flow.tensor<[B], f32>
}
"""


def test_all_types_are_bound() -> None:
    module = load(PROGRAM)
    BindSizesPass(sizes="B=3,S=2").apply(context(), module)
    module.verify()
    text = dump(module)
    assert "[3, 9]" in text and "B" not in text.replace("^bb", "")
    assert load(text).is_structurally_equivalent(module)


def test_a_missing_name_is_an_error() -> None:
    with pytest.raises(IrcError, match="no number for size 'S'") as caught:
        BindSizesPass(sizes="B=3").apply(context(), load(PROGRAM))
    assert caught.value.code == "size-unbound"


def test_a_name_that_the_program_lacks_is_an_error() -> None:
    with pytest.raises(IrcError, match="no size 'SS'") as caught:
        BindSizesPass(sizes="B=3,S=2,SS=4").apply(context(), load(PROGRAM))
    assert caught.value.help == "did you mean 'S'?"


@pytest.mark.parametrize("text", ["B", "B=", "B=x", "4=4", "B=-1", "B=3,B=4"])
def test_what_is_no_size_is_an_error(text: str) -> None:
    with pytest.raises(IrcError) as caught:
        parse_sizes(text)
    assert caught.value.code == "option-value"


def test_spaces_and_empty_lists_are_fine() -> None:
    assert parse_sizes(" B = 3 , S=2,") == {"B": 3, "S": 2}
    assert parse_sizes("") == {}
