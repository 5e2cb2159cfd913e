"""Maps of ``ai.onnx.ml``, which are Python's: CastMap, DictVectorizer and ZipMap."""

from __future__ import annotations

from typing import Any

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array, strings


def _zip_map(call: Call) -> list[dict[Any, float]]:
    keys = call.attr("classlabels_strings") or call.attr("classlabels_int64s")
    rows = call[0].reshape(-1, call[0].shape[-1]).tolist()
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _vectorizer(call: Call) -> Array:
    """One row of a map's values in the order of the vocabulary, zero where it has no such key."""
    keys = call.attr("string_vocabulary") or call.attr("int64_vocabulary")
    mapping = call[0]
    if any(isinstance(value, str) for value in mapping.values()):
        return strings([mapping.get(key, "") for key in keys], (1, len(keys)))
    kind = np.int64 if all(isinstance(v, int) for v in mapping.values()) else np.float32
    return np.array([[mapping.get(key, 0) for key in keys]], kind)


def _cast_map(call: Call) -> Array:
    """The values in the order of their keys; in form SPARSE at the places that the keys name."""
    values = dict(sorted(call[0].items()))
    if call.attr("map_form", "DENSE") == "SPARSE":
        values = {n: values.get(n, 0) for n in range(call.attr("max_map", 1))}
    flat = list(values.values())
    match call.attr("cast_to", "TO_FLOAT"):
        case "TO_STRING":
            return strings([_text(value) for value in flat], (1, len(flat)))
        case "TO_INT64":
            return np.array([[int(value) for value in flat]], np.int64)
        case _:
            return np.array([[float(value) for value in flat]], np.float32)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}"


KERNELS: Kernels = {
    "ai.onnx.ml::CastMap": _cast_map,
    "ai.onnx.ml::DictVectorizer": _vectorizer,
    "ai.onnx.ml::ZipMap": _zip_map,
}
