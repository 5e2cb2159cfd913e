"""Op type to converter: the table of contents of the frontend."""

from __future__ import annotations

from collections.abc import Mapping

from irc.frontends.onnx import (
    batch_norm,
    control,
    elementwise,
    extern,
    indexing,
    products,
    quantize,
    reductions,
    resize,
    shapes,
    windows,
)
from irc.frontends.onnx.elementwise import Converter

CONVERTERS: Mapping[str, Converter] = {
    **elementwise.CONVERTERS,
    **products.CONVERTERS,
    **reductions.CONVERTERS,
    **batch_norm.CONVERTERS,
    **windows.CONVERTERS,
    **shapes.CONVERTERS,
    **indexing.CONVERTERS,
    **resize.CONVERTERS,
    **quantize.CONVERTERS,
    **extern.CONVERTERS,
    **control.CONVERTERS,
}
"""Every op type of the default domain that has a converter; others expand to their functions."""
