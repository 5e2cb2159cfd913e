"""The task interpreter against torch, and against kernels with a planted fault."""

import pytest
import torch
from xdsl.dialects.builtin import IntegerAttr, i64

from irc.dialects.attributes import to_attribute
from irc.dialects.launches import LaunchOp, ViewOp
from irc.dialects.mapping import TaskMapping
from irc.dialects.mapping_attr import MappingAttr, parse_mapping
from irc.dialects.placement import Mesh
from irc.dialects.task import KernelOp, StoreOp
from irc.dialects.text import load
from irc.errors import InternalError
from irc.interpret.spmd import run_spmd
from irc.interpret.task import result_key, run_kernel, run_launch, run_view, task_table

SOFTMAX = """
task.kernel @softmax {template = "rows", space = array<i64: 5, 7>, parallel = 1, num_inputs = 1,
    mapping = #task.map<spatial(3) * repeat(2)>, tile = {}} : {
^bb0(%x: !task.buffer<35, f32>, %y: !task.buffer<35, f32>):
  %v = task.load(%x) {offset = 0, strides = array<i64: 7, 1>}
      : (!task.buffer<35, f32>) -> !task.value<f32, full>
  %m = task.reduce(%v) {fn = "max"} : (!task.value<f32, full>) -> !task.value<f32, row>
  %d = task.pointwise(%v, %m) {fn = "sub"}
      : (!task.value<f32, full>, !task.value<f32, row>) -> !task.value<f32, full>
  %e = task.pointwise(%d) {fn = "exp"} : (!task.value<f32, full>) -> !task.value<f32, full>
  %s = task.reduce(%e) {fn = "sum"} : (!task.value<f32, full>) -> !task.value<f32, row>
  %q = task.pointwise(%e, %s) {fn = "div"}
      : (!task.value<f32, full>, !task.value<f32, row>) -> !task.value<f32, full>
  task.store(%q, %y) {offset = 0, strides = array<i64: 7, 1>}
      : (!task.value<f32, full>, !task.buffer<35, f32>) -> ()
}
func.func @forward(%x: !flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32> {
  %0 = task.launch(%x) {kernel = @softmax, id = "n3", results = ["n2"]}
      : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[5, 7], f32>
  func.return %0 : !flow.tensor<[5, 7], f32>
}
"""
MATMUL = """
task.kernel @matmul_relu {template = "matmul", space = array<i64: 5, 3, 7>, parallel = 2,
    num_inputs = 2, mapping = #task.map<spatial(2, 2) * repeat(3, 2)>,
    tile = {block_m = 3, block_n = 2, block_k = 4}} : {
^bb0(%a: !task.buffer<35, f32>, %b: !task.buffer<21, f32>, %y: !task.buffer<15, f32>):
  %0 = task.load(%a) {offset = 0, strides = array<i64: 7, 0, 1>}
      : (!task.buffer<35, f32>) -> !task.value<f32, full>
  %1 = task.load(%b) {offset = 0, strides = array<i64: 0, 1, 3>}
      : (!task.buffer<21, f32>) -> !task.value<f32, full>
  BODY
  task.store(%r, %y) {offset = 0, strides = array<i64: 3, 1, 0>}
      : (!task.value<f32, row>, !task.buffer<15, f32>) -> ()
}
"""
EPILOGUE = """
  %c = task.contract(%0, %1)
      : (!task.value<f32, full>, !task.value<f32, full>) -> !task.value<f32, row>
  %r = task.pointwise(%c) {fn = "relu"} : (!task.value<f32, row>) -> !task.value<f32, row>
"""
EARLY = """
  %p = task.pointwise(%0) {fn = "relu"} : (!task.value<f32, full>) -> !task.value<f32, full>
  %r = task.contract(%p, %1)
      : (!task.value<f32, full>, !task.value<f32, full>) -> !task.value<f32, row>
"""


def kernel(text: str) -> KernelOp:
    return next(op for op in load(text).walk() if isinstance(op, KernelOp))


def run(
    op: KernelOp, *inputs: torch.Tensor, size: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    out = torch.full((size,), torch.nan, dtype=dtype)
    run_kernel(op, [x.reshape(-1) for x in inputs], [out])
    return out


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "text",
    [
        "spatial(3) * repeat(2)",
        "repeat(2, 2) * spatial(2, 3) * repeat(1, 2)",
        "spatial(2, 1) * repeat(1, 3) * spatial(1, 2)",
        "repeat(2) * repeat(3)",
    ],
)
def test_task_table_is_the_mapping(text: str) -> None:
    mapping = parse_mapping(text)
    table = task_table(mapping)
    assert [[tuple(task) for task in worker] for worker in table.tolist()] == [
        mapping.tasks(worker) for worker in range(mapping.num_workers)
    ]


