"""Capture: calls, structures, states, names, sizes, blocks, failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import irc
from irc.dialects.builder import arguments, entry, functions, results
from irc.dialects.flow import loc_of
from irc.dialects.text import dump
from irc.errors import IrcError, IrcErrors
from irc.frontends.torch.capture import Captured, capture
from irc.interpret.flow import run_function

X, Y = torch.randn(3, 5), torch.randn(5)


def run(captured: Captured, *args: Any, **kwargs: Any) -> Any:
    program = captured.program
    inputs = dict(zip(program.input_names, captured.flatten(args, kwargs), strict=True))
    return run_function(program.module, program.bind(inputs))


@dataclass
class Pair:
    """What a module may return."""

    total: Tensor
    rest: list[Tensor]
    note: str


pytree.register_dataclass(Pair, serialized_type_name="tests.Pair")


def test_keywords_structures_and_dataclasses(check: Callable[..., Captured]) -> None:
    def function(x: Tensor, *, pair: tuple[Tensor, float], flag: bool = False) -> Pair:
        scaled = x * pair[1] + pair[0]
        return Pair(scaled.sum(), [scaled, x] if flag else [scaled], "note")

    captured = check(function, X, pair=(X[0], 2.5), flag=True)
    assert captured.program.input_names == ["x", "pair.0"]
    assert captured.program.output_names == ["total", "rest.0", "rest.1"]
    swapped = captured.flatten((X,), {"flag": True, "pair": (Y, 2.5)})
    assert swapped[0] is X
    assert swapped[1] is Y


def test_arguments_have_roles_and_dotted_names() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    func = entry(capture(model, (X,)).program.module)
    roles = {name: role for role, name, _ in arguments(func)}
    assert roles == {
        "0.weight": "parameter", "0.bias": "parameter",
        "1.weight": "parameter", "1.bias": "parameter",
        "1.running_mean": "buffer", "1.running_var": "buffer", "input": "input",
    }  # fmt: skip
    assert results(func) == [("output", "output")]


def test_tied_weights_are_one_argument(check: Callable[..., Captured]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11, bias=False)
            self.head.weight = self.table.weight

        def forward(self, i: Tensor) -> Tensor:
            return self.head(self.table(i))

    captured = check(Tied(), torch.tensor([[3, 1], [0, 10]]))
    assert list(captured.program.tensors) == ["table.weight"]


def test_batch_norm_in_training_gives_states() -> None:
    model = nn.BatchNorm2d(4).train()
    x = torch.randn(3, 4, 5, 2) * 3 + 1
    captured = capture(model, (x,))
    assert captured.states == ("running_mean", "running_var", "num_batches_tracked")
    assert model.num_batches_tracked == 0
    output, *states = run(captured, x)
    torch.testing.assert_close(output, model(x), rtol=1e-5, atol=1e-5)
    for name, state in zip(captured.states, states, strict=True):
        torch.testing.assert_close(state, dict(model.named_buffers())[name], rtol=1e-5, atol=1e-5)


def test_a_cache_in_a_buffer() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4, 5), persistent=False)

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            self.seen[at] = x
            self.seen.mul_(2)
            return self.seen.sum()

    model, at = Cache(), torch.tensor([2, 0, 3])
    captured = capture(model, (X, at))
    assert captured.states == ("seen",)
    total, seen = run(captured, X, at)
    torch.testing.assert_close(total, model(X, at))
    torch.testing.assert_close(seen, model.seen)


def test_an_input_that_is_written_to() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 2

    captured = capture(function, (X.clone(), X))
    assert captured.mutated_inputs == {"x": 0}
    output, state = run(captured, X, X)
    torch.testing.assert_close(output, X * 4)
    torch.testing.assert_close(state, X * 2)


def test_a_module_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
    captured = capture(model, (X,))
    assert {t.device.type for t in captured.program.tensors.values()} == {"meta"}
    assert "[3, 2], f32" in dump(captured.program.module)


def test_devices_in_the_graph_do_not_matter(check: Callable[..., Captured]) -> None:
    check(lambda x: x.to("cpu") + torch.arange(5, device=x.device), X)


def test_named_sizes() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.cat([x, y], 1).flatten(0, 1)
        return z.softmax(-1) + x.shape[0] * 2, x.transpose(0, 1).mean(0)

    shapes = {"x": {0: "B", 1: "S"}, "y": {0: "B"}}
    captured = capture(
        function, (torch.randn(3, 5, 7), torch.randn(3, 4, 7)), dynamic_shapes=shapes
    )
    text = dump(captured.program.module)
    assert "[B, S, 7]" in text
    assert "[B*S + 4*B, 7]" in text
    assert captured.guards.check((torch.randn(6, 9, 7), torch.randn(6, 4, 7))) is None
    reason = captured.guards.check((torch.randn(6, 9, 7), torch.randn(5, 4, 7)))
    assert reason == "'y' has shape [5, 4, 7], compiled for [B, 4, 7]"


def test_torch_dims_keep_their_names() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    captured = capture(nn.Linear(5, 2), (X,), dynamic_shapes={"input": {0: batch}})
    assert "!flow.tensor<[batch, 2], f32>" in dump(captured.program.module)


def test_sizes_that_are_not_varied_are_numbers() -> None:
    assert "[3, 5]" in dump(capture(lambda x: x + 1, (X,)).program.module)


class Layer(nn.Module):
    """A layer that does not read its index."""

    def __init__(self, index: int, width: int) -> None:
        super().__init__()
        self.index, self.width = index, width
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 9),
            nn.Linear(9, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Scaled(Layer):
    """A layer that does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + (self.index == 2))


