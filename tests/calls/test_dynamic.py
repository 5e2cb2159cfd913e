"""Sizes left open: one capture and one plan for all of them, and what is said where not."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import irc
from irc.calls import compiled
from irc.calls.recompiles import Recompiles, RecompileWarning, Statistics
from irc.errors import IrcError
from irc.frontends.torch import capture as capturing
from irc.torch_backend.counts import counters

ODD = (2, 3, 17, 127, 128, 129)


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def statistics(fast: Any) -> Statistics:
    return compiled.statistics(fast)


def same(fast: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    torch.testing.assert_close(fast(*args, **kwargs), model(*args, **kwargs), rtol=2e-5, atol=2e-5)


def mlp() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 5)).eval()


class Block(nn.Module):
    """Self-attention with a causal mask and learned positions: sizes in views, slices, masks."""

    def __init__(self, width: int = 32, heads: int = 4, most: int = 256) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.places = nn.LayerNorm(width), nn.Embedding(most, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, w = x.shape
        x = x + self.places(torch.arange(s))
        q, k, v = (
            part.view(b, s, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(b, s, w))


@pytest.mark.slow
def test_one_capture_and_one_template_for_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    export = capturing.export
    monkeypatch.setattr(capturing, "export", lambda *a: traced.append(1) or export(*a))
    torch.manual_seed(0)
    model = Block().eval()
    fast = irc.compile(model, dynamic=True)
    sizes = [(b, s) for b in (2, 3, 4, 7, 16) for s in (2, 17, 64, 65, 128)]
    first = True
    for b, s in sizes:
        same(fast, model, torch.randn(b, s, 32))
        (work,) = statistics(fast).open_sizes
        if first:
            emitted, first = work.emitted, False
    assert len(traced) == statistics(fast).compilations == 1
    assert work.bound == len(sizes)
    assert (work.emitted, work.reasons) == (emitted, []), work.reasons


def test_a_table_of_positions_bounds_a_size() -> None:
    """No condition of the trace says that 256 rows are all: kernels are proven for what is met."""
    model = Block().eval()
    fast = irc.compile(model, dynamic=True)
    for rows in (20, 100, 256, 129):
        same(fast, model, torch.randn(2, rows, 32))
    (work,) = statistics(fast).open_sizes
    assert (statistics(fast).compilations, work.emitted, work.reasons) == (1, 0, [])
    with pytest.raises(IrcError, match="index lies outside") as caught:
        fast(torch.randn(2, 257, 32))
    assert caught.value.code == "index-out-of-range"


def test_rows() -> None:
    model = mlp()
    fast = irc.compile(model, dynamic={"input": {0: "batch"}})
    same(fast, model, torch.randn(5, 24))
    for rows in ODD:
        same(fast, model, torch.randn(rows, 24))
    assert statistics(fast).compilations == 1


def test_zero_and_one_take_their_own_plans() -> None:
    model = mlp()
    fast = irc.compile(model, dynamic=True)
    for rows in (6, 1, 9, 0, 1, 0, 11):
        same(fast, model, torch.randn(rows, 24))
    stats = statistics(fast)
    assert stats.compilations == 3
    assert stats.reasons[0] == "dim 0 of 'input' is 1, traced for 2 to any"


def test_inputs_with_gaps() -> None:
    model = mlp()
    fast = irc.compile(model, dynamic=True)
    for rows in (4, 13):
        same(fast, model, torch.randn(24, rows).T)
        same(fast, model, torch.randn(2 * rows, 48)[::2, ::2])
    # One for each order in which the dims lie: results may have it too.
    assert statistics(fast).compilations == 2


def test_a_range_that_the_module_sets_is_kept() -> None:
    model = Block(most=64).eval()
    fast = irc.compile(model, dynamic=True)
    same(fast, model, torch.randn(2, 20, 32))
    same(fast, model, torch.randn(2, 64, 32))
    assert statistics(fast).compilations == 1
    with pytest.raises(IndexError):  # what torch says of it
        model(torch.randn(2, 65, 32))
    with pytest.raises((IrcError, IndexError, RuntimeError)):
        fast(torch.randn(2, 65, 32))


class Halving(nn.Module):
    """An even and an odd size are two programs: torch decides so while it traces."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2] * 2 if x.shape[0] % 2 == 0 else x + 1


