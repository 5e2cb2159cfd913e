"""Host programs without torch: the bits of `irc.load`, from any thread, and what is refused."""

# pyright: basic
from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import irc
import irc.runtime
from irc.errors import IrcError
from irc.from_files import compile_file
from irc.native.host import reason_against_host
from irc.plan.host import HostRegion, load_host
from irc.plan.host_code import Library, Node
from irc.plan.native import NativeFile, NativeManifest, digests, native_text
from irc.runtime.__main__ import main
from irc.runtime.host import HostExecutor, host_module, load_host_weights
from irc.runtime.host_lower import host_code
from irc.runtime.native import processor
from irc.runtime.native.host import NativeHostProgram
from tests.frontends.onnx.compare import model_of
from tests.models.host_models import (
    GO,
    NESTED,
    branches,
    normal,
    repeated,
    repeated_while,
    scanned,
    stored,
)
from tests.native.test_clean import run_clean

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)
NONZERO = "p = Relu (x)\ni = NonZero (p)\nj = Transpose (i)\ng = GatherND (x, j)\ny = Exp (g)"
SEQUENCE = (
    "q = SplitToSequence <axis = 0> (x, parts)\nf = SequenceAt (q, n)\ng = MatMul (f, W)\n"
    "y = Tanh (g)"
)
MODELS: dict[str, tuple[str, str, str, str]] = {
    "if": (branches("B"), "float[B,8] x, bool c", "float[a,b] y", ""),
    "while": (
        repeated_while("B") + "\nz = Mul (h, eps)", "float[B,8] x", "float[B,8] y, float[t] z",
        f"{GO}, float eps = {{0.3}}",
    ),
    "loop": (
        repeated("B", outer="x"), "float[B,8] x, int64 n", "float[B,8] y, float[t,B,8] all", GO,
    ),
    "nested": (NESTED, "float[3,8] x, int64 n", "float[3,8] y", GO),
    "scan": (scanned("B"), "float[B,8] x, float[T,B,8] xs", "float[B,8] s, float[T,B,8] y", ""),
    "nonzero": (NONZERO, "float[B,8] x", "float[k] y", ""),
    "sequence": (SEQUENCE, "float[6,8] x, int64[2] parts, int64 n", "float[k,8] y", ""),
}  # fmt: skip


CALLS: dict[str, list[dict[str, np.ndarray]]] = {
    "if": [{"x": normal(n, 8), "c": np.array(c)} for n, c in ((3, True), (2, False), (5, True))],
    "while": [{"x": normal(n, 8)} for n in (3, 1)],
    "loop": [{"x": normal(n, 8), "n": np.array(t)} for n, t in ((3, 4), (2, 0), (5, 1))],
    "nested": [{"x": normal(3, 8), "n": np.array(t)} for t in (3, 0)],
    "scan": [{"x": normal(n, 8), "xs": normal(t, n, 8)} for n, t in ((3, 4), (2, 7), (1, 1))],
    "nonzero": [{"x": normal(n, 8, seed=n)} for n in (3, 1, 40)] + [{"x": -abs(normal(2, 8))}],
    "sequence": [
        {"x": normal(6, 8), "parts": np.array(p), "n": np.array(1)} for p in ([2, 4], [3, 3])
    ],
}


def compiled(kind: str, out: Path) -> tuple[Path, str]:
    body, inputs, outputs, more = MODELS[kind]
    model = stored(model_of(body, inputs, outputs, opset=18, stored=more))
    onnx.save(model, out / "model.onnx")
    said = compile_file(str(out / "model.onnx"), str(out / "plan"), native="x86-64-v3,x86-64-v4")
    return out / "plan", said


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan, said = compiled("loop", tmp_path_factory.mktemp("loop"))
    assert "numpy alone" in said
    return plan


def tensors(inputs: dict[str, np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(value)) for value in inputs.values()]