def test_repeated_layers_are_one_function(check: Callable[..., Captured]) -> None:
    captured = check(nn.Sequential(*(Layer(i, 5) for i in range(4)), nn.Linear(5, 2)), X)
    module = captured.program.module
    assert list(functions(module)) == ["block_0", "forward"]
    assert dump(module).count("func.call @block_0") == 4
    ids = [
        op.attributes["id"]
        for func in functions(module).values()
        for op in func.body.block.ops
        if "id" in op.attributes
    ]
    assert len(set(ids)) == len(ids)


def test_layers_that_behave_differently_are_not_shared(check: Callable[..., Captured]) -> None:
    captured = check(nn.Sequential(*(Scaled(i, 5) for i in range(4))), X)
    assert dump(captured.program.module).count("func.call") == 3


def test_layers_with_other_shapes_are_other_functions(check: Callable[..., Captured]) -> None:
    class Wide(Layer):
        def __init__(self, index: int, width: int) -> None:
            super().__init__(index, width)
            self.up, self.down = nn.Linear(width, 17), nn.Linear(17, width)

    captured = check(nn.Sequential(Layer(0, 5), Layer(1, 5), Wide(2, 5), Wide(3, 5)), X)
    assert list(functions(captured.program.module)) == ["block_0", "block_1", "forward"]


def test_lines_are_the_users() -> None:
    def helper(x: Tensor) -> Tensor:
        return x.exp()

    captured = capture(lambda x: helper(x) + 1, (X,))
    first = next(iter(entry(captured.program.module).body.block.ops))
    line = helper.__code__.co_firstlineno + 1
    assert loc_of(first).endswith(f"test_capture.py:{line}")


def test_random_numbers_come_from_the_seed() -> None:
    captured = capture(nn.Dropout(0.25).train(), (torch.ones(4000),))
    assert [role for role, _, _ in arguments(entry(captured.program.module))] == ["input", "seed"]
    (output,) = run(captured, torch.ones(4000))
    assert output.unique().tolist() == [0, pytest.approx(4 / 3)]
    assert output.mean() == pytest.approx(1, abs=0.05)


def test_control_flow_on_values_is_explained(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def function(x: Tensor) -> Tensor:
        print("the user's own word", file=sys.stderr)
        if x.sum() > 0:
            return x + 1
        return x

    with pytest.raises(IrcError) as failed:
        capture(function, (X,))
    assert failed.value.code == "capture-failed"
    assert "depends on the values of a tensor" in failed.value.message
    assert failed.value.where.endswith(f"test_capture.py:{function.__code__.co_firstlineno + 2}")
    assert "torch.where" in failed.value.help
    # Nothing of torch's beside the error: neither graphs nor that it found no line.
    assert set(capsys.readouterr().err.split("\n")) == {"the user's own word", ""}
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_all_causes_are_reported_at_once() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.nonzero() + 1, x[x > 0] * 2

    with pytest.raises(IrcErrors) as failed:
        capture(function, (X,))
    lines = {error.where.rpartition(":")[2] for error in failed.value.errors}
    assert len(failed.value.errors) >= 2
    assert lines == {str(function.__code__.co_firstlineno + 1)}


def test_a_name_for_sizes_that_differ() -> None:
    with pytest.raises(IrcError) as failed:
        capture(
            lambda x, y: x + y[:3],
            (X, torch.randn(4, 5)),
            dynamic_shapes={"x": {0: "B"}, "y": {0: "B"}},
        )
    assert (
        failed.value.message
        == "dynamic shapes: size 0 of 'y' = 4 is not equal to size 0 of 'x' = 3"
    )
    assert "dynamic_shapes" in failed.value.help


def test_objects_that_are_no_tensors() -> None:
    class Opaque:
        pass

    with pytest.raises(IrcError, match="no tensor"):
        capture(lambda x: (x, Opaque()), (X,))


def test_a_function_of_c() -> None:
    assert torch.equal(irc.compile(torch.maximum)(X, -X), X.abs())
