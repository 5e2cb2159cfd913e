"""What a session is given: arrays, checked against what the file states, looked up once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from irc.errors import IrcError, did_you_mean
from irc.onnx.boundary import shape_of, to_value
from irc.runtime.onnx_ops.values import ELEMENTS


class Intake:
    """What a model takes, looked up once: checks what a caller gives, in the order of the inputs.

    Args:
        inputs: names and types, as the file states them.
    """

    def __init__(self, inputs: Sequence[onnx.ValueInfoProto]) -> None:
        self._inputs = [(value.name, value.type) for value in inputs]
        self._names = {name for name, _ in self._inputs}
        self._plain: list[tuple[str, Any, tuple[int | None, ...] | None]] = [
            (name, *_tensor(kind)) for name, kind in self._inputs
        ]

    def __call__(self, feed: Mapping[str, Any]) -> list[Any]:
        """Return arrays, lists or None.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if len(feed) == len(self._plain):
            try:
                values = [feed[name] for name, _, _ in self._plain]
            except KeyError:
                values = []
            if values and all(map(_fits, values, self._plain)):
                return values
        self._check_names(feed)
        return [to_value(feed[name], kind, name) for name, kind in self._inputs]

    def _check_names(self, feed: Mapping[str, Any]) -> None:
        names = [name for name, _ in self._inputs]
        for name in (*feed, *names):
            if name not in self._names or name not in feed:
                what = "missing" if name in self._names else "not an input of the model"
                raise IrcError(
                    "input-mismatch", f"input '{name}' is {what}", help=did_you_mean(name, names)
                )


def _tensor(kind: onnx.TypeProto) -> tuple[Any, tuple[int | None, ...] | None]:
    """Return numpy's dtype of a tensor (None for what is none), and its sizes, None where open."""
    if not kind.HasField("tensor_type"):
        return None, None
    dtype = ELEMENTS.get(kind.tensor_type.elem_type)
    sizes = shape_of(kind)
    if dtype is None or dtype.kind == "O" or sizes is None:
        return None, None
    return dtype, tuple(size if isinstance(size, int) else None for size in sizes)


def _fits(value: Any, plain: tuple[str, Any, tuple[int | None, ...] | None]) -> bool:
    _, dtype, sizes = plain
    if type(value) is not np.ndarray or sizes is None or value.dtype != dtype:
        return False
    shape = value.shape
    return len(shape) == len(sizes) and all(
        stated is None or stated == size for stated, size in zip(sizes, shape, strict=True)
    )
