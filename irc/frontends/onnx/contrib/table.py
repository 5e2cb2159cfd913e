"""Op type to converter, for the ops of ``com.microsoft`` and the domains beside it."""

from __future__ import annotations

from collections.abc import Mapping

from irc.frontends.onnx.contrib import (
    attention,
    blocked,
    channels_last,
    decoding,
    few_bits,
    layers,
    plain,
    quantised,
    rotary,
)
from irc.frontends.onnx.contrib.compose import Composition, composed
from irc.frontends.onnx.elementwise import Converter

DOMAIN = "com.microsoft"

COMPOSITIONS: Mapping[str, Composition] = {
    **attention.COMPOSITIONS,
    **channels_last.COMPOSITIONS,
    **decoding.COMPOSITIONS,
    **few_bits.COMPOSITIONS,
    **layers.COMPOSITIONS,
    **plain.COMPOSITIONS,
    **quantised.COMPOSITIONS,
    **rotary.COMPOSITIONS,
}

FORMS: Mapping[str, Composition] = {
    **{f"{DOMAIN}::{name}": each for name, each in COMPOSITIONS.items()},
    **{f"{blocked.DOMAIN}::{name}": each for name, each in blocked.COMPOSITIONS.items()},
    # Written without a domain by ONNX Runtime, though no opset of ONNX has it.
    "SimplifiedLayerNormalization": layers.simplified_norm,
}
"""Compositions by the name of the op in the tables."""

CONVERTERS: Mapping[str, Converter] = {name: composed(each) for name, each in FORMS.items()}
