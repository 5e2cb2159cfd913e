"""The way in: a file, bytes or a `ModelProto` becomes a program."""

from __future__ import annotations

import os
from collections.abc import Mapping

import onnx

from irc.frontends.onnx.external import Array
from irc.frontends.onnx.importer import Importer
from irc.frontends.onnx.prepare import prepare
from irc.frontends.onnx.read import Source, read_model
from irc.frontends.onnx.sizes import by_name
from irc.program import Program


def load_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Source,
    sizes: Mapping[str, int] | None = None,
    *,
    constants: Mapping[str, Array] | None = None,
    dynamic: bool = False,
) -> Program:
    """Import an ONNX model.

    Inputs and outputs keep their order and names; initializers are arguments of role parameter
    under their own names. Sizes that the file names (``dim_param``) stay names where the program
    can say so, and are numbers where ``sizes`` gives them.

    Args:
        model: a path, the bytes of a file, or a model as it was read. Only a path has a folder,
            in which external data may lie.
        sizes: numbers by the names that the file uses, or by input and position:
            ``{"batch": 1}``, ``{"x.0": 1}``. A dimension without a name is called ``x_0``.
        constants: arrays for inputs that are the same in every call (a sample rate, axes); they
            are inputs of the program no more, and may decide shapes and branches.
        dynamic: also take what only an interpreter runs (`irc.interpret.dynamic`): sizes that are
            known when it runs, sequences, strings, element types that flow lacks.

    Raises:
        IrcError: ``file-missing``, ``not-onnx``, ``onnx-version``, ``onnx-invalid``,
            ``external-data``, ``op-unsupported``, ``size-unbound``, ``size-unknown``; an
            `IrcErrors` where there are several.
    """
    source = prepare(read_model(model))
    numbers = by_name(source.model.graph.input, sizes or {})
    return Importer(source, numbers, constants, dynamic=dynamic).run()
