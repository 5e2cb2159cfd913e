"""Inputs whose values decide what a model is: a sample rate, a length, a flag.

An exporter leaves such an input beside the data, and branches on it. Where its value is known, the
branches that it rules out are gone, and sizes that follow from it are numbers; so a session
compiles the model for each value that it meets, as it does for each kind of shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from irc.dialects.flow import ExternOp
from irc.errors import IrcError
from irc.frontends.onnx.importer import Importer
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source
from irc.interpret.dynamic import is_static
from irc.onnx.boundary import shape_of
from irc.runtime.onnx_ops.run import PREFIX

WHOLE = (TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64)
LEFT = -1
MUCH = 0.9
"""A model is compiled for a value where that leaves at most this share of its ops."""


@dataclass(frozen=True)
class Deciding:
    """What decides.

    Attributes:
        names: of the inputs; empty where none does.
        needed: whether the model cannot be compiled without their values.
    """

    names: tuple[str, ...] = ()
    needed: bool = False


def candidates(inputs: Sequence[onnx.ValueInfoProto]) -> list[str]:
    """Return the names of inputs that are one whole number or flag."""
    return [
        value.name
        for value in inputs
        if value.type.HasField("tensor_type")
        and value.type.tensor_type.elem_type in WHOLE
        and shape_of(value.type) in ([], [1])
    ]


def deciding(
    source: Source, inputs: Sequence[onnx.ValueInfoProto], values: Mapping[str, Any]
) -> Deciding:
    """Say which inputs decide, by importing the model with their values and without.

    Args:
        source: the model, with the types of one call.
        inputs: what it takes.
        values: of that call, by name.
    """
    names = candidates(inputs)
    if not names or len(names) == len(inputs):
        return Deciding()
    num_ops = _ops(source)
    if num_ops == LEFT:
        return Deciding()
    known = _ops(with_values(source, {name: values[name] for name in names}))
    if known is None or known == LEFT or (num_ops is not None and known > MUCH * num_ops):
        return Deciding()
    return Deciding(tuple(names), needed=num_ops is None)


def check_model(source: Source, names: Sequence[str]) -> None:
    """Refuse a model that cannot be imported, whatever the values of some inputs.

    Raises:
        IrcError: what importing it raises.
    """
    try:
        Importer(prepare(source), dynamic=True).run()
    except IrcError:
        if _ops(with_values(source, _ones(source, names))) is None:
            raise


def _ones(source: Source, names: Sequence[str]) -> dict[str, np.ndarray]:
    kinds = {value.name: value.type for value in source.model.graph.input if value.name in names}
    return {
        name: np.ones(
            [1] * len(kind.tensor_type.shape.dim),
            onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type),
        )
        for name, kind in kinds.items()
    }


def with_values(source: Source, values: Mapping[str, np.ndarray]) -> Source:
    """Return a model in which some inputs are constants."""
    fixed = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    return replace(source, constants=(*source.constants, *fixed))


def _ops(source: Source) -> int | None:
    """Return how many ops a model has; None where it is refused, or left to run for its branches.

    `LEFT` where it runs as it is for another reason: a trip count may differ in each call.
    """
    try:
        program = Importer(prepare(source), dynamic=True).run()
    except IrcError:
        return None
    if not is_static(program.module):
        targets = {op.target for op in program.module.walk() if isinstance(op, ExternOp)}
        return None if {t for t in targets if t.startswith(PREFIX)} == {f"{PREFIX}If"} else LEFT
    return sum(1 for _ in program.module.walk())
