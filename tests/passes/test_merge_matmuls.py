"""Matmuls of few rows that read one value become one, and only those."""

import pytest
import torch
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Block, SSAValue

from irc.dialects.builder import FlowBuilder, finish_function
from irc.dialects.flow import ConcatOp, ContractOp
from irc.dialects.text import context
from irc.dialects.types import TensorType
from irc.interpret.flow import run_function
from irc.interpret.levels import difference, random_inputs
from irc.passes.merge_matmuls import MergeMatmulsPass

T = TensorType.of


def build(rows: int, width: int, parts: list[int], *, biased: bool = False, role: str = "parameter",
          gate: bool = False, spec: str = "mk,nk->mn") -> ModuleOp:  # fmt: skip
    turned = spec == "mk,kn->mn"
    shapes = [(width, n) if turned else (n, width) for n in parts]
    kinds = [T((rows, width)), *map(T, shapes), *(T((n,)) for n in parts if biased)]
    block = Block(arg_types=kinds)
    b = FlowBuilder(block)
    x, *rest = block.args
    results: list[SSAValue] = []
    for i in range(len(parts)):
        y = b.op(ContractOp, [x, rest[i]], spec=spec)
        if biased:
            y = b.pointwise("add", y, rest[len(parts) + i])
        results.append(b.pointwise("silu", y) if gate else y)
    names = [("input", "x"), *((role, f"w{i}") for i in range(len(kinds) - 1))]
    attrs = [DictionaryAttr({"role": StringAttr(r), "name": StringAttr(n)}) for r, n in names]
    return ModuleOp([finish_function("forward", block, results, arg_attrs=attrs)])


def merged(module: ModuleOp) -> int:
    """Run the pass; return how many matmuls are left; the numbers are the same."""
    inputs = random_inputs(module)
    want = run_function(module, inputs, dtype=torch.float64)
    MergeMatmulsPass().apply(context(), module)
    module.verify()
    got = run_function(module, inputs, dtype=torch.float64)
    assert all(difference(a, b) < 1e-12 for a, b in zip(got, want, strict=True))
    return sum(isinstance(op, ContractOp) for op in module.walk())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("spec", ["mk,nk->mn", "mk,kn->mn"])
@pytest.mark.parametrize("parts", [[5, 5, 5], [8, 2, 2], [1, 7]])
def test_projections_of_one_value_become_one(parts: list[int], biased: bool, spec: str) -> None:
    module = build(1, 13, parts, biased=biased, spec=spec)
    assert merged(module) == 1
    assert sum(isinstance(op, ConcatOp) for op in module.walk()) == 1 + biased


@pytest.mark.parametrize(
    "module",
    [
        build(17, 8, [4, 4]),  # rows enough to be bound by arithmetic
        build(1, 8, [4]),
        build(1, 8, [4, 4], role="input"),
        build(1, 8, [4, 4], gate=True),
        build(1, 8, [4, 4], biased=True, gate=True),
        build(1, 4096, [1024, 1024]),  # a copy of weights larger than what the launch saves
    ],
    ids=["rows", "alone", "inputs", "gate", "biased gate", "large"],
)
def test_others_stay(module: ModuleOp) -> None:
    before = str(module)
    MergeMatmulsPass().apply(context(), module)
    assert str(module) == before


def test_a_compiled_layer_joins_its_projections_once_and_sees_new_weights() -> None:
    import irc

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(32, 48), torch.nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.q(x).softmax(-1), self.k(x).softmax(-1)

    module = Layer().eval()
    compiled = irc.compile(module)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 32)
            for got, want in zip(compiled(x), module(x), strict=True):
                assert torch.allclose(got, want, atol=1e-6)
            module.k.weight.mul_(2.0)
