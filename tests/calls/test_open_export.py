"""Plan folders whose sizes are open: saved, read back, run at sizes that nobody compiled for."""

# pyright: basic
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.from_files import compile_file
from irc.plan.load import load_plan
from irc.plan.sizes import SIZES
from irc.report.sizes import explain_sizes
from irc.runtime.launch import run_plan
from irc.runtime.open_executor import OpenExecutor
from tests.frontends.onnx.compare import model_of, reference

RNG = np.random.default_rng(0)
WEIGHT = ",".join(f"{x:.3f}" for x in RNG.standard_normal(24 * 24))
MODEL = model_of(
    """q = MatMul (x, w)
    k = Transpose <perm = [0, 2, 1]> (x)
    s = MatMul (q, k)
    p = Softmax <axis = -1> (s)
    v = MatMul (p, x)
    y = Add (v, x)""",
    "float[batch,sequence,24] x",
    "float[batch,sequence,24] y",
    stored=f"float[24,24] w = {{{WEIGHT}}}",
)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("open")
    onnx.save(MODEL, str(folder / "model.onnx"))
    said = compile_file(str(folder / "model.onnx"), str(folder / "plan"))
    assert "open sizes  batch 1.." in said
    return folder / "plan"


@pytest.mark.parametrize("batch", [1, 2, 3, 17])
@pytest.mark.parametrize("sequence", [1, 2, 17, 127])
def test_a_saved_plan_runs_at_any_sizes(plan: Path, batch: int, sequence: int) -> None:
    loaded = _loaded(plan)
    x = RNG.standard_normal((batch, sequence, 24)).astype(np.float32)
    (output,) = loaded(torch.from_numpy(x))
    np.testing.assert_allclose(output.numpy(), reference(MODEL, {"x": x})[0], rtol=1e-4, atol=1e-5)


_LOADED: dict[Path, OpenExecutor] = {}


def _loaded(plan: Path) -> OpenExecutor:
    if plan not in _LOADED:
        executor = irc.load(plan)
        assert isinstance(executor, OpenExecutor)
        _LOADED[plan] = executor
    return _LOADED[plan]


def test_sizes_that_it_was_not_checked_for_are_refused_by_name(plan: Path) -> None:
    loaded = _loaded(plan)
    most = next(each.high for each in loaded.sizes.symbols if each.name == "sequence")
    with pytest.raises(IrcError, match=rf"'sequence' .dim 1 of 'x'. is {most + 1}") as caught:
        loaded(torch.zeros(2, most + 1, 24))
    assert caught.value.code == "size-outside"
    with pytest.raises(IrcError, match="dim 2 of 'x' is 25, the plan takes 24") as caught:
        loaded(torch.zeros(2, 3, 25))
    assert caught.value.code == "input-mismatch"


def test_irc_run_takes_sizes(plan: Path) -> None:
    for sizes in ({}, {"batch": 3, "sequence": 17}, {"batch": 1}):
        report = run_plan(plan, sizes=sizes)
        assert report.exit_code == 0 and report.comparison is not None
    with pytest.raises(IrcError, match="no open size named 'bach'") as caught:
        run_plan(plan, sizes={"bach": 3})
    assert caught.value.code == "size-unknown"


def test_a_number_fixes_a_size(plan: Path, tmp_path: Path) -> None:
    source = str(plan.parent / "model.onnx")
    compile_file(source, str(tmp_path / "p"), sizes={"batch": 5})
    loaded = irc.load(tmp_path / "p")
    assert isinstance(loaded, OpenExecutor)
    assert [each.name for each in loaded.sizes.symbols] == ["sequence"]
    assert loaded(torch.zeros(5, 7, 24))[0].shape == (5, 7, 24)
    with pytest.raises(IrcError, match="dim 0 of 'x' is 4, the plan takes 5"):
        loaded(torch.zeros(4, 7, 24))
    compile_file(source, str(tmp_path / "q"), sizes={"batch": 5, "sequence": 7})
    assert load_plan(tmp_path / "q").sized is None
    assert explain_sizes(tmp_path / "q") == "all sizes of the plan are fixed"


