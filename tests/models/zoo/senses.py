"""Models of images and sounds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tests.models.zoo.model import BATCH, VOCAB, Model, made, real, tokens, whole

VIT = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 104,
    "image_size": 24, "patch_size": 8,
}  # fmt: skip
LABELS = 12


def _classifier(name: str, cls: str, config: str, size: int, **sizes: Any) -> Model:
    build = made(cls, config, num_labels=LABELS, **sizes)
    labels = {"labels": whole(LABELS, BATCH, seed=5)}
    return Model(name, build, {"pixel_values": real(BATCH, 3, size, size)}, labels)


def _clip_tokens() -> Tensor:
    ids = tokens()
    ids[:, -1] = VOCAB - 1
    return ids


TOWER = {key: VIT[key] for key in (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"
)}  # fmt: skip

SENSES = (
    _classifier("vit", "ViTForImageClassification", "ViTConfig", 24, **VIT),
    _classifier("deit", "DeiTForImageClassification", "DeiTConfig", 24, **VIT),
    _classifier(
        "dinov2", "Dinov2ForImageClassification", "Dinov2Config", 24, **{**VIT, "mlp_ratio": 2},
    ),
    _classifier(
        "swin", "SwinForImageClassification", "SwinConfig", 32,
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
    ),
    _classifier(
        "convnext", "ConvNextForImageClassification", "ConvNextConfig", 32,
        hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 2, 1],
    ),
    _classifier(
        "resnet", "ResNetForImageClassification", "ResNetConfig", 32,
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], layer_type="basic",
    ),
    Model(
        "segformer",
        made(
            "SegformerForSemanticSegmentation", "SegformerConfig",
            hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 4, 4],
            decoder_hidden_size=32, num_labels=LABELS,
        ),
        {"pixel_values": real(BATCH, 3, 32, 32)},
        {"labels": whole(LABELS, BATCH, 32, 32, seed=5)},
    ),
    Model(
        "clip",
        made(
            "CLIPModel", "CLIPConfig", projection_dim=32,
            text_config={**TOWER, "vocab_size": VOCAB, "max_position_embeddings": 16,
                         "eos_token_id": VOCAB - 1},
            vision_config=VIT,
        ),
        {"input_ids": _clip_tokens(), "pixel_values": real(BATCH, 3, 24, 24)},
        {"return_loss": True},
    ),
    # Of its CTC head, Python code looks at the labels; what is below it is the same.
    Model(
        "wav2vec2",
        made(
            "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", num_labels=LABELS,
            hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=104,
            conv_dim=(32, 32), conv_kernel=(10, 3), conv_stride=(5, 2),
            num_feat_extract_layers=2, num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=4, apply_spec_augment=False, classifier_proj_size=32,
        ),
        {"input_values": real(BATCH, 300)},
        {"labels": whole(LABELS, BATCH, seed=5)},
    ),
)  # fmt: skip
