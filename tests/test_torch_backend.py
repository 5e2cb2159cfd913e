"""``torch.compile(backend="irc")``: inference, training, graph breaks, open sizes, mutation."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from irc import torch_backend
from irc.calls.recompiles import RecompileWarning
from irc.errors import IrcError
from irc.torch_backend import aot
from irc.torch_backend.counts import counters
from irc.torch_backend.specialising import SpecialisingGraph


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def compiled(target: Any, **options: Any) -> Any:
    return torch.compile(target, backend=torch_backend.compile_fx, **options)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 3))


def test_the_backend_has_a_name() -> None:
    assert "irc" in torch._dynamo.list_backends()


def test_inference_traces_once_and_sees_new_weights() -> None:
    model, x = small(), torch.randn(5, 7)
    with torch.no_grad():
        run = compiled(model)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
        model[0].weight.add_(1)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    assert counters == {"graphs": 1, "forward": 1}


def test_modules_of_one_form_share_a_graph() -> None:
    first, second, x = small(), small(), torch.randn(5, 7)
    with torch.no_grad():
        second[0].weight.mul_(2)
        run = compiled(lambda module, x: module(x))
        for module in (first, second, first, second):
            torch.testing.assert_close(run(module, x), module(x), rtol=1e-5, atol=1e-5)
    assert counters["forward"] == counters["rebound"] == 1


def test_training_takes_the_same_steps() -> None:
    mine, x = small(), torch.randn(5, 7)
    theirs = copy.deepcopy(mine)
    run = compiled(mine)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (mine, theirs)]
    for _ in range(2):
        for optimizer, forward in zip(optimizers, (run, theirs), strict=True):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert counters["backward"] == 1
    assert not counters["backward run by torch"]


def test_a_backward_that_does_not_compile_is_counted_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(graph: Any, held: Any, source: str, **options: Any) -> Any:
        if source == "aot backward":
            raise IrcError("op-unsupported", "an operation of another planet")
        return real(graph, held, source, **options)

    real = aot.flat_program
    monkeypatch.setattr(aot, "flat_program", refuse)
    mine, x = small(), torch.randn(5, 7)
    theirs = copy.deepcopy(mine)
    with pytest.warns(UserWarning, match="another planet"):
        compiled(mine)(x).sum().backward()
    theirs(x).sum().backward()
    torch.testing.assert_close(mine[0].weight.grad, theirs[0].weight.grad, rtol=1e-5, atol=1e-5)
    assert counters["backward run by torch"] == 1


def test_batch_statistics_move() -> None:
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    theirs, x = copy.deepcopy(mine), torch.randn(2, 3, 7, 9)
    torch.testing.assert_close(compiled(mine)(x), theirs(x), rtol=1e-5, atol=1e-5)
    for a, b in zip(mine.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_graph_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum() > 100:
            y = y + 1
        torch._dynamo.graph_break()
        return y * 2

    x = torch.randn(5)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert counters["graphs"] >= 2


@pytest.mark.parametrize("grad", [False, True])
def test_open_sizes_stay_open(grad: bool) -> None:
    weight = torch.randn(4, 3, requires_grad=grad)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.relu(x @ w).sum(0) * x.shape[0], x.shape[0] + 1

    run = compiled(function, dynamic=True)
    for rows in (8, 5, 8, 33, 2):
        x = torch.randn(rows, 4)
        (a, n), (b, m) = run(x, weight), function(x, weight)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert n == m
        if grad:
            mine, theirs = (torch.autograd.grad(y.sum(), weight)[0] for y in (a, b))
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert (counters["opened"], counters["specialised"], counters["forward"]) == (1, 0, 1)
    assert counters["backward"] == grad


def test_writes_to_arguments() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = y.clone()
        y[0] = 5
        return x * y

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    other = x.clone()
    torch.testing.assert_close(compiled(function)(x, y), function(other, y))
    torch.testing.assert_close(x, other)


def test_outputs_that_are_inputs_constants_or_the_same() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        return x, y, y, 3, None

    x = torch.randn(3)
    a, b, c, d, e = compiled(function)(x)
    assert a is x
    torch.testing.assert_close(b, x + 1)
    torch.testing.assert_close(c, x + 1)
    assert (d, e) == (3, None)


def test_unknown_options() -> None:
    with pytest.raises(Exception, match=r"no option 'trget'.*\n.*did you mean 'target'"):
        compiled(lambda x: x + 1, options={"trget": "cpu"})(torch.randn(3))


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def thirds(x: torch.Tensor) -> Any:
    return (x + 1).chunk(3, 1)


def whole_and_row(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y[1], y.t()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t(),
        lambda x: (x[1:, ::2], x + 1),
        lambda x: (x + 1).t(),
        lambda x: (x + 1).reshape(2, 2, 6).permute(2, 0, 1),
        thirds,
        whole_and_row,
    ],
)
def test_outputs_lie_and_share_memory_as_in_eager(function: Any) -> None:
    x = torch.randn(4, 6)
    with torch.no_grad():
        got, want = compiled(function)(x), function(x)
    got, want = ((v,) if isinstance(v, torch.Tensor) else tuple(v) for v in (got, want))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, check_stride=True)
        assert shares(a, x) == shares(b, x)
        assert [shares(a, other) for other in got] == [shares(b, other) for other in want]


def test_a_base_inside_a_repeated_layer_is_given_back() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(3))

    def function(x: torch.Tensor) -> Any:
        for layer in layers:
            x = layer(x)
        return x.t(), x[0]

    x = torch.randn(4, 6)
    with torch.no_grad():
        (a, b), (c, d) = compiled(function)(x), function(x)
    torch.testing.assert_close(a, c, check_stride=True)
    torch.testing.assert_close(b, d)
    assert shares(a, b)


@pytest.mark.parametrize("kind", ["strided", "expanded", "overlapping", "empty", "same"])
def test_inputs_of_any_kind(kind: str) -> None:
    x = torch.randn(6, 8)
    one, other = {
        "strided": (x[::2, 1::3], x.t()[:3, :3]),
        "expanded": (x[:3, :1].expand(3, 3), x[0, :3].expand(3, 3)),
        "overlapping": (x.flatten().unfold(0, 5, 2), x.flatten()[:110].unfold(0, 5, 2)),
        "empty": (x[:0, :3], x[:0, 3:6]),
        "same": (x, x),
    }[kind]

    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.softmax(a * 2, -1) + b, a.sum(-1)

    with torch.no_grad():
        for got, want in zip(compiled(function)(one, other), function(one, other), strict=True):
            torch.testing.assert_close(got, want)


def test_writes_to_inputs_that_overlap() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return b + 1

    mine, theirs = torch.arange(12.0), torch.arange(12.0)
    got = compiled(function)(mine[:8], mine[4:])
    torch.testing.assert_close(got, function(theirs[:8], theirs[4:]))
    torch.testing.assert_close(mine, theirs)


def test_threads_that_call_modules_of_one_form_keep_their_parameters_apart() -> None:
    modules, x = [small() for _ in range(4)], torch.randn(5, 7)
    with torch.no_grad():
        for scale, module in enumerate(modules):
            module[0].weight.mul_(scale + 1)
        want = [module(x) for module in modules]
        run = compiled(lambda module, x: module(x))
        run(modules[0], x)
    wrong: list[bool] = []

    def calls(index: int) -> None:
        with torch.no_grad():
            outputs = [run(modules[index], x) for _ in range(50)]
        wrong.extend(not torch.allclose(y, want[index], rtol=1e-5, atol=1e-5) for y in outputs)

    threads = [threading.Thread(target=calls, args=(i,)) for i in range(len(modules))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 200 and not any(wrong)


def test_numbers_follow_torchs_seed() -> None:
    x = torch.ones(64, 64)
    first, second = (compiled(lambda x, k=k: nn.functional.dropout(x * k, 0.5)) for k in (1, 2))
    torch.manual_seed(7)
    a, b = first(x), first(x)
    torch.manual_seed(7)
    torch.testing.assert_close(first(x), a)
    assert not torch.equal(a, b) and not torch.equal(second(x) != 0, a != 0)
    assert abs(float(a.mean()) - 1) < 0.1


def test_a_check_inside_a_library_op_raises() -> None:
    run = compiled(torch.linalg.inv)
    with torch.no_grad():
        torch.testing.assert_close(run(torch.eye(3) * 2), torch.eye(3) / 2)
        with pytest.raises(RuntimeError, match="singular"):
            run(torch.zeros(3, 3))


def test_sizes_that_cannot_be_left_open_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpecialisingGraph, "_open", lambda *_: None)
    run = compiled(lambda x: torch.relu(x) * 2, dynamic=True)
    for rows in (4, 5):
        run(torch.randn(rows, 3))
    with pytest.warns(RecompileWarning, match=r"'x' .* dim 0 was 5, is 6(.|\n)*pad what varies"):
        run(torch.randn(6, 3))


def test_open_sizes_of_a_module_keep_its_parameters_apart() -> None:
    torch.manual_seed(0)
    # Dynamo wraps the float that an embedding has into a tensor where sizes are open.
    module = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8))
    run = compiled(module, dynamic=True)
    with torch.no_grad():
        for shape in ((2, 5), (3, 7)):
            tokens = torch.randint(0, 11, shape)
            torch.testing.assert_close(run(tokens), module(tokens), rtol=1e-5, atol=1e-5)
    assert (counters["graphs"], counters["opened"], counters["specialised"]) == (1, 1, 0)


@torch.no_grad()
def test_a_result_that_nobody_reads_may_have_another_size() -> None:
    """Torch's shape function of bags is off by one where the last offset is given."""
    table, ids = torch.randn(5, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    offsets = torch.tensor([0, 3, 6])

    def bags(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(
            ids, x, offsets, mode="mean", include_last_offset=True
        )

    torch._dynamo.reset()
    assert torch.allclose(torch.compile(bags, backend="irc")(table), bags(table))


def test_grouped_attention_beside_a_view_of_an_input() -> None:
    """A result that shows an input sends the graph through aten, which says nothing of groups."""

    def program(q: Tensor, k: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return functional.scaled_dot_product_attention(q, k, k, enable_gqa=True), x.expand(2, 1, 1)

    q, k, x = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 1)
    attended, shown = compiled(program)(q, k, x)
    wanted, _ = program(q, k, x)
    torch.testing.assert_close(attended, wanted)
    assert shown.data_ptr() == x.data_ptr()


@torch.no_grad()
@torch._dynamo.config.patch(capture_scalar_outputs=True)
@pytest.mark.parametrize("count", [0, 3])
def test_a_number_out_of_a_tensor_is_that_of_each_call(count: int) -> None:
    """Where Dynamo keeps it in the graph, the parts after a region are given its value."""

    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * 2, x.new_ones(n.item(), x.shape[1])]) + 1

    run, x = compiled(f), torch.randn(2, 3)
    for number in (count, 5):
        assert torch.equal(run(x, torch.tensor(number)), f(x, torch.tensor(number)))


@pytest.mark.parametrize("records", [True, False])
@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("dynamic", [True, False])
def test_derivatives_go_forward(records: bool, calls: int, dynamic: bool) -> None:
    model, x, t = small(), torch.randn(5, 7), torch.randn(5, 7)
    run = compiled(model, dynamic=dynamic)

    def tangent(function: Any) -> Tensor | None:
        with forward_ad.dual_level():
            both = function(forward_ad.make_dual(x, t))
            return forward_ad.unpack_dual(both).tangent

    with torch.set_grad_enabled(records):
        for _ in range(calls):
            run(x)
        torch.testing.assert_close(tangent(run), tangent(model))
        left = counters["graphs run by torch"]
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    assert left == counters["graphs run by torch"] == 1
    assert run(x).grad_fn is not None