def test_explain_says_what_is_open(plan: Path) -> None:
    text = explain_sizes(plan)
    assert "batch" in text and "dim 1 of x" in text and "compiled once for all sizes" in text
    facts = json.loads(explain_sizes(plan, as_json=True))
    assert [each["name"] for each in facts["open"]] == ["batch", "sequence"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["symbols"][0].update(dim=7), "stands in no input"),
        (lambda d: d["symbols"][0].update(example=3), "another plan"),
        (lambda d: d["numbers"][0].update(value=[[1, ["nobody"]]]), "no size is called 'nobody'"),
        (lambda d: d["order"].pop(), "places other buffers"),
        (lambda d: d.update(format=9), "format 9"),
        (lambda d: d.update(more=1), "unknown key"),
    ],
)
def test_a_file_of_sizes_that_does_not_fit_is_refused(plan: Path, change, words: str) -> None:  # pyright: ignore
    from irc.plan.sizes import SizedPlan, sizes_from_json

    loaded = load_plan(plan)
    data = json.loads(loaded.texts[SIZES])
    change(data)
    with pytest.raises(IrcError, match=words) as caught:
        SizedPlan(loaded.plan, sizes_from_json(json.dumps(data)))
    assert caught.value.code in ("plan-corrupt", "plan-version")


def test_a_number_that_is_left_out_shows_at_other_sizes(plan: Path) -> None:
    from irc.plan.sizes import SizedPlan, sizes_from_json

    loaded = load_plan(plan)
    data = json.loads(loaded.texts[SIZES])
    kept = [n for n in data["numbers"] if not n["path"].startswith("kernels.0.")]
    sized = SizedPlan(loaded.plan, sizes_from_json(json.dumps({**data, "numbers": kept})))
    with pytest.raises(IrcError) as caught:
        sized.at({**sized.sizes.example, "sequence": 5})
    assert caught.value.code == "plan-corrupt"


class Net(nn.Module):
    """A softmax of an even part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.inner(x[:, : x.shape[1] // 2 * 2]), -1)


def test_a_module_with_open_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(4, 10, 12)
    said = irc.export_plan(net, (x,), out=tmp_path / "p", dynamic={"x": {0: "b", 1: "s"}})
    assert "open sizes" in said
    loaded = irc.load(tmp_path / "p")
    for shape in ((4, 10), (3, 18), (2, 32)):
        batch = torch.randn(*shape, 12)
        with torch.no_grad():
            torch.testing.assert_close(loaded(batch)[0], net(batch), rtol=1e-5, atol=1e-6)
    with pytest.raises(IrcError, match=r"size 'b' .dim 0 of 'x'. is 1") as caught:
        loaded(torch.randn(1, 10, 12))
    assert caught.value.code == "size-outside"
    with pytest.raises(IrcError, match="fixed sizes"):
        irc.export_plan(net, (x,), out=tmp_path / "q", dynamic=True, optimizer="adamw")


def test_a_function_with_open_sizes(tmp_path: Path) -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, -1)

    sizes = {"x": {0: "b"}, "y": {1: "c"}}
    example = torch.randn(6, 4), torch.randn(4, 7)
    said = irc.export_plan(scaled, example, out=tmp_path / "p", dynamic=sizes)
    assert "open sizes  b 2.." in said
    x, y = torch.randn(11, 4), torch.randn(4, 3)
    (output,) = irc.load(tmp_path / "p")(x, y)
    torch.testing.assert_close(output, scaled(x, y))


def test_a_table_that_is_shorter_than_the_first_example(tmp_path: Path) -> None:
    # Positions are looked up in a table of 20: shapes do not say that lengths end there.
    table = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    model = model_of(
        """s = Shape <start = 1, end = 2> (x)
        n = Squeeze (s)
        r = Range (zero, n, one)
        p = Gather (table, r)
        y = Add (x, p)""",
        "float[batch,tokens,4] x", "float[batch,tokens,4] y",
        stored="int64 zero = {0}, int64 one = {1}",
    )  # fmt: skip
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    onnx.save(model, str(tmp_path / "m.onnx"))
    compile_file(str(tmp_path / "m.onnx"), str(tmp_path / "plan"), native="none")
    x = RNG.standard_normal((3, 7, 4)).astype(np.float32)
    (output,) = irc.load(tmp_path / "plan")(torch.from_numpy(x))
    np.testing.assert_allclose(output.numpy(), x + table[:7], rtol=1e-6)


def test_a_file_for_one_size_alone_says_how_to_give_it(tmp_path: Path) -> None:
    model = model_of(
        "y = Add (x, row)", "float[batch,tokens] x", "float[batch,tokens] y",
        stored=f"float[7] row = {{{','.join('1' * 7)}}}",
    )  # fmt: skip
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(IrcError, match="--size batch=N --size tokens=N") as caught:
        compile_file(str(tmp_path / "m.onnx"), str(tmp_path / "plan"), native="none")
    assert "Size(" not in str(caught.value)
    sizes = {"tokens": 7}
    compile_file(str(tmp_path / "m.onnx"), str(tmp_path / "plan"), sizes=sizes, native="none")
