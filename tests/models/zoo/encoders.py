"""Encoders of text, and models of an encoder and a decoder."""

from __future__ import annotations

from typing import Any

import torch

from tests.models.zoo.model import BATCH, TOKENS, VOCAB, Model, made, real, targets, tokens

MASK = torch.ones(BATCH, TOKENS, dtype=torch.long)
MASK[0, 5:] = 0

BERT = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 104, "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip


def _masked(name: str, stem: str, *, widened: bool = True, **sizes: Any) -> Model:
    build = made(f"{stem}ForMaskedLM", f"{stem}Config", **sizes)
    inputs = {"input_ids": tokens(), "attention_mask": MASK}
    return Model(name, build, inputs, {"labels": targets()}, widened)


def _translator(name: str, cls: str, config: str, source: dict[str, Any], **sizes: Any) -> Model:
    inputs = {**source, "decoder_input_ids": tokens(2, 5), "use_cache": False}
    return Model(name, made(cls, config, **sizes), inputs, {"labels": targets(3, 5)})


ENCODERS = (
    _masked("bert", "Bert", **BERT),
    _masked("roberta", "Roberta", **BERT),
    _masked("electra", "Electra", **BERT, embedding_size=32),
    _masked("albert", "Albert", **BERT, embedding_size=32),
    _masked(
        "distilbert", "DistilBert",
        vocab_size=VOCAB, dim=64, n_layers=3, n_heads=4, hidden_dim=104,
        max_position_embeddings=40,
    ),
    _masked(
        "deberta-v2", "DebertaV2", **BERT, relative_attention=True, position_buckets=8,
        pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True,
        widened=False,
    ),
    _masked("modernbert", "ModernBert", **BERT, global_attn_every_n_layers=2, local_attention=4),
)  # fmt: skip

TRANSLATORS = (
    _translator(
        "t5", "T5ForConditionalGeneration", "T5Config",
        {"input_ids": tokens(), "attention_mask": MASK},
        vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=104, num_layers=3, num_heads=4,
        decoder_start_token_id=0,
    ),
    _translator(
        "bart", "BartForConditionalGeneration", "BartConfig",
        {"input_ids": tokens(), "attention_mask": MASK},
        vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=104,
        decoder_ffn_dim=104, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=32,
    ),
    _translator(
        "whisper", "WhisperForConditionalGeneration", "WhisperConfig",
        {"input_features": real(BATCH, 16, 20)},
        vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=104,
        decoder_ffn_dim=104, encoder_attention_heads=4, decoder_attention_heads=4,
        num_mel_bins=16, max_source_positions=10, max_target_positions=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ),
)  # fmt: skip
