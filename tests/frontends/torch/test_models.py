"""Whole models: what they capture to computes what they compute."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from irc.dialects.builder import functions
from irc.dialects.text import dump
from irc.frontends.torch.capture import Captured, capture
from irc.interpret.flow import run_function
from tests.models import cnn, gpt, hugging_face

IDS = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones(2, 9, dtype=torch.long)
MASK[0, 6:] = 0


@pytest.mark.parametrize("tied", [True, False])
def test_gpt(tied: bool, check: Callable[..., Captured]) -> None:
    torch.manual_seed(0)
    model = gpt.GPT(
        gpt.GPTConfig(layers=3, hidden=48, heads=3, vocab=97, block=16, tied=tied)
    ).eval()
    captured = check(model, IDS)
    assert list(functions(captured.program.module)) == ["block_0", "forward"]
    assert ("head.weight" in captured.program.tensors) is not tied
    text = dump(captured.program.module)
    assert text.count("flow.attention") == text.count('fn = "gelu"') == 1
    check(model, IDS, IDS)


def test_gpt_in_double_with_named_batch() -> None:
    model = gpt.GPT(gpt.GPTConfig(layers=2, hidden=32, heads=2, vocab=97, block=16)).double().eval()
    captured = capture(model, (IDS,), dynamic_shapes={"tokens": {0: "B"}})
    assert "!flow.tensor<[B, 9, 97], f64>" in dump(captured.program.module)


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_llama(cache: bool, masked: bool, check: Callable[..., Captured]) -> None:
    model = hugging_face.llama()
    options = {"attention_mask": MASK} if masked else {}
    captured = check(model, IDS, use_cache=cache, **options)
    assert dump(captured.program.module).count("func.call") == 4
    assert len(captured.program.output_names) == (9 if cache else 1)


def test_llama_with_a_cache_from_before() -> None:
    model, token = hugging_face.llama(2), torch.tensor([[5], [7]])
    with torch.no_grad():
        past = model(IDS).past_key_values
        captured = capture(model, (token,), {"past_key_values": copy.deepcopy(past)})
        program = captured.program
        assert program.input_names[:3] == [
            "input_ids",
            "past_key_values.0_keys",
            "past_key_values.0_values",
        ]
        inputs = captured.flatten((token,), {"past_key_values": copy.deepcopy(past)})
        outputs = run_function(
            program.module, program.bind(dict(zip(program.input_names, inputs, strict=True)))
        )
        mine, theirs = (
            captured.unflatten(outputs),
            model(token, past_key_values=copy.deepcopy(past)),
        )
    torch.testing.assert_close(mine.logits, theirs.logits, rtol=1e-5, atol=1e-5)
    assert mine.past_key_values.get_seq_length() == 10
    torch.testing.assert_close(
        mine.past_key_values.layers[1].values, theirs.past_key_values.layers[1].values
    )


def test_bert_with_padding(check: Callable[..., Captured]) -> None:
    captured = check(hugging_face.bert(), IDS, attention_mask=MASK)
    assert captured.program.output_names == ["last_hidden_state", "pooler_output"]


def test_t5(check: Callable[..., Captured]) -> None:
    check(hugging_face.t5(), input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS[:, :4])


@pytest.mark.parametrize("training", [False, True])
def test_cnn(training: bool, check: Callable[..., Captured]) -> None:
    torch.manual_seed(0)
    model = cnn.CNN().train(training)
    if not training:
        for buffer in model.buffers():
            buffer.data.add_(1)
    captured = check(model, torch.randn(2, 3, 23, 29))
    assert len(captured.states) == (21 if training else 0)
    assert dump(captured.program.module).count("func.call") == 3
