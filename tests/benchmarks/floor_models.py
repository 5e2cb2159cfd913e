"""The small models of the floor benchmark: what a module of theirs is, and what goes in."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A transformer's block, before its norms or after them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then the two linear layers."""
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, -1).transpose(1, 2)
            for y in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Windowed(nn.Module):
    """Swin's block: attention in windows, shifted or not."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.block, self.window, self.shift = Block(width, heads), window, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Cut into windows, attend in each, and put together."""
        b, h, w, c = x.shape
        s = self.window
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        x = x.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, s * s, c)
        x = self.block(x)
        x = x.view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return x.roll((self.shift, self.shift), (1, 2)) if self.shift else x


class Swin(nn.Module):
    """Two stages of a small Swin."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Sequential(Windowed(width, 2, 4, 0), Windowed(width, 2, 4, 2))
        self.merge = nn.Linear(4 * width, 2 * width)
        self.second = nn.Sequential(Windowed(2 * width, 4, 4, 0), Windowed(2 * width, 4, 4, 2))
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give logits of images."""
        x = self.first(self.patch(x).permute(0, 2, 3, 1))
        x = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)
        return self.head(self.second(self.merge(x)).mean((1, 2)))


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(3))
        self.skip = nn.Conv2d(before, after, 1, stride, bias=False)
        self.is_same = before == after and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what two convolutions say."""
        y = self.norms[1](self.two(self.norms[0](self.one(x)).relu()))
        return (y + (x if self.is_same else self.norms[2](self.skip(x)))).relu()


def resnet18(classes: int = 10) -> nn.Module:
    """Return ResNet-18."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(before, after, stride), Residual(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Inverted(nn.Module):
    """MobileNet's and EfficientNet's block: wide, depthwise, squeezed, narrow."""

    def __init__(self, before: int, after: int, stride: int, wide: int = 4) -> None:
        super().__init__()
        mid = before * wide
        self.up = nn.Sequential(
            nn.Conv2d(before, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.SiLU()
        )
        self.depth = nn.Sequential(
            nn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False),
            nn.BatchNorm2d(mid),
            nn.SiLU(),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(mid, before // 2, 1), nn.SiLU(),
            nn.Conv2d(before // 2, mid, 1), nn.Sigmoid(),
        )  # fmt: skip
        self.down = nn.Sequential(nn.Conv2d(mid, after, 1, bias=False), nn.BatchNorm2d(after))
        self.is_same = before == after and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the four."""
        y = self.depth(self.up(x))
        y = self.down(y * self.squeeze(y))
        return x + y if self.is_same else y


class Spectral(nn.Module):
    """FNO's layer in two dimensions."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (width, width, modes, modes)
        self.one = nn.Parameter(torch.randn(*shape, dtype=torch.cfloat) / width**2)
        self.two = nn.Parameter(torch.randn(*shape, dtype=torch.cfloat) / width**2)
        self.local = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply the lowest modes by matrices."""
        m, h, w = self.modes, *x.shape[-2:]
        f = torch.fft.rfft2(x)
        out = torch.zeros(*f.shape, dtype=torch.cfloat)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", f[..., :m, :m], self.one)
        out[..., -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[..., -m:, :m], self.two)
        return F.gelu(torch.fft.irfft2(out, s=(h, w)) + self.local(x))


class Unet(nn.Module):
    """Two levels of a U."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one = nn.Conv2d(1, width, 3, padding=1)
        self.two = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Down, up, and across."""
        a = self.one(x).relu()
        b = self.two(F.max_pool2d(a, 2)).relu()
        return self.out(torch.cat([a, self.up(b)], 1))


class Experts(nn.Module):
    """A layer of experts, each row by the best two."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mix all experts by their weights."""
        top, which = self.gate(x).softmax(-1).topk(2, -1)
        weights = torch.zeros(*x.shape[:-1], len(self.experts)).scatter(-1, which, top)
        return sum(e(x) * weights[..., i, None] for i, e in enumerate(self.experts))


class Recommender(nn.Module):
    """DLRM: bags, a network, and products between them."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(500, 16, mode="sum") for _ in range(4))
        self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(26, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Give a score a row."""
        rows = [self.dense(x), *(bag(index[i]) for i, bag in enumerate(self.bags))]
        z = torch.stack(rows, 1)
        pairs = z @ z.transpose(1, 2)
        i, j = torch.tril_indices(5, 5, -1)
        return self.top(torch.cat([rows[0], pairs[:, i, j]], 1))


class Tagger(nn.Module):
    """Words to tags, by an LSTM both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 32)
        self.net = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give logits of each word."""
        return self.out(self.net(self.words(x))[0]).log_softmax(-1)


def _mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


def _hugging_face(name: str, **options: Any) -> nn.Module:
    import transformers

    config = getattr(transformers, name + "Config")(**options)
    return Logits(getattr(transformers, name + _HEADS[name])(config).eval())


_HEADS = {
    "EfficientNet": "ForImageClassification",
    "Bert": "Model",
    "GPT2": "LMHeadModel",
    "Llama": "ForCausalLM",
    "T5": "EncoderModel",
    "Mamba": "ForCausalLM",
    "MobileNetV2": "ForImageClassification",
    "ConvNext": "ForImageClassification",
    "ViT": "ForImageClassification",
}


class Logits(nn.Module):
    """A model of Hugging Face, of which one tensor is wanted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the first result."""
        return self.model(x, return_dict=False)[0]


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


Made = tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]

_BERT = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 500,
}

