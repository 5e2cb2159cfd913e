"""What would hang is found in the text."""

import pytest

from irc.dialects.placement import Mesh
from irc.dialects.text import load
from irc.errors import IrcError
from irc.sharding.collectives import check_collectives, collective_order

MESH = Mesh.parse("a=3,b=2")
TEXT = """
func.func @forward(%x: !flow.tensor<[3, 8], f32>) -> !flow.tensor<[3, 16], f32> {
  %s = comm.all_reduce(%x) {axis = "a", fn = "sum", loc = "m.py:1", id = "n0.start"}
      : (!flow.tensor<[3, 8], f32>) -> !comm.pending<!flow.tensor<[3, 8], f32>>
  %r = comm.wait(%s) {loc = "m.py:1", id = "n0"}
      : (!comm.pending<!flow.tensor<[3, 8], f32>>) -> !flow.tensor<[3, 8], f32>
  %c = func.call @block(%r) {id = "n1"} : (!flow.tensor<[3, 8], f32>) -> !flow.tensor<[3, 16], f32>
  func.return %c : !flow.tensor<[3, 16], f32>
}
func.func @block(%x: !flow.tensor<[3, 8], f32>) -> !flow.tensor<[3, 16], f32> {
  %s = comm.all_gather(%x) {axis = "b", dim = 1, loc = "m.py:2", id = "b0.start"}
      : (!flow.tensor<[3, 8], f32>) -> !comm.pending<!flow.tensor<[3, 16], f32>>
  %r = comm.wait(%s) {loc = "m.py:2", id = "b0"}
      : (!comm.pending<!flow.tensor<[3, 16], f32>>) -> !flow.tensor<[3, 16], f32>
  func.return %r : !flow.tensor<[3, 16], f32>
}
"""


def test_the_order_goes_through_calls() -> None:
    module = load(TEXT)
    check_collectives(module, MESH)
    assert list(collective_order(module)) == [
        ("a", "comm.all_reduce", "n0.start"),
        ("b", "comm.all_gather", "n1/b0.start"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('axis = "b"', 'axis = "c"', "axis 'c', which mesh a=3,b=2 lacks"),
        ('axis = "b"', 'axis = "a"', "its type says"),
        ("dim = 1", "dim = 0", "its type says"),
        (
            'comm.all_gather(%x) {axis = "b", dim = 1,',
            'comm.reduce_scatter(%x) {axis = "a", dim = 1, fn = "sum",',
            "splits dim 1 of",
        ),
    ],
)
def test_what_does_not_fit_is_named(old: str, new: str, said: str) -> None:
    with pytest.raises(IrcError, match=said) as error:
        check_collectives(load(TEXT.replace(old, new)), MESH)
    assert error.value.code == "collective-invalid"
    assert error.value.where == "m.py:2"


def test_a_start_that_nobody_waits_for_is_named() -> None:
    module = load(TEXT)
    call = next(op for op in module.walk() if op.name == "func.call")
    wait = next(op for op in module.walk() if op.name == "comm.wait")
    start = wait.operands[0].owner
    call.operands[0] = start.operands[0]  # type: ignore[union-attr]
    wait.detach()
    wait.erase()
    with pytest.raises(IrcError, match="waited for 0 times"):
        check_collectives(module, MESH)
