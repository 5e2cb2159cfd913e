"""Sparse tensors of attributes and initializers, made dense."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx

from irc.errors import IrcError
from irc.frontends.onnx.external import Array, to_any_array, to_array
from irc.frontends.onnx.read import Source

MAX_ELEMENTS = 1 << 28


def dense(sparse: onnx.SparseTensorProto, source: Source) -> Array:
    """Return a sparse tensor's values in place, zeros elsewhere.

    Raises:
        IrcError: ``onnx-invalid`` where an index is outside, ``op-unsupported`` where it is huge.
    """
    shape = tuple(sparse.dims)
    if any(size < 0 for size in shape) or prod(shape) > MAX_ELEMENTS:
        raise IrcError("op-unsupported", f"a sparse tensor of shape {list(shape)}", source.name)
    values = to_any_array(sparse.values, source).reshape(-1)
    indices = to_array(sparse.indices, source)
    elements = np.zeros(prod(shape), values.dtype)
    if indices.ndim == 2:
        if indices.shape[1] != len(shape) or np.any(indices < 0) or np.any(indices >= shape):
            raise IrcError("onnx-invalid", "a sparse tensor has an index outside it", source.name)
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    if np.any(indices < 0) or np.any(indices >= elements.size) or len(indices) != len(values):
        raise IrcError("onnx-invalid", "a sparse tensor has an index outside it", source.name)
    elements[indices] = values
    return elements.reshape(shape)
