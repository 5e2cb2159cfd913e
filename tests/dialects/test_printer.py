"""Texts of a program while passes change it are those that are printed from nothing."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

import pytest
import torch
from torch import nn
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.printer import Printer

from irc.dialects.builder import entry, functions
from irc.dialects.placement import Mesh
from irc.dialects.printer import Texts, text_of
from irc.dialects.text import load
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, run_passes
from irc.pipeline.default import default_pipeline

PROGRAM = """
func.func @block(%x: !flow.tensor<[4], f32>, %y: !flow.tensor<[4], f32>)
    -> !flow.tensor<[4], f32> {
  %0 = flow.pointwise(%x, %y) {fn = "sub", id = "n0", loc = "m.py:1"}
      : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
  func.return %0 : !flow.tensor<[4], f32>
}
func.func @forward(%x: !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32> {
  %0 = func.call @block(%x, %x) {id = "n1", loc = "m.py:2"}
      : (!flow.tensor<[4], f32>, !flow.tensor<[4], f32>) -> !flow.tensor<[4], f32>
  func.return %0 : !flow.tensor<[4], f32>
}
func.func @"two words"(%x: !flow.tensor<[4], f32>, %y: !flow.tensor<[], i1>)
    -> (!flow.tensor<[4], f32>, !flow.tensor<[], i1>) {
  func.return {phase = "step"} %x, %y : !flow.tensor<[4], f32>, !flow.tensor<[], i1>
}
func.func @nothing() {
  func.return
}
func.func @calls(%x: !flow.tensor<[4], f32>, %y: !flow.tensor<[], i1>) {
  %0, %1 = func.call @"two words"(%x, %y)
      : (!flow.tensor<[4], f32>, !flow.tensor<[], i1>)
      -> (!flow.tensor<[4], f32>, !flow.tensor<[], i1>)
  func.call @nothing() {id = "n2"} : () -> ()
  func.return
}
"""


def printed_by_xdsl(module: ModuleOp) -> str:
    out = StringIO()
    Printer(out).print_op(module)
    return out.getvalue()


def test_after_each_pass_of_a_pipeline() -> None:
    model = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32) for _ in range(3))).eval()
    module = capture(model, (torch.randn(8, 4, 16),)).program.module
    texts, seen = Texts(), list[str]()

    def check(name: str, module: ModuleOp) -> None:
        seen.append(name)
        assert texts.of(module) == text_of(module) == printed_by_xdsl(module), name

    options = Options(mesh=Mesh.parse("data=2"))
    run_passes(module, default_pipeline(options), on_stage=check)
    assert len(seen) > 8


def _swap(func: FuncOp) -> None:
    op = next(iter(func.body.block.ops))
    op.operands = tuple(reversed(op.operands))


def _mark(func: FuncOp) -> None:
    next(iter(func.body.block.ops)).attributes["id"] = StringAttr("n9")


def _rename_key(func: FuncOp) -> None:
    op = next(iter(func.body.block.ops))
    op.attributes["was"] = op.attributes.pop("id")


def _hint(func: FuncOp) -> None:
    func.body.block.args[0].name_hint = "other"


def _rename(func: FuncOp) -> None:
    func.properties["sym_name"] = StringAttr("other")


@pytest.mark.parametrize("change", [_swap, _mark, _rename_key, _hint, _rename])
def test_a_change_of_one_function(change: Callable[[FuncOp], None]) -> None:
    module = load(PROGRAM)
    texts = Texts()
    before = texts.of(module)
    assert texts.of(module) == before == printed_by_xdsl(module)
    change(functions(module)["block"])
    assert texts.of(module) == text_of(module) != before


def test_functions_come_and_go() -> None:
    module = load(PROGRAM)
    texts = Texts()
    texts.of(module)
    entry(module).detach()
    assert texts.of(module) == text_of(module)
    module.attributes["irc.mesh"] = StringAttr("data=2")
    assert texts.of(module) == text_of(module)


def test_two_ops_that_differ_in_what_stands_behind_their_operands() -> None:
    """A tail is kept by its attributes and types, each in their order and by what they are of."""
    module = load(PROGRAM)
    (op, *_) = functions(module)["block"].body.block.ops
    block, texts = functions(module)["block"].body.block, Texts()
    x, y = block.args
    for inputs, results, attrs in (
        ([x, y], 1, {}),
        ([x], 2, {}),
        ([x], 1, {"phase": StringAttr("backward")}),
        ([x], 1, {"part": StringAttr("backward")}),
    ):
        copy = type(op).create(
            operands=inputs,
            result_types=[x.type] * results,
            properties=op.properties,
            attributes={**op.attributes, **attrs},
        )
        block.insert_op_before(copy, op)
        assert texts.of(module) == text_of(module) == printed_by_xdsl(module)


@pytest.mark.parametrize(
    "text", ["plain", 'a "b" \\ c', "\t\n\x7f", "\xe9\u20ac\U0001f600", "%\x00" * 300]
)
def test_literals_are_those_of_xdsl(text: str) -> None:
    module = ModuleOp([], {"irc.text": StringAttr(text)})
    assert text_of(module) == printed_by_xdsl(module)
