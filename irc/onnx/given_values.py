"""``--value NAME=N``: inputs of an ONNX file that are the same number in every call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from irc.errors import IrcError, did_you_mean
from irc.frontends.onnx.external import NUMPY, dtype_of
from irc.frontends.onnx.read import Source
from irc.onnx.boundary import shape_of
from irc.onnx.deciding import with_values


def with_numbers(source: Source, values: Mapping[str, float]) -> Source:
    """Return a model in which some inputs of one element are constants, and no inputs.

    Args:
        source: the model.
        values: a number for each, by name.

    Raises:
        IrcError: ``option-value`` for a name that no input has, for an input of several elements,
            or a number that its type does not hold.
    """
    inputs = {value.name: value for value in source.model.graph.input}
    arrays: dict[str, np.ndarray] = {}
    for name, number in values.items():
        if name not in inputs:
            raise IrcError(
                "option-value", f"the model has no input named '{name}'",
                help=did_you_mean(name, inputs),
            )  # fmt: skip
        kind = inputs[name].type
        shape = shape_of(kind)
        if shape is None or any(dim != 1 for dim in shape):
            raise IrcError(
                "option-value", f"input '{name}' is not one number: --value is for flags and rates"
            )
        dtype = NUMPY[dtype_of(kind.tensor_type.elem_type)]
        array = np.full([1] * len(shape), number).astype(dtype)
        if array.item() != number and dtype.kind in "iub":
            raise IrcError("option-value", f"input '{name}' is {dtype}, which {number} is not")
        arrays[name] = array
    return with_values(source, arrays) if arrays else source


def parse_values(texts: list[str]) -> dict[str, float]:
    """Read ``--value`` options.

    >>> parse_values(["sr=16000", "threshold=0.5"])
    {'sr': 16000, 'threshold': 0.5}

    Raises:
        IrcError: ``option-value``.
    """
    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            values[name] = int(number) if number.lstrip("-").isdecimal() else float(number)
        except ValueError:
            name = ""
        if not name:
            raise IrcError(
                "option-value", f"cannot read --value '{text}'", help="write it as --value sr=16000"
            )
    return values
