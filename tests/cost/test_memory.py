"""Bytes that a rank holds."""

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.placement import Mesh
from irc.dialects.text import load
from irc.search.graph import Wishes
from irc.search.on_mesh import budget_bytes, search
from irc.search.one_device import held_alone
from tests.cost.memory import memory_of

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


STATES = """
func.func @forward(%x: !flow.tensor<[6, 8], f32> {role = "input", name = "x"},
    %s: !flow.tensor<[8, 6], f32> {role = "state", name = "s"})
    -> (!flow.tensor<[], f32>, !flow.tensor<[8, 6], f32> {role = "state", name = "s"}) {
  %t = flow.transpose(%x) {perm = array<i64: 1, 0>, loc = "m.py:1", id = "n0"}
      : (!flow.tensor<[6, 8], f32>) -> !flow.tensor<[8, 6], f32>
  %n = flow.pointwise(%s, %t) {fn = "add", loc = "m.py:2", id = "n1"}
      : (!flow.tensor<[8, 6], f32>, !flow.tensor<[8, 6], f32>) -> !flow.tensor<[8, 6], f32>
  %l = flow.reduce(%x) {fn = "sum", dims = array<i64: 0, 1>, keep_dims = false, loc = "m.py:3",
      id = "n2"} : (!flow.tensor<[6, 8], f32>) -> !flow.tensor<[], f32>
  func.return %l, %n : !flow.tensor<[], f32>, !flow.tensor<[8, 6], f32>
}
"""


def test_views_and_states_that_are_updated_are_one_memory() -> None:
    """T-35: a transposed input is the input, and the new state takes the place of the old one."""
    held = held_alone(load(STATES))
    assert held.num_bytes == 2 * 6 * 8 * 4 + 4
    assert held.parts == {"inputs": 192, "optimizer state": 192, "outputs": 4}


def test_a_plan_leaves_a_margin() -> None:
    """T-30: an allocator reserves more than it gives out."""
    cost = ClusterCost(find_cluster("8xA100"), Mesh.parse("data=8"))
    assert budget_bytes(cost) <= cost.cluster.device.memory_bytes / 1.06


def test_memory_is_what_one_device_holds_not_the_sum() -> None:
    """T-31: split over two devices each holds its half, and the budget is of one of them."""
    module = load(PROGRAM)
    cost = ClusterCost(find_cluster("demo-gpus"), Mesh.parse("tensor=2"))
    whole = held_alone(module).num_bytes
    free = search(module, cost, Wishes("any"))
    tight = search(module, cost, Wishes("any", memory_bytes=free.solution.num_bytes))
    assert tight.solution.num_bytes <= free.solution.num_bytes <= whole