MODELS: Mapping[str, Made] = {
    "mlp 8x32": (lambda: _mlp(32, 64, 64, 8), (_x(8, 32),)),
    "mlp 64x256": (lambda: _mlp(256, 512, 256, 10, act=nn.GELU), (_x(64, 256),)),
    "autoencoder 16x784": (lambda: _mlp(784, 128, 32, 128, 784), (_x(16, 784),)),
    "block 64 1x16": (lambda: Block(64, 4), (_x(1, 16, 64),)),
    "block 256 2x64": (lambda: Block(256, 8), (_x(2, 64, 256),)),
    "encoder layer of torch": (
        lambda: nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True),
        (_x(2, 16, 64),),
    ),
    "decoder layer of torch": (
        lambda: nn.TransformerDecoderLayer(64, 4, 128, 0.0, batch_first=True),
        (_x(2, 16, 64), _x(2, 12, 64)),
    ),
    "swin 2x3x32": (Swin, (_x(2, 3, 32, 32),)),
    "swin 4x3x64": (lambda: Swin(48), (_x(4, 3, 64, 64),)),
    "resnet18 1x3x32": (lambda: resnet18().eval(), (_x(1, 3, 32, 32),)),
    "resnet18 2x3x64": (resnet18, (_x(2, 3, 64, 64),)),
    "residual block 32x16": (lambda: Residual(32, 32, 1), (_x(2, 32, 16, 16),)),
    "inverted block 16x16": (lambda: Inverted(16, 24, 2), (_x(1, 16, 16, 16),)),
    "fno layer 16x32": (lambda: Spectral(16, 8), (_x(2, 16, 32, 32),)),
    "fno 4 layers 16x32": (
        lambda: nn.Sequential(*(Spectral(16, 8) for _ in range(4))),
        (_x(2, 16, 32, 32),),
    ),
    "fno layer 32x64": (lambda: Spectral(32, 12), (_x(4, 32, 64, 64),)),
    "unet 1x32": (Unet, (_x(1, 1, 32, 32),)),
    "lenet 4x28": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 8, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 10),
        ),
        (_x(4, 1, 28, 28),),
    ),
    "experts 32x4": (lambda: Experts(32, 4), (_x(16, 32),)),
    "dlrm 16": (Recommender, (_x(16, 13), _ids(500, 4, 16, 3))),
    "tagger 4x20": (Tagger, (_ids(500, 4, 20),)),
    "efficientnet 1x3x64": (
        lambda: _hugging_face(
            "EfficientNet",
            width_coefficient=1.0,
            depth_coefficient=1.0,
            hidden_dim=1280,
            image_size=64,
        ),
        (_x(1, 3, 64, 64),),
    ),
    "mobilenet 1x3x64": (
        lambda: _hugging_face("MobileNetV2", image_size=64, depth_multiplier=0.5),
        (_x(1, 3, 64, 64),),
    ),
    "convnext 1x3x64": (
        lambda: _hugging_face("ConvNext", hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1]),
        (_x(1, 3, 64, 64),),
    ),
    "vit 1x3x32": (
        lambda: _hugging_face(
            "ViT",
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            image_size=32,
            patch_size=8,
        ),
        (_x(1, 3, 32, 32),),
    ),
    "bert 2x16": (lambda: _hugging_face("Bert", **_BERT), (_ids(500, 2, 16),)),
    "gpt2 1x16": (
        lambda: _hugging_face("GPT2", n_embd=64, n_layer=2, n_head=4, vocab_size=500),
        (_ids(500, 1, 16),),
    ),
    "llama 1x16": (
        lambda: _hugging_face("Llama", **_BERT, num_key_value_heads=2),
        (_ids(500, 1, 16),),
    ),
    "t5 encoder 1x16": (
        lambda: _hugging_face(
            "T5", d_model=64, d_ff=128, d_kv=16, num_heads=4, num_layers=2, vocab_size=500
        ),
        (_ids(500, 1, 16),),
    ),
}
