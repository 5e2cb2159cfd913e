"""Generation on one device: static and growing caches, and what a caller sees of them."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import irc
import irc.calls.dispatcher
from irc.calls.compiled import dispatcher_of, statistics
from irc.calls.recompiles import RecompileWarning
from irc.errors import IrcError
from irc.plan.schema import Copy, Kernels, Library

transformers = pytest.importorskip("transformers")

# transformers 5.24 calls ``cache`` what was ``past_key_values``, and takes both names.
CACHE = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(transformers.LlamaForCausalLM.forward).parameters
)


def llama(heads: int = 2, layers: int = 1) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=heads, max_position_embeddings=64,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(config).eval()


def prompt(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(2, 61, (batch, length), generator=torch.Generator().manual_seed(seed))


def greedy(model: Any, ids: Tensor, new: int = 9, **options: Any) -> Tensor:
    return model.generate(ids, max_new_tokens=new, do_sample=False, **options)


@pytest.mark.parametrize(("batch", "length"), [(1, 7), pytest.param(3, 5, marks=pytest.mark.slow)])
def test_a_static_cache_compiles_twice_whatever_follows(batch: int, length: int) -> None:
    model = llama()
    fast = irc.compile(model)
    assert statistics(fast).compilations == 0
    for seed, new in ((0, 9), (1, 9), (2, 4)):
        ids = prompt(batch, length, seed)
        tokens = greedy(fast, ids, new, cache_implementation="static")
        assert torch.equal(tokens, greedy(model, ids, new, cache_implementation="static"))
        assert statistics(fast).compilations == 2
    assert statistics(fast).eager_calls == 0


@pytest.mark.slow
def test_beams_reorder_a_static_cache() -> None:
    model = llama()
    fast, ids = irc.compile(model), prompt(2, 5)
    options = {"cache_implementation": "static", "num_beams": 3}
    assert torch.equal(greedy(fast, ids, 6, **options), greedy(model, ids, 6, **options))


def test_a_growing_cache_is_told_and_ends_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(irc.calls.dispatcher, "MAX_VERSIONS", 4)
    model = llama()
    fast, ids = irc.compile(model), prompt(1, 7)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tokens = greedy(fast, ids, 8)
    assert torch.equal(tokens, greedy(model, ids, 8))
    said = [str(each.message) for each in told if each.category is RecompileWarning]
    assert len(said) == 2
    assert f"warning[recompile-limit]: '{CACHE}.0_keys' has another size" in said[0]
    assert "dim 2 was 8, is 9" in said[0]
    assert "cache_implementation='static'" in said[0]
    assert "none of 4 versions fits run eagerly" in said[1]
    assert (statistics(fast).compilations, statistics(fast).eager_calls) == (4, 4)


@torch.no_grad()
@pytest.mark.parametrize("early", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_cache_is_the_callers_own(early: bool) -> None:
    """The object that goes in comes back, its tensors written in place."""
    model = llama()
    fast = irc.compile(model)
    mine, theirs = (transformers.StaticCache(model.config, max_cache_len=11) for _ in range(2))
    if early:
        mine.early_initialization(1, 2, 8, torch.float32, torch.device("cpu"))
    layer = mine.layers[0]
    for step in (prompt(1, 5), prompt(1, 1), prompt(1, 1)):
        before, count = layer.keys, layer.cumulative_length
        outputs = fast(input_ids=step, past_key_values=mine)
        wanted = model(input_ids=step, past_key_values=theirs)
        torch.testing.assert_close(outputs.logits, wanted.logits, rtol=1e-5, atol=1e-5)
        assert outputs.past_key_values is mine
        assert mine.layers[0] is layer
        assert before is None or layer.keys is before
        assert layer.cumulative_length is count
        torch.testing.assert_close(layer.keys, theirs.layers[0].keys, rtol=1e-5, atol=1e-5)
    assert int(layer.cumulative_length) == 7


@pytest.mark.slow
@torch.no_grad()
def test_rows_are_written_in_place() -> None:
    """No call copies the cache: the plan scatters into the caller's memory."""
    model = llama(layers=2)
    fast = irc.compile(model)
    cache = transformers.StaticCache(model.config, max_cache_len=11)
    fast(input_ids=prompt(1, 5), past_key_values=cache)
    fast(input_ids=prompt(1, 1), past_key_values=cache)
    dispatcher = dispatcher_of(fast)
    assert dispatcher is not None
    plan = dispatcher.versions[1].plan
    whole = cache.layers[0].keys.numel()
    assert not [a for a in plan.actions if isinstance(a, Copy)
                if plan.buffers[a.target].num_elements >= whole]  # fmt: skip
    assert not [a for a in plan.actions if isinstance(a, Library)]
    scatters = [
        (call, kernel) for a in plan.actions if isinstance(a, Kernels) for call in a.calls
        if "scatter" in (kernel := plan.kernels[call.kernel]).name
    ]  # fmt: skip
    assert len(scatters) == 4
    for call, kernel in scatters:
        ((read, written),) = kernel.in_place
        assert call.args[read] == call.args[written]