def test_a_branch_on_a_size_is_honoured() -> None:
    fast = irc.compile(Halving(), dynamic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        for rows in (6, 8, 7, 9, 10, 31):
            same(fast, Halving(), torch.randn(rows, 3))


def test_a_quotient_of_a_size() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[: x.shape[0] // 2 * 2].view(-1, 2, x.shape[1]).sum(1) + 1).relu()

    fast = irc.compile(Pairs(), dynamic={"x": {0: "rows"}})
    for rows in (40, 41, 30, 17, 99):
        same(fast, Pairs(), torch.randn(rows, 6))
    assert statistics(fast).compilations == 1


def test_a_mean_over_a_size() -> None:
    fast = irc.compile(lambda x: x.mean(0) + x.softmax(1).mean() / x.shape[1], dynamic=True)
    plain = lambda x: x.mean(0) + x.softmax(1).mean() / x.shape[1]  # noqa: E731
    for shape in ((5, 7), (33, 7), (5, 64), (2, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-5, atol=1e-6)
    assert statistics(fast).compilations == 1


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, complex(float("nan"), 1)])
def test_numbers_that_no_size_is(number: complex) -> None:
    """One plan has them as every size's plan has them: NaN is the same as NaN there."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x / x.shape[0], number)

    fast = irc.compile(f, dynamic={"x": {0: "n"}})
    for n in ODD:
        x = torch.randn(n, 3)
        torch.testing.assert_close(fast(x), f(x), equal_nan=True)
    assert statistics(fast).compilations == 1


def test_sizes_that_torch_compares_only_when_it_runs() -> None:
    """Indices have to broadcast, which no trace asks for: at most sizes there is no program."""

    def write(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[rows, columns % 4, 0] = torch.tensor([1.0, 2.0])
        return y

    x, rows = torch.randn(3, 4, 5), torch.tensor([0, -1])
    compiled = irc.compile(write, dynamic=True)
    for columns in (torch.tensor([2, -3]), torch.tensor([1])):
        assert torch.equal(compiled(x, rows, columns), write(x, rows, columns))


def test_a_convolution_for_every_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip
    fast = irc.compile(model, dynamic={"input": {0: "batch"}})
    for batch in (4, 2, 7, 16):
        same(fast, model, torch.randn(batch, 3, 16, 16))
    (work,) = statistics(fast).open_sizes
    assert (statistics(fast).compilations, work.bound) == (1, 4), work.reasons


def test_sizes_of_one_name_are_one() -> None:
    fast = irc.compile(lambda x, y: x @ y, dynamic={"x": {0: "n", 1: "k"}, "y": {0: "k"}})
    for n, k in ((3, 5), (17, 4), (64, 129)):
        x, y = torch.randn(n, k), torch.randn(k, 6)
        torch.testing.assert_close(fast(x, y), x @ y, rtol=1e-4, atol=1e-5)
    assert statistics(fast).compilations == 1


def test_a_size_that_the_module_fixes_cannot_be_named() -> None:
    fast = irc.compile(mlp(), dynamic={"input": {1: "width"}})
    with pytest.raises(IrcError, match="size 1 of 'input'") as caught:
        fast(torch.randn(3, 24))
    assert caught.value.code == "size-fixed"


def test_a_range_that_torch_cannot_prove() -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    fast = irc.compile(mlp(), dynamic={"input": {0: rows}})
    fast(torch.randn(3, 24))
    fast(torch.randn(64, 24))
    assert statistics(fast).compilations == 1
    fast(torch.randn(65, 24))
    assert "is 65, traced for 2 to 64" in statistics(fast).reasons[0]


@pytest.mark.parametrize("dynamic", [3, "batch"])
def test_dynamic_is_true_or_says_which(dynamic: Any) -> None:
    with pytest.raises(IrcError, match="dynamic is True") as caught:
        irc.compile(mlp(), dynamic=dynamic)
    assert caught.value.code == "option-value"


def test_a_mesh_fixes_sizes() -> None:
    with pytest.raises(IrcError, match="sizes on a mesh are fixed"):
        irc.compile(mlp(), dynamic=True, mesh="data=2")


def test_a_recompile_names_the_argument_that_avoids_it() -> None:
    fast = irc.compile(mlp())
    for rows in (3, 4):
        fast(torch.randn(rows, 24))
    with pytest.warns(RecompileWarning) as caught:
        fast(torch.randn(5, 24))
    text = str(caught[0].message)
    assert "'input' has another size with every call: dim 0 was 4, is 5" in text
    assert "irc.compile(..., dynamic={'input': {0: 'n'}})" in text


def test_a_cache_that_grows() -> None:
    """Decoding with keys and values that get one longer with every call: one compilation."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(16, 48)

        def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
            q, k, v = self.qkv(x).view(x.shape[0], 1, 3, 2, 8).permute(2, 0, 3, 1, 4)
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            y = nn.functional.scaled_dot_product_attention(q, keys, values)
            return y, keys, values

    torch.manual_seed(0)
    model = Step().eval()
    fast = irc.compile(model, dynamic={"x": None, "keys": {2: "past"}, "values": {2: "past"}})
    mine = theirs = (torch.randn(3, 2, 4, 8), torch.randn(3, 2, 4, 8))
    for _ in range(12):
        x = torch.randn(3, 1, 16)
        (a, *mine), (b, *theirs) = fast(x, *mine), model(x, *theirs)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mine, theirs)
    assert statistics(fast).compilations == 1


