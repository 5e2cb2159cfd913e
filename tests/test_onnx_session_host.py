"""Sessions of models whose values decide sizes, branches and trips: their regions are compiled."""

# pyright: basic
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import irc
import irc.onnx as ort
from irc.errors import IrcError
from irc.from_files import compile_file
from irc.runtime.host import HostExecutor
from tests.frontends.onnx.compare import model_of, reference
from tests.models.host_models import WEIGHTS, loop_model, normal, scan_model, stored

NONZERO = "p = Relu (x)\ni = NonZero (p)\nj = Transpose <perm = [1, 0]> (i)\ny = GatherND (x, j)"


def loop_feeds(batch: int, trips: int) -> dict[str, np.ndarray]:
    return {"x": normal(batch, 8, seed=batch), "n": np.array(trips)}


def scan_feeds(batch: int, length: int) -> dict[str, np.ndarray]:
    return {"x": normal(batch, 8), "xs": normal(length, batch, 8, seed=length)}


@pytest.mark.parametrize("kind", ["loop", "scan"])
def test_a_session_gives_the_bits_of_the_plan(kind: str, tmp_path: Path) -> None:
    model = {"loop": loop_model, "scan": scan_model}[kind]("B")
    feeds = {"loop": loop_feeds, "scan": scan_feeds}[kind]
    onnx.save(model, tmp_path / "model.onnx")
    compile_file(str(tmp_path / "model.onnx"), str(tmp_path / "plan"), native="none")
    plan = irc.load(tmp_path / "plan")
    assert isinstance(plan, HostExecutor)
    session = ort.InferenceSession(model)
    for sizes in ((3, 4), (2, 7), (1, 1), (3, 4)):
        inputs = feeds(*sizes)
        outputs = session.run(None, inputs)
        wanted = plan(*map(torch.from_numpy, map(np.asarray, inputs.values())))
        alone = not session.versions[-1].regions
        for a, b, c in zip(outputs, wanted, reference(model, inputs), strict=True):
            np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)
            if not alone:
                np.testing.assert_array_equal(a, b.numpy())
    assert len(session._hosts.programs) == 1  # nothing was imported again
    assert all(version.compiled for version in session.versions)
    # A scan of known length is unrolled for the first sizes.
    assert [v.regions == 0 for v in session.versions].count(True) == (kind == "scan")
    assert session.report().hosted == ()


def test_no_rows_and_no_trips() -> None:
    model = loop_model("B")
    session = ort.InferenceSession(model)
    for batch, trips in ((0, 2), (2, 0), (2, 3)):
        inputs = loop_feeds(batch, trips)
        for a, b in zip(session.run(None, inputs), reference(model, inputs), strict=True):
            # ONNX Runtime does not say how long the rows are that no trip collects.
            assert a.size == b.size
            if a.size:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_values_that_decide_a_size() -> None:
    model = model_of(NONZERO, "float[B,8] x", "float[k] y")
    session = ort.InferenceSession(model)
    for batch in (1, 5, 2):
        x = normal(batch, 8, seed=batch)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], x[x > 0])
    assert session.run(None, {"x": np.full((2, 8), -1, np.float32)})[0].shape == (0,)
    assert session.versions[-1].regions


def test_threads_share_regions_and_sizes() -> None:
    model = loop_model("B")
    session = ort.InferenceSession(model)
    wanted = {(b, t): reference(model, loop_feeds(b, t)) for b in (1, 2, 3) for t in (1, 4)}

    def call(number: int) -> bool:
        sizes = list(wanted)[number % len(wanted)]
        outputs = session.run(None, loop_feeds(*sizes))
        pairs = zip(outputs, wanted[sizes], strict=True)
        return all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(60)))


def test_an_output_is_no_view_of_an_input_or_a_weight() -> None:
    body = (
        "o = If (c) <then_branch = t () => (float[8,8] a) { a = Identity (x) }, "
        "else_branch = e () => (float[8,8] b) { b = Identity (W) }>\n"
        "s = SequenceConstruct (x, W)"
    )
    graph = stored(model_of(body, "float[8,8] x, bool c", "float[8,8] o", opset=18))
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    graph.graph.output.append(
        helper.make_value_info("s", helper.make_sequence_type_proto(kind)),
    )
    session, x = ort.InferenceSession(graph), normal(8, 8)
    kept = x.copy()
    # Both kinds of calls: that a flag decides is found out by the first one.
    for flag, wanted in ((True, kept), (False, WEIGHTS), (True, kept)):
        o, s = session.run(None, {"x": x, "c": np.array(flag)})
        np.testing.assert_array_equal(o, wanted)
        o[:] = s[0][:] = s[1][:] = 7
        np.testing.assert_array_equal(x, kept)


def test_what_does_not_fit_is_refused_as_before() -> None:
    session = ort.InferenceSession(scan_model("B"))
    with pytest.raises(IrcError) as caught:
        session.run(None, {"x": normal(2, 8), "xs": normal(4, 3, 8)})
    assert set(caught.value.codes) & {"input-mismatch", "onnx-invalid"}
    with pytest.raises(IrcError, match=r"of shape \[2, 7\]"):
        session.run(None, {"x": normal(2, 7), "xs": normal(4, 2, 8)})
    s, _ = session.run(None, scan_feeds(2, 4))
    assert s.shape == (2, 8)


def test_what_runs_op_by_op_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A region without a plan, as one that no backend compiles, is named with the reason."""
    from irc.onnx import host_file

    def refuse(*_: object) -> object:
        raise IrcError("op-unsupported", "no kernel for it")

    monkeypatch.setattr(host_file, "make_plan", refuse)
    monkeypatch.setattr(host_file, "export_open", refuse)
    model = loop_model("B")
    session = ort.InferenceSession(model)
    inputs = loop_feeds(2, 3)
    for a, b in zip(session.run(None, inputs), reference(model, inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not session.versions[-1].compiled
    assert any("region_0: no kernel for it" in line for line in session.report().hosted)
    assert "host program: op by op" in str(session.report())