def same(plan: Path, kind: str) -> None:
    with_torch, without = irc.load(plan), irc.runtime.load(plan)
    assert isinstance(with_torch, HostExecutor) and isinstance(without, NativeHostProgram)
    for inputs in CALLS[kind]:
        for a, b in zip(with_torch(*tensors(inputs)), without.run(inputs), strict=True):
            np.testing.assert_array_equal(a.numpy(), b)
            assert a.numpy().dtype == b.dtype
    assert with_torch.stepped == {}


def test_a_loop_runs_where_torch_is_not(loop: Path) -> None:
    same(loop, "loop")
    inputs = CALLS["loop"][0]
    wanted = irc.runtime.load(loop).run(inputs)
    for a, b in zip(run_clean(loop, inputs), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "kind",
    ["sequence", *(pytest.param(kind, marks=pytest.mark.slow) for kind in MODELS
                   if kind not in ("loop", "sequence"))],
)  # fmt: skip
def test_values_decide_without_torch(kind: str, tmp_path: Path) -> None:
    plan, said = compiled(kind, tmp_path)
    assert "numpy alone" in said
    same(plan, kind)
    inputs = CALLS[kind][0]
    for a, b in zip(run_clean(plan, inputs), irc.runtime.load(plan).run(inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_threads_share_a_program(loop: Path) -> None:
    program = irc.runtime.load(loop)
    wanted = [program.run(inputs) for inputs in CALLS["loop"]]

    def call(number: int) -> bool:
        kind = number % len(wanted)
        outputs = program.run(CALLS["loop"][kind])
        return all(np.array_equal(a, b) for a, b in zip(outputs, wanted[kind], strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(80)))


def test_what_does_not_fit_is_refused(loop: Path) -> None:
    program = irc.runtime.load(loop)
    x, n = CALLS["loop"][0].values()
    for inputs, words in (
        ({"x": x}, "input 'n' is missing"),
        ([x], "takes 2 inputs, not 1"),
        ({"x": x.astype(np.float64), "n": n}, "input 'x' is .* float64"),
        ({"x": x[:, :7], "n": n}, r"input 'x' is \[3, 7\]"),
        ({"x": "abc", "n": n}, "input 'x' is of str"),
    ):
        with pytest.raises(IrcError, match=words) as caught:
            program.run(inputs)
        assert caught.value.codes == ("input-mismatch",)
    with pytest.raises(IrcError) as caught:
        program.run({"x": x[:0], "n": n})
    assert caught.value.codes == ("size-outside",)
    with pytest.raises(IrcError) as caught:
        irc.runtime.load(loop, hash="0" * 64)
    assert caught.value.codes == ("plan-hash-mismatch",)


def test_the_folder_alone_and_its_report(
    loop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(loop / "native", tmp_path / "alone")
    inputs = CALLS["loop"][0]
    outputs = irc.runtime.load(tmp_path / "alone", mapped=True, code="x86-64-v3").run(inputs)
    for a, b in zip(outputs, irc.runtime.load(loop, code="x86-64-v3").run(inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert main([str(tmp_path / "alone"), "--size", "B=5", "--repeat", "2"]) == 0
    assert "weights" in capsys.readouterr().out


def edited(plan: Path, out: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Write a folder whose host.json somebody changed, and its digest with it."""
    shutil.copytree(plan / "native", out)
    data = json.loads((out / "host.json").read_text())
    change(data)
    text = json.dumps(data).encode()
    (out / "host.json").write_bytes(text)
    weights = (out / "weights.bin").read_bytes()
    files = {
        name: NativeFile(len(content), digests(content))
        for name, content in (("host.json", text), ("weights.bin", weights))
    }
    (out / "manifest.json").write_text(native_text(NativeManifest(files)))
    return out


def entry(data: dict[str, Any]) -> dict[str, Any]:
    return data["code"]["functions"]["forward"]


def step(data: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(each for each in entry(data)["steps"] if each["kind"] == kind)


def swap(data: dict[str, Any], old: str, new: str) -> None:
    node = step(data, "node")
    assert old in node["arguments"]
    node["arguments"] = node["arguments"].replace(old, new)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: entry(d)["outputs"].__setitem__(0, 99), "gives a value"),
        (lambda d: step(d, "call")["inputs"].__setitem__(0, 7), "reads a value"),
        (lambda d: step(d, "call")["inputs"].__setitem__(0, -1), "reads a value"),
        (lambda d: step(d, "call")["outputs"].__setitem__(0, 0), "writes a value twice"),
        (lambda d: step(d, "call")["outputs"].__setitem__(0, 1 << 40), "writes a value twice"),
        (lambda d: step(d, "call").__setitem__("function", "region_77"), "which there is not"),
        (lambda d: entry(d).__setitem__("values", 1 << 40), "more values"),
        (lambda d: d["regions"].__setitem__("../region_0", "0" * 64), "not the name of a region"),
        (lambda d: d["regions"].__setitem__("region_0", ""), "named by no digest"),
        (lambda d: d["regions"].__setitem__("region_0", "0" * 64), "is not the program that"),
        (lambda d: d["regions"].pop("region_0"), "other regions"),
        (lambda d: d["code"]["symbols"][0].__setitem__("dim", 9), "a dim that there is not"),
        (lambda d: d["code"]["symbols"][0].__setitem__("input", 9), "a dim that there is not"),
        (lambda d: step(d, "node").__setitem__("target", "onnx::node::Nothing"), "no op"),
        (lambda d: step(d, "node").__setitem__("arguments", "[[{\"operand\": 9}], {}]"), "form"),
        (lambda d: swap(d, '"operand": 2', '"operand": 9'), "an operand that there is not"),
        (lambda d: swap(d, "loop_0", "loop_9"), "'loop_9', which there is not"),
        (lambda d: swap(d, '"captures": []', '"captures": [9]'), "another form"),
        (lambda d: swap(d, '"captures": [3]', '"captures": [9]'), "an operand that there is not"),
        (lambda d: step(d, "node").__setitem__("arguments", "[" * 100), "JSON|deep"),
        (lambda d: swap(d, "loop_0", "forward"), "calls itself"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_refused(
    loop: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    with pytest.raises(IrcError, match=words) as caught:
        irc.runtime.load(edited(loop, tmp_path / "edited", change), trust=True)
    assert caught.value.codes == ("plan-corrupt",)


def test_a_file_that_was_changed_is_refused(loop: Path, tmp_path: Path) -> None:
    plan = shutil.copytree(loop, tmp_path / "plan")
    for name in ("host.json", "weights.bin", "region_0/program.json", "region_0/manifest.json"):
        path = plan / "native" / name
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        with pytest.raises(IrcError) as caught:
            irc.runtime.load(plan)
        assert caught.value.codes == ("plan-corrupt",), name
        path.write_bytes(content)
    (plan / "host.json").write_text((plan / "host.json").read_text() + " ")
    with pytest.raises(IrcError, match="another plan") as caught:
        irc.runtime.load(plan)


def test_what_has_no_native_form_is_named(loop: Path) -> None:
    plan = load_host(loop)
    weights = load_host_weights(plan)
    code, _ = host_code(host_module(plan), plan.facts, weights)
    assert reason_against_host(plan, code) is None
    facts = replace(plan.facts, regions={"region_0": HostRegion(reason="no kernel for it")})
    said = reason_against_host(replace(plan, facts=facts), code)
    assert said == "region_0 has no plan, and torch runs its ops: no kernel for it"
    first = code.functions["forward"]
    for other, words in (
        (Node("node", "onnx::node::Erf", "", (), (), ()), "Erf between the regions is torch's"),
        (Library("library", "flow.iota", (), (), (), loc="m:1"), "flow.iota between .* [(]m:1"),
    ):
        changed = replace(first, steps=(*first.steps, other))
        said = reason_against_host(plan, replace(code, functions={"forward": changed}))
        assert said is not None and re.search(words, said)