def test_weights_that_are_written_to_are_seen_by_every_size() -> None:
    model = mlp()
    fast = irc.compile(model, dynamic=True)
    for rows in (20, 30):
        same(fast, model, torch.randn(rows, 24))
    model[0].weight.mul_(2)
    for rows in (20, 30, 40):
        same(fast, model, torch.randn(rows, 24))
    assert statistics(fast).compilations == 1


def test_two_threads_with_other_sizes() -> None:
    model = mlp()
    fast = irc.compile(model, dynamic=True)
    fast(torch.randn(9, 24))
    wrong: list[str] = []

    def work(rows: int) -> None:
        with torch.no_grad():
            for step in range(20):
                x = torch.randn(rows + step % 4, 24)
                if not torch.allclose(fast(x), model(x), rtol=1e-4, atol=1e-5):
                    wrong.append(f"{rows} {step}")

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (2, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_that_are_dropped_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("irc.runtime.driver.MAX_SIZES", 2)
    model = mlp()
    fast = irc.compile(model, dynamic=True)
    for rows in (5, 6, 7, 5, 6):
        same(fast, model, torch.randn(rows, 24))
    (work,) = statistics(fast).open_sizes
    assert work.bound == 5


LAYERS: dict[str, tuple[Any, Any]] = {
    "a rate": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0)), lambda n: (n, 8)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda n: (2, n, 8),
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_with_gradients_one_program_has_all_sizes(kind: str) -> None:
    make, shape = LAYERS[kind]
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    layer = make()
    fast = irc.compile(layer, dynamic=True)
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("error", RecompileWarning)
        for n in (3, 4, 7, 9):
            x = torch.randn(shape(n))
            results = []
            for each in (fast, layer):
                layer.zero_grad()
                each(x).square().sum().backward()
                results.append([p.grad for p in layer.parameters()])
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert counters["opened"] == 1 and not counters["specialised"]


def test_what_was_asked_for_is_not_advised() -> None:
    told = []
    for dynamic in (None, True):
        kept = Recompiles(is_open=bool(dynamic))
        kept.add("other sizes", ("x", 0, 1, 2))
        with pytest.warns(RecompileWarning) as caught:
            kept.add("other sizes", ("x", 0, 2, 3))
        told.append(str(caught[0].message))
    assert "dynamic=" in told[0] and "dynamic=" not in told[1] and "pad what" in told[1]


def power(x: torch.Tensor, n: int) -> torch.Tensor:
    return x + (-3) ** n


def power_of_size(x: torch.Tensor) -> torch.Tensor:
    return x + (-3) ** x.shape[0]


WAYS = (
    lambda f: irc.compile(f, dynamic=True),
    lambda f: torch.compile(f, backend="irc", dynamic=True),
)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [power, power_of_size])
def test_powers_of_open_numbers(function: Any, way: Any, grad: bool) -> None:
    """Plans are compared at other sizes, whose powers are beyond all that a number may be."""
    torch._dynamo.reset()
    fast = way(function)
    with torch.set_grad_enabled(grad), warnings.catch_warnings():
        # The last one is beyond a signed number of 64 bits, and compiled for itself with a word.
        warnings.simplefilter("ignore")
        for n in (3, 4, 5, 2, 40):
            x = torch.ones(n)
            more = (n,) if function is power else ()
            torch.testing.assert_close(fast(x, *more), function(x, *more))
