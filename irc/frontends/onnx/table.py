"""Op type to converter: the table of contents of the frontend."""

from __future__ import annotations

from collections.abc import Mapping

from irc.frontends.onnx import (
    batch_norm,
    control,
    elementwise,
    extern,
    indexing,
    padding,
    products,
    quantize,
    reductions,
    resize,
    shapes,
    spectra,
    training,
    windows,
)
from irc.frontends.onnx.contrib import table as contrib
from irc.frontends.onnx.elementwise import Converter

CONVERTERS: Mapping[str, Converter] = {
    **elementwise.CONVERTERS,
    **products.CONVERTERS,
    **reductions.CONVERTERS,
    **batch_norm.CONVERTERS,
    **windows.CONVERTERS,
    **shapes.CONVERTERS,
    **padding.CONVERTERS,
    **indexing.CONVERTERS,
    **resize.CONVERTERS,
    **spectra.CONVERTERS,
    **quantize.CONVERTERS,
    **extern.CONVERTERS,
    **control.CONVERTERS,
    **training.CONVERTERS,
    **contrib.CONVERTERS,
}
"""Every op that has a converter, those of other domains as ``domain::Op``; others expand to their
functions, or run as they are."""
