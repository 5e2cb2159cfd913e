"""Operators of ``ai.onnx.ml`` on features and labels; trees have a file of their own."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.scores import class_count, labels_of, of_two, transformed
from irc.runtime.onnx_ops.values import Array, strings


def _of_kind(call: Call, stem: str) -> Any:
    """Return an attribute that is written in one of several types: ``keys_int64s``, ..."""
    for kind in ("tensor", "strings", "int64s", "floats"):
        if (value := call.attr(f"{stem}_{kind}")) is not None:
            return value
    return None


def _flat(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return cast("Array", values).reshape(-1).tolist()
    return values


def _label_encoder(call: Call) -> Array:
    keys, values = _flat(_of_kind(call, "keys")), _flat(_of_kind(call, "values"))
    kind, default = _default(call, values)
    table = dict(zip(keys, values, strict=True))
    nan = next((value for key, value in table.items() if key != key), default)
    mapped = [
        nan if key != key else table.get(key, default) for key in call[0].reshape(-1).tolist()
    ]
    if kind is None:
        return strings(mapped, call[0].shape)
    return np.array(mapped, kind).reshape(call[0].shape)


def _default(call: Call, values: Any) -> tuple[Any, Any]:
    """Return numpy's dtype of the values (None: strings), and the value of other keys."""
    if (tensor := call.attr("default_tensor")) is not None:
        default = tensor.reshape(-1)[0]
        kind = None if tensor.dtype == object else tensor.dtype
        return kind, default if kind is None else default.item()
    if call.attr("values_tensor") is not None:
        kind = call.attr("values_tensor").dtype
        if kind.kind == "O":
            return None, "_Unused"
        return kind, -1 if kind.kind in "iu" else -0.0
    if isinstance(values[0], str):
        return None, call.attr("default_string", "_Unused")
    if call.attr("values_int64s") is not None:
        return np.dtype(np.int64), call.attr("default_int64", -1)
    return np.dtype(np.float32), call.attr("default_float", -0.0)


def _category_mapper(call: Call) -> Array:
    names, numbers = call.attr("cats_strings"), call.attr("cats_int64s")
    flat = call[0].reshape(-1).tolist()
    if call[0].dtype == object:
        table = dict(zip(names, numbers, strict=True))
        mapped = [table.get(text, call.attr("default_int64", -1)) for text in flat]
        return np.array(mapped, np.int64).reshape(call[0].shape)
    words = dict(zip(numbers, names, strict=True))
    default = call.attr("default_string", "_Unused")
    return strings([words.get(number, default) for number in flat], call[0].shape)


def _binarizer(call: Call) -> Array:
    return (call[0] > call.attr("threshold", 0.0)).astype(call[0].dtype)


def _scaler(call: Call) -> Array:
    offset, scale = (
        np.asarray(call.attr(n) or d, np.float32) for n, d in (("offset", [0]), ("scale", [1]))
    )
    return ((call[0] - offset) * scale).astype(np.float32)


def _normalizer(call: Call) -> Array:
    x: Array = call[0].astype(np.float64)
    match call.attr("norm", "MAX"):
        case "MAX":
            size = np.abs(x).max(-1, keepdims=True)
        case "L1":
            size = np.abs(x).sum(-1, keepdims=True)
        case _:
            size = np.sqrt(np.square(x).sum(-1, keepdims=True))
    return np.where(size == 0, x, x / np.where(size == 0, 1, size)).astype(np.float32)


def _imputer(call: Call) -> Array:
    x = call[0]
    floats = call.attr("imputed_value_floats")
    new = floats if floats is not None else call.attr("imputed_value_int64s")
    old = (
        call.attr("replaced_value_float", 0.0)
        if floats is not None
        else call.attr("replaced_value_int64", 0)
    )
    gone = np.isnan(x) if old != old else x == old
    return np.where(gone, np.asarray(new, x.dtype), x)


def _one_hot(call: Call) -> Array:
    known = call.attr("cats_strings") or call.attr("cats_int64s")
    table = {key: i for i, key in enumerate(known)}
    rows = np.zeros((call[0].size, len(known)), np.float32)
    for row, key in zip(rows, call[0].reshape(-1).tolist(), strict=True):
        at = table.get(key if isinstance(key, str) else int(key))
        if at is not None:
            row[at] = 1
        elif not call.attr("zeros", 1):
            raise ValueError(f"OneHotEncoder meets {key!r}, which is none of its categories")
    return rows.reshape(*call[0].shape, len(known))


def _rows(call: Call) -> Array:
    x = call[0].astype(np.float64)
    return x.reshape(-1, x.shape[-1])


def _linear_regressor(call: Call) -> Array:
    targets = call.attr("targets", 1)
    weights = np.asarray(call.attr("coefficients"), np.float64).reshape(targets, -1)
    scores = _rows(call) @ weights.T + np.asarray(call.attr("intercepts") or 0.0)
    return transformed(scores, call.attr("post_transform", "NONE")).astype(np.float32)


def _linear_classifier(call: Call) -> tuple[Array, Array]:
    classes, how = class_count(call), call.attr("post_transform", "NONE")
    count = len(call.attr("intercepts") or ()) or classes
    weights = np.asarray(call.attr("coefficients"), np.float64).reshape(count, -1)
    scores = _rows(call) @ weights.T + np.asarray(call.attr("intercepts") or 0.0)
    if count == 1 and classes == 2:
        best = (scores[:, 0] > 0).astype(np.int64)
        return labels_of(call, best), of_two(scores[:, 0], how, margin=False).astype(np.float32)
    return labels_of(call, scores.argmax(-1)), transformed(scores, how).astype(np.float32)


def _vectorizer(call: Call) -> Array:
    return np.concatenate([x.reshape(x.shape[0], -1) for x in call.inputs], -1).astype(np.float32)


ML = "ai.onnx.ml::"

KERNELS: Kernels = {
    ML + "Binarizer": _binarizer,
    ML + "CategoryMapper": _category_mapper,
    ML + "FeatureVectorizer": _vectorizer,
    ML + "Imputer": _imputer,
    ML + "LabelEncoder": _label_encoder,
    ML + "LinearClassifier": _linear_classifier,
    ML + "LinearRegressor": _linear_regressor,
    ML + "Normalizer": _normalizer,
    ML + "OneHotEncoder": _one_hot,
    ML + "Scaler": _scaler,
}
