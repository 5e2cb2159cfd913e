"""Small unmodified transformers models with random weights."""

from __future__ import annotations

import torch
from torch import nn


def llama(layers: int = 4) -> nn.Module:
    """A Llama with grouped heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=131, hidden_size=64, intermediate_size=104, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(3)
    return LlamaForCausalLM(config).eval()


def bert() -> nn.Module:
    """A BERT with a padding mask."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=80,
        max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(4)
    return BertModel(config).eval()


def t5() -> nn.Module:
    """An encoder and a decoder with relative positions."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=97,
        d_model=48,
        d_kv=12,
        d_ff=80,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
    )
    torch.manual_seed(5)
    return T5ForConditionalGeneration(config).eval()
