"""The kernels of `irc.runtime.onnx_ops` on their own: every node of the suite runs as it is.

Converters and folding are off, so each op goes to the library, which otherwise sees only what has
no flow form: here the kernels are held to the same expected outputs as the compiled code.
"""

from __future__ import annotations

import random

import onnx
import pytest
import torch

from irc.frontends.onnx import importer, prepare
from irc.frontends.onnx.node import Node, Unsupported
from irc.onnx import host_model
from irc.runtime.onnx_ops.run import kernels
from tests.conformance.expected import MISSES
from tests.conformance.suite import Case, cases, outcome

CONVERTED = ("test_gradient_of_add_cpu", "test_gradient_of_add_and_mul_cpu")
"""Derivatives are made by the importer: no kernel can know what it is to be derived from."""


@pytest.fixture(autouse=True)
def _as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(node: Node, table: object) -> None:
        raise Unsupported("every node runs as it is")

    expand = prepare.needs_body

    def needs_body(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
        return node.op_type not in kernels() and expand(node, model)

    monkeypatch.setattr(importer, "_converter", none)
    monkeypatch.setattr(importer, "fold", lambda node: None)
    monkeypatch.setattr(prepare, "needs_body", needs_body)
    # Nor are there regions: those of nodes that run as they are would have sizes from values.
    monkeypatch.setattr(host_model, "host_file", lambda *_: None)
    torch.set_num_threads(1)


def failures(chosen: list[Case]) -> list[str]:
    outcomes = [outcome(case) for case in chosen if case.name not in (*MISSES, *CONVERTED)]
    return [f"{o.name}: {o.reason}" for o in outcomes if o.reason]


def test_a_tenth_of_the_suite() -> None:
    every = sorted(cases(), key=lambda case: (case.group, case.name))
    assert not failures(random.Random(1).sample(every, len(every) // 10))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_suite() -> None:
    assert not failures(list(cases()))
