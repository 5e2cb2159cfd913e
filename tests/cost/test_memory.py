"""Bytes that a rank holds."""

from irc.cost.memory import memory_of
from irc.dialects.text import load

PROGRAM = """
func.func @forward(%x: !flow.tensor<[5, 3], f32> {role = "input", name = "x"},
    %w: !flow.tensor<[3, 7], f32> {role = "parameter", name = "w"}) -> !flow.tensor<[5, 7], f32> {
  %h = flow.contract(%x, %w) {spec = "bk,kn->bn", loc = "m.py:1", id = "n0"}
      : (!flow.tensor<[5, 3], f32>, !flow.tensor<[3, 7], f32>) -> !flow.tensor<[5, 7], f32>
  %a = func.call @block(%h) : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  %b = func.call @block(%a) : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  func.return %b : !flow.tensor<[5, 7], f32>
}
func.func @block(%h: !flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32> {
  %a = flow.pointwise(%h) {fn = "exp", loc = "m.py:2", id = "b0"}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  %b = flow.pointwise(%a) {fn = "exp", loc = "m.py:2", id = "b1"}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  %c = flow.pointwise(%a, %b) {fn = "add", loc = "m.py:2", id = "b2"}
      : (!flow.tensor<[5, 7], f32>, !flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  func.return %c : !flow.tensor<[5, 7], f32>
}
"""


def test_the_peak_is_inside_the_block() -> None:
    memory = memory_of(load(PROGRAM))
    activation = 5 * 7 * 4
    assert memory.loaded_bytes == 3 * 7 * 4
    # At b2: its two operands, its result, and the block's argument, alive outside until the call
    # ends.
    assert memory.live_bytes == 4 * activation
    assert memory.total_bytes == memory.loaded_bytes + memory.live_bytes
