"""Models of transformers whose code is hard to capture: without gradients, by both compilers.

They look at values (encodec's chunks, led's global attention), route tokens to experts (switch),
pad to blocks (longt5), or scan (mamba). Sizes are small and weights random.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import irc

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::irc.calls.left.LeftToTorchWarning"),
    # Encodec's layers run one by one between breaks: one code, images of several sizes.
    pytest.mark.filterwarnings("ignore::irc.calls.recompiles.RecompileWarning"),
]

WIDTHS = {"vocab_size": 99, "d_model": 32}
T5 = WIDTHS | {"d_kv": 8, "d_ff": 37, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
LONG = T5 | {"local_radius": 5, "global_block_size": 4}
EXPERTS = {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
LED = WIDTHS | {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 37, "decoder_ffn_dim": 37,
    "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64,
    "attention_window": 8,
}  # fmt: skip
ENCODEC = {
    "num_filters": 4, "hidden_size": 16, "codebook_dim": 16, "codebook_size": 32,
    "upsampling_ratios": [4, 2], "num_lstm_layers": 1,
}  # fmt: skip
MAMBA = {"vocab_size": 99, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "encodec": ("Encodec", ENCODEC),
    "led": ("LED", LED),
    "longt5": ("LongT5", LONG | {"encoder_attention_type": "local"}),
    "longt5, global": ("LongT5", LONG | {"encoder_attention_type": "transient-global"}),
    "mamba": ("Mamba", MAMBA),
    "switch": ("SwitchTransformers", T5 | EXPERTS | {"expert_capacity": 16}),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)
    torch._dynamo.reset()


def call_of(kind: str, seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    if kind == "encodec":
        return {"input_values": torch.randn(1, 1, 400, generator=random)}
    tokens = torch.randint(3, 90, (2, 32), generator=random)
    if kind == "mamba":
        return {"input_ids": tokens, "use_cache": False}
    return {"input_ids": tokens, "decoder_input_ids": tokens[:, :8], "use_cache": False}


def tensors(outputs: Any) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(dict(outputs)) if isinstance(x, torch.Tensor)]


DYNAMO_FAILS = {("longt5, global", "torch.compile")}
"""torch.compile fails before any backend is asked, with the backend ``eager`` too."""

WAYS: dict[str, Callable[[Any], Any]] = {
    "irc.compile": irc.compile,
    "torch.compile": lambda model: torch.compile(model, backend="irc"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CASES)
def test_models_compute_what_eager_does(kind: str, way: str) -> None:
    if (kind, way) in DYNAMO_FAILS:
        pytest.skip("Dynamo does not trace it")
    name, sizes = CASES[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}Model")(config).eval()
    fast = WAYS[way](model)
    with torch.no_grad():
        for seed in (0, 1):
            wanted = tensors(model(**call_of(kind, seed)))
            assert wanted
            outputs = tensors(fast(**call_of(kind, seed)))
            torch.testing.assert_close(outputs, wanted, rtol=1e-4, atol=1e-4)
