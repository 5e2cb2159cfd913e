"""Inputs and weights of a run: drawn, read, sliced, refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from irc.dialects import flow, searches
from irc.dialects.placement import B, Placement, Split
from irc.dialects.text import load
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.plan.load import load_plan
from irc.plan.ranges import input_ranges
from irc.plan.save import make_plan, save_plan
from irc.plan.weights import Reference, write_safetensors
from irc.runtime.inputs import inputs_for
from irc.runtime.weights import load_weights, slice_weights
from tests.plan.programs import Task, build_plan, sharded

TAKES = """
func.func @block(%i: !flow.tensor<[3], i64>, %t: !flow.tensor<[5, 2], f32>)
    -> !flow.tensor<[3, 2], f32> {
  %0 = flow.take(%t, %i) {dim = 0 : i64} : (!flow.tensor<[5, 2], f32>, !flow.tensor<[3], i64>)
      -> !flow.tensor<[3, 2], f32>
  func.return %0 : !flow.tensor<[3, 2], f32>
}
func.func @forward(
    %i: !flow.tensor<[3, 1], i64> {role = "input", name = "ids"},
    %f: !flow.tensor<[3], i64> {role = "input", name = "flags"},
    %u: !flow.tensor<[9, 2], f32> {role = "parameter", name = "u"},
    %t: !flow.tensor<[5, 2], f32> {role = "parameter", name = "t"})
    -> (!flow.tensor<[3, 1, 2], f32>, !flow.tensor<[3, 2], f32>) {
  %0 = flow.take(%u, %i) {dim = 0 : i64} : (!flow.tensor<[9, 2], f32>, !flow.tensor<[3, 1], i64>)
      -> !flow.tensor<[3, 1, 2], f32>
  %1 = flow.reshape(%i) {} : (!flow.tensor<[3, 1], i64>) -> !flow.tensor<[3], i64>
  %2 = func.call @block(%1, %t) : (!flow.tensor<[3], i64>, !flow.tensor<[5, 2], f32>)
      -> !flow.tensor<[3, 2], f32>
  func.return %0, %2 : !flow.tensor<[3, 1, 2], f32>, !flow.tensor<[3, 2], f32>
}
"""


def test_an_index_stays_inside_the_smallest_table() -> None:
    assert input_ranges(load(TAKES)) == {"ids": (0, 4)}


def plan_of_two_inputs():
    t = Task()
    ids = t.argument("input", "ids", (50,), dtype="i64")
    x = t.argument("input", "x", (50,), dtype="bf16")
    (y,) = t.library(
        searches.SortOp,
        [ids],
        TensorType.of((50,), "i64"),
        TensorType.of((50,), "i64"),
        dim=0,
        descending=False,
    )[:1]
    (z,) = t.library(flow.PointwiseOp, [x], TensorType.of((50,), "bf16"), fn="neg")
    return make_plan(build_plan(t.finish(y, z), ranges={"ids": (3, 7)}))


def test_random_inputs_are_the_same_everywhere_and_in_range() -> None:
    plan = plan_of_two_inputs()
    ids, x = inputs_for(plan, None, 1)
    assert (int(ids.min()), int(ids.max())) == (3, 7)
    assert x.dtype == torch.bfloat16
    again = inputs_for(plan, None, 1)
    assert torch.equal(ids, again[0]) and torch.equal(x, again[1])
    assert not torch.equal(ids, inputs_for(plan, None, 2)[0])


def test_inputs_from_a_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(50, np.float32), ids=np.arange(50))
    ids, x = inputs_for(plan_of_two_inputs(), str(tmp_path / "a.npz"), 0)
    assert ids.tolist() == list(range(50))
    assert x.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "file-missing"),
        (b"", "not an .npz file"),
        (b"PK\x03\x04broken", "not an .npz file"),
        ({"x": np.ones(3), "idz": np.ones(3)}, "did you mean 'ids'"),
        ({"x": np.ones(3)}, "input 'ids' is missing"),
        ({"x": np.array([object()], dtype=object)}, "not an .npz file"),
    ],
)
def test_other_files_are_refused(content: object, expected: str, tmp_path: Path) -> None:
    """Also one with a pickled object, which is not loaded."""
    path = tmp_path / "a.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    with pytest.raises(IrcError, match=expected):
        inputs_for(plan_of_two_inputs(), str(path), 0)


# ------------------------------------------------------------------------------------- weights


def test_each_rank_reads_its_slices(tmp_path: Path) -> None:
    tensors = {"w1": torch.randn(6, 10), "w2": torch.randn(10, 6)}
    save_plan(tmp_path / "plan", make_plan(build_plan(sharded())), tensors=tensors)
    loaded = load_plan(tmp_path / "plan")
    for rank in range(4):
        own = load_weights(loaded, rank)
        place = rank % 2
        assert torch.equal(own["w1"], tensors["w1"][:, 5 * place : 5 * place + 5])
        assert torch.equal(own["w2"], tensors["w2"][5 * place : 5 * place + 5])
        in_memory = slice_weights(loaded.plan, tensors, rank)
        assert all(torch.equal(own[name], in_memory[name]) for name in own)
    assert torch.equal(load_weights(loaded, None)["w1"], tensors["w1"])


def test_one_dim_over_two_axes_in_order() -> None:
    for order, expected in (((0, 1), [0, 1, 2, 3]), ((1, 0), [0, 2, 1, 3])):
        t = Task("data=2,tensor=2")
        placed = Placement((("data", Split(0, order[0])), ("tensor", Split(0, order[1]))))
        w = t.argument("parameter", "w", (1,), placed)
        plan = build_plan(t.finish(t.pointwise("neg", w)))
        whole = {"w": torch.arange(4.0)}
        assert [int(slice_weights(plan, whole, rank)["w"]) for rank in range(4)] == expected


def weights_plan(tmp_path: Path, **options: object) -> Path:
    t = Task("data=2")
    a = t.argument("parameter", "a", (2, 3), Placement.of(data=Split(0)))
    b = t.argument("constant", "b", (2, 3), Placement.of(data=B))
    s = t.argument("parameter", "s", ())
    t.pointwise("neg", s)
    plan = make_plan(build_plan(t.finish(t.pointwise("add", a, b))))
    save_plan(tmp_path / "plan", plan, **options)
    return tmp_path / "plan"


def test_weights_may_stay_where_they_are(tmp_path: Path) -> None:
    a, b = torch.randn(4, 3), torch.randn(2, 3)
    save_file({"layers.0.a": a, "s": torch.tensor(2.0)}, tmp_path / "model.safetensors")
    (tmp_path / "model.bin").write_bytes(b"12345" + b.numpy().tobytes())
    folder = weights_plan(
        tmp_path,
        references={
            "a": Reference("../model.safetensors", "layers.0.a"),
            "b": Reference(str(tmp_path / "model.bin"), offset=5, dtype="f32", shape=(2, 3)),
            "s": Reference("../model.safetensors", "s"),
        },
    )
    own = load_weights(load_plan(folder), 1)
    assert torch.equal(own["a"], a[2:]) and torch.equal(own["b"], b) and own["s"] == 2.0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"a": torch.randn(5, 3)}, r"a rank's part of \[5, 3\]"),
        ({"a": torch.randn(4, 3, 1)}, "3 dims"),
        ({"a": torch.randn(4, 3, dtype=torch.float64)}, "float64"),
        ({"a": None}, "no value for 'a'"),
    ],
)
def test_other_weights_are_refused(
    change: dict[str, torch.Tensor | None], expected: str, tmp_path: Path
) -> None:
    right = {"a": torch.randn(4, 3), "b": torch.randn(2, 3), "s": torch.tensor(1.0)}
    tensors = {k: v for k, v in {**right, **change}.items() if v is not None}
    folder = weights_plan(tmp_path, tensors=tensors)
    with pytest.raises(IrcError, match=expected) as caught:
        load_weights(load_plan(folder), 0)
    assert caught.value.code == ("weights-missing" if change["a"] is None else "plan-corrupt")


def test_raw_bytes_must_lie_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\0" * 24)
    right = {"a": torch.randn(4, 3), "s": torch.tensor(1.0)}
    for offset, dtype in ((1, "f32"), (-1, "f32"), (0, "f99"), (1 << 60, "f32")):
        reference = Reference("../model.bin", offset=offset, dtype=dtype, shape=(2, 3))
        place = tmp_path / f"{offset}{dtype}"
        place.mkdir()
        folder = weights_plan(place, tensors=right, references={"b": reference})
        with pytest.raises(IrcError, match="weight 'b' cannot be read"):
            load_weights(load_plan(folder), 0)


def test_the_file_is_one_that_the_library_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = {
        "half": torch.randn(3).half(), "bf": torch.randn(2, 2).bfloat16(), "i": torch.arange(5),
        "flag": torch.tensor([True]), "empty": torch.empty(0, 4), "scalar": torch.tensor(1.5),
        "view": torch.randn(4, 6).T, "complex": torch.randn(2, dtype=torch.complex64),
        'odd "name"\n\u00e9': torch.ones(1, dtype=torch.int8),
    }  # fmt: skip
    write_safetensors(tmp_path / "w.safetensors", tensors)
    loaded = load_file(tmp_path / "w.safetensors")
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
