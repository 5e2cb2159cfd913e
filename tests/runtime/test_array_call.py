"""Plans on arrays: kernels get addresses also where results are views of what they write."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from irc import onnx as irc_onnx
from irc.runtime.executor import Executor
from tests.frontends.onnx.compare import model_of


def refuse(*_: object) -> None:
    raise AssertionError("the call went through tensors")


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("y = Transpose <perm = [1, 0]> (r)", "float[3,4] y"),
        ("y = Transpose <perm = [1, 0]> (r) z = Identity(r)", "float[3,4] y, float[4,3] z"),
        ("y = Slice(r, one, two)", "float[1,3] y"),
    ],
)
def test_results_that_are_views_go_the_short_way(
    body: str, outputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = "int64[1] one = {1}, int64[1] two = {2}"
    model = model_of(f"r = Relu(x) {body}", "float[4,3] x", outputs, stored=stored)
    session = irc_onnx.InferenceSession(model.SerializeToString())
    x = np.arange(-6, 6, dtype=np.float32).reshape(4, 3)
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    results = [session.run(None, {"x": x})]
    monkeypatch.setattr(Executor, "__call__", refuse)
    results.append(session.run(None, {"x": x}))
    for values in results:
        for mine, want in zip(values, wanted, strict=True):
            assert np.array_equal(mine, want)
