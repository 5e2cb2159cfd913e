"""Decoders: language models that predict the next token."""

from __future__ import annotations

from typing import Any

from tests.models.zoo.model import VOCAB, Model, made, targets, tokens

LLAMA = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 104, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ONE_KIND = {name: size for name, size in LLAMA.items() if name != "num_key_value_heads"}


def _decoder(name: str, cls: str, config: str, **sizes: Any) -> Model:
    inputs = {"input_ids": tokens(), "use_cache": False}
    return Model(name, made(cls, config, **sizes), inputs, {"labels": targets()})


def _like_llama(name: str, stem: str, **sizes: Any) -> Model:
    return _decoder(name, f"{stem}ForCausalLM", f"{stem}Config", **{**LLAMA, **sizes})


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 52, "num_hidden_layers": 2}

DECODERS = (
    _decoder(
        "gpt2", "GPT2LMHeadModel", "GPT2Config",
        vocab_size=VOCAB, n_positions=32, n_embd=64, n_layer=3, n_head=4,
    ),
    _like_llama("llama", "Llama"),
    _like_llama("mistral", "Mistral", sliding_window=4),
    _like_llama("qwen2", "Qwen2"),
    _like_llama("qwen3", "Qwen3", head_dim=16),
    _like_llama("gemma", "Gemma", head_dim=16),
    _like_llama("gemma2", "Gemma2", head_dim=16, sliding_window=4, query_pre_attn_scalar=16),
    _decoder(
        "gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig",
        **{**LLAMA, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16},
    ),
    _like_llama("phi", "Phi", num_key_value_heads=4),
    _like_llama("phi3", "Phi3"),
    _like_llama("stablelm", "StableLm"),
    _like_llama("olmo2", "Olmo2"),
    _like_llama("granite", "Granite"),
    _like_llama("cohere", "Cohere"),
    _decoder("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", **ONE_KIND),
    _decoder(
        "gptj", "GPTJForCausalLM", "GPTJConfig",
        vocab_size=VOCAB, n_positions=32, n_embd=64, n_layer=3, n_head=4, rotary_dim=8,
    ),
    _decoder(
        "opt", "OPTForCausalLM", "OPTConfig",
        vocab_size=VOCAB, hidden_size=64, ffn_dim=104, num_hidden_layers=3,
        num_attention_heads=4, max_position_embeddings=32, word_embed_proj_dim=64,
    ),
    _decoder(
        "falcon", "FalconForCausalLM", "FalconConfig",
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        new_decoder_architecture=False, multi_query=True,
    ),
    _decoder(
        "bloom", "BloomForCausalLM", "BloomConfig",
        vocab_size=VOCAB, hidden_size=64, n_layer=3, n_head=4,
    ),
    _decoder(
        "mpt", "MptForCausalLM", "MptConfig",
        vocab_size=VOCAB, d_model=64, n_layers=3, n_heads=4, max_seq_len=32,
    ),
    _like_llama("mixtral", "Mixtral", num_local_experts=4, num_hidden_layers=2),
    _like_llama(
        "qwen2-moe", "Qwen2Moe", num_experts=4, shared_expert_intermediate_size=52, **EXPERTS
    ),
    _like_llama("qwen3-moe", "Qwen3Moe", num_experts=4, head_dim=16, **EXPERTS),
    _like_llama(
        "deepseek-v3", "DeepseekV3", n_routed_experts=4, n_shared_experts=1, n_group=2,
        topk_group=1, first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=24,
        qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, num_key_value_heads=4, **EXPERTS,
    ),
    _decoder(
        "mamba", "MambaForCausalLM", "MambaConfig",
        vocab_size=VOCAB, hidden_size=32, state_size=8, num_hidden_layers=2,
    ),
)  # fmt: skip