@torch.no_grad()
def test_a_row_that_is_read_later_is_not_lost() -> None:
    """Where the old value is read beside the new one, the scatter must not write over it."""

    @irc.compile
    def change(memory: Tensor, at: Tensor, row: Tensor) -> Tensor:
        old = memory.clone()
        memory.index_copy_(0, at, row)
        return old - memory

    memory, expected = torch.arange(12.0).view(4, 3), torch.arange(12.0).view(4, 3)
    for place in (2, 0):
        at, row = torch.tensor([place]), torch.randn(1, 3)
        old = expected.clone()
        expected.index_copy_(0, at, row)
        torch.testing.assert_close(change(memory, at, row), old - expected)
        assert torch.equal(memory, expected)


@torch.no_grad()
def test_memory_with_gaps_is_written_too() -> None:
    @irc.compile
    def put(memory: Tensor, row: Tensor) -> Tensor:
        memory[1] = row
        return memory

    base = torch.zeros(3, 8)
    memory = base[:, ::2]
    version = base._version
    assert put(memory, torch.ones(4)) is memory
    assert base.sum() == 4
    assert memory[1].tolist() == [1.0] * 4
    assert base._version > version


@torch.no_grad()
def test_what_comes_back_as_it_was_is_the_same_tensor() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            x.mul_(2)
            return x, x.clone(), y

    x, y = torch.ones(3), torch.ones(2)
    same, other, untouched = irc.compile(Writes())(x, y)
    assert same is x
    assert untouched is y
    assert other is not x
    x.add_(1)
    assert other.tolist() == [2.0] * 3


@pytest.mark.slow
@torch.no_grad()
def test_a_sliding_window_is_eagers() -> None:
    """Its count of tokens is a Python number, from which positions are computed."""
    config = transformers.MistralConfig(
        vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, sliding_window=4,
    )  # fmt: skip
    torch.manual_seed(6)
    model = transformers.MistralForCausalLM(config).eval()
    fast = irc.compile(model)
    mine, theirs = (transformers.DynamicCache(config=config) for _ in range(2))
    for length in (3, 1, 1, 1):
        step = prompt(1, length)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecompileWarning)
            logits = fast(input_ids=step, past_key_values=mine).logits
        wanted = model(input_ids=step, past_key_values=theirs).logits
        torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)


def test_statistics_are_of_what_was_compiled() -> None:
    double = irc.compile(lambda x: x * 2)
    with torch.no_grad():
        double(torch.ones(3))
        double(torch.ones(4))
    counts = statistics(double)
    assert (counts.compilations, counts.eager_calls) == (2, 0)
    assert counts.reasons == ("'x' has shape [4], compiled for [3]",)
    for other in (nn.ReLU(), len):
        with pytest.raises(IrcError, match=r"not made by irc\.compile"):
            statistics(other)
    assert copy.copy(counts) == counts