def test_softmax_follows_its_mapping() -> None:
    x = draw(5, 7)
    output = run(kernel(SOFTMAX), x, size=35)
    torch.testing.assert_close(output.reshape(5, 7), x.softmax(1))


def test_one_device_runs_as_a_mesh_of_one_and_widens() -> None:
    x, seen = draw(5, 7), []
    module = load(SOFTMAX)
    (output,) = run_spmd(
        module,
        [x],
        Mesh(()),
        dtype=torch.float64,
        trace=lambda _name, index, _parts, op, _placed: seen.append(result_key(op, index)),
    )
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, x.double().softmax(1))
    assert seen == [("n2", 0)]


def test_run_launch_needs_no_more_than_the_module() -> None:
    module = load(SOFTMAX)
    launch = next(op for op in module.walk() if isinstance(op, LaunchOp))
    x = draw(5, 7)
    torch.testing.assert_close(run_launch(launch, module, [x])[0], x.softmax(1))


def test_epilogue_after_the_reduction() -> None:
    a, b = draw(5, 7), draw(7, 3)
    output = run(kernel(MATMUL.replace("BODY", EPILOGUE)), a, b, size=15)
    torch.testing.assert_close(output.reshape(5, 3), (a @ b).relu())


def test_epilogue_before_the_reduction_gives_other_numbers() -> None:
    a, b = draw(5, 7), draw(7, 3)
    output = run(kernel(MATMUL.replace("BODY", EARLY)), a, b, size=15)
    assert not torch.allclose(output.reshape(5, 3), (a @ b).relu())


def test_a_wrong_stride_gives_other_numbers() -> None:
    op = kernel(SOFTMAX)
    op.body.block.first_op.properties["strides"] = to_attribute((6, 1))
    x = draw(5, 7)
    assert not torch.allclose(run(op, x, size=35).reshape(5, 7), x.softmax(1))


def test_a_mapping_that_misses_tasks_is_caught() -> None:
    op = kernel(SOFTMAX)
    op.properties["mapping"] = MappingAttr(parse_mapping("spatial(2) * repeat(2)"))
    with pytest.raises(InternalError, match="stores element 28 of output 0 0 times"):
        run(op, draw(5, 7), size=35)


def test_a_mapping_that_repeats_tasks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(mapping: TaskMapping) -> torch.Tensor:
        return torch.cat([task_table(mapping)] * 2, dim=1)

    monkeypatch.setattr("irc.interpret.task.task_table", twice)
    # The name in this module is the genuine one.
    with pytest.raises(InternalError, match="stores element 0 of output 0 2 times"):
        run(kernel(SOFTMAX), draw(5, 7), size=35)


def test_stores_that_overlap_are_caught() -> None:
    op = kernel(SOFTMAX)
    store = next(o for o in op.body.block.ops if isinstance(o, StoreOp))
    store.properties["strides"] = to_attribute((6, 1))
    with pytest.raises(InternalError, match="2 times"):
        run(op, draw(5, 7), size=35)


def test_a_load_outside_its_buffer_is_caught() -> None:
    op = kernel(SOFTMAX)
    op.body.block.first_op.properties["offset"] = IntegerAttr(3, i64)
    with pytest.raises(InternalError, match=r"reads elements 3\.\.37 of a buffer of 35"):
        run(op, draw(5, 7), size=35)


def test_half_types_compute_in_float32_and_round_where_stored() -> None:
    op = kernel(SOFTMAX.replace("f32", "bf16"))
    x = draw(5, 7).bfloat16()
    output = run(op, x, size=35, dtype=torch.bfloat16)
    torch.testing.assert_close(
        output.reshape(5, 7), x.float().softmax(1).bfloat16(), rtol=0, atol=0
    )


def test_a_view_starts_at_its_offset() -> None:
    text = """
    func.func @forward(%x: !flow.tensor<[5, 7], f32>) -> () {
      %0 = task.view(%x) {offset = 8, strides = array<i64: 2, 7>}
          : (!flow.tensor<[5, 7], f32>) -> !flow.tensor<[3, 2], f32>
      func.return
    }"""
    view = next(op for op in load(text).walk() if isinstance(op, ViewOp))
    x = draw(5, 7)
    assert torch.equal(run_view(view, x), x[1:3, 1:6:2].T)
