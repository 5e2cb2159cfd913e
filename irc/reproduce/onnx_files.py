"""Reducing an ONNX file that irc does not compile, or compiles to other numbers."""

from __future__ import annotations

from pathlib import Path

import onnx

from irc.errors import IrcError
from irc.frontends.onnx.external import to_any_array
from irc.frontends.onnx.order import sort_nodes
from irc.frontends.onnx.read import Source, read_model
from irc.reproduce.onnx_failure import DIFFERS, Apart
from irc.reproduce.onnx_models import size_of, smallest_model
from irc.reproduce.small import Small


def reduce_onnx(path: Path, out: Path | None, seconds: float) -> Small:
    """Reduce a file and write a smaller one that fails in the same way.

    Args:
        path: the file; its external data lies beside it.
        out: the file to write; beside ``path`` by default.
        seconds: that the search may take, from the first failure on.

    Raises:
        IrcError: ``reduce-nothing`` where irc computes what others do; ``not-onnx``,
            ``file-missing``, ``onnx-version``, ``output-write``.
    """
    source = read_model(path)
    stored = {tensor.name for tensor in source.model.graph.initializer}
    for graph_input in source.model.graph.input:
        if graph_input.name not in stored and not _is_drawn(graph_input.type):
            raise IrcError(
                "option-value",
                f"input '{graph_input.name}' is no tensor of numbers, and others are not drawn",
                help="irc compile says whether irc takes the file",
            )
    model = contained(source)
    sort_nodes(model.graph)
    with Apart() as apart:
        failure = apart.failure(model)
        if failure is None:
            raise IrcError(
                "reduce-nothing", f"irc compiles '{path}', and computes what the reference does"
            )
        smallest = smallest_model(model, failure, apart.failure, seconds)
        last = apart.failure(smallest.subject) or failure
    out = path.with_name(f"{path.stem}.small.onnx") if out is None else out
    try:
        out.write_bytes(smallest.subject.SerializeToString())
    except OSError as error:
        raise IrcError("output-write", f"cannot write '{out}': {error.strerror}") from error
    before, after = size_of(model), size_of(smallest.subject)
    again = f"irc reduce {out}" if last.kind == DIFFERS else f"irc compile {out} -o plan"
    note = f"{after[1]} of {before[1]} bytes of weights are in it"
    return Small(out, last, before[0], after[0], smallest.tries, smallest.is_minimal, again, note)


def _is_drawn(kind: onnx.TypeProto) -> bool:
    element = kind.tensor_type.elem_type
    return kind.HasField("tensor_type") and element != onnx.TensorProto.STRING


def contained(source: Source) -> onnx.ModelProto:
    """Return a model with its external data in it."""
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            array = onnx.numpy_helper.from_array(to_any_array(tensor, source), tensor.name)
            tensor.CopyFrom(array)
    return model
