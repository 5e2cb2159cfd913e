"""Ops that torch, ONNX or a package declares: what ``flow.extern`` runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from irc.errors import IrcError
from irc.ops.custom import declaration
from irc.ops.names import OWN
from irc.runtime import effects
from irc.runtime.dtypes import dtypes
from irc.runtime.flow_ops.signature import Attrs, Results

if TYPE_CHECKING:
    import torch

Json: TypeAlias = dict[str, Any] | list[Any] | str | float | None
"""An argument of an op in its JSON form."""


def prepared(
    attrs: Attrs, results: Results, fixed: Collection[int]
) -> Callable[[Sequence[torch.Tensor]], list[torch.Tensor]] | None:
    """Return what runs an op again and again: its name and its arguments are read once.

    None for what is neither torch's nor a cell over time with weights among its ``fixed`` operands;
    :func:`irc.runtime.library.run` runs it.
    """
    target: str = attrs["target"]
    if target in (*CELLS, "onnx::DynamicQuantizeLSTM"):
        from irc.runtime import onnx_library

        arguments = json.loads(attrs["arguments"])
        return onnx_library.prepared_cell(target, arguments, results, fixed)
    if target.startswith(("onnx::", OWN)):
        return None
    fill = calling(json.loads(attrs["arguments"]))
    is_public = _is_public(target)
    op: Callable[..., Any] | None = None

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal op
        if op is None:
            op = _operator(target)
        if not is_public:
            inputs = [x.contiguous() for x in inputs]
        positional, keywords = fill(inputs)
        return _tensors(op(*positional, **keywords))

    return run


def run(attrs: Attrs, inputs: list[torch.Tensor], results: Results) -> Any:
    """Run an op of a library.

    Args:
        attrs: those of the ``flow.extern``.
        inputs: operands.
        results: shape and dtype of each result, as the op states them.

    Raises:
        IrcError: ``op-undeclared``, where this process has no such op.
    """
    target: str = attrs["target"]
    if target.startswith("onnx::"):
        from irc.runtime import onnx_library
        from irc.runtime.onnx_ops.run import decoded

        return onnx_library.run(target, decoded(attrs["arguments"]), inputs, results)
    arguments = json.loads(attrs["arguments"])
    positional, keywords = called_with(arguments, _as_written_for(target, inputs))
    if target == effects.TARGET:
        return effects.run(_operator, positional, keywords)
    return _tensors(_operator(target)(*positional, **keywords))


def _tensors(returned: Any) -> list[torch.Tensor]:
    import torch

    several = isinstance(returned, tuple | list)
    flat: Sequence[Any] = cast("Sequence[Any]", returned) if several else (returned,)
    return [value for value in flat if isinstance(value, torch.Tensor)]


def _as_written_for(target: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return operands as an op may read them: torch's public ops read any strides.

    Its private ones and a package's own may count on the strides that their callers take care of,
    and read beyond a tensor that a plan laid otherwise (a convolution's result, channels last).
    What looks at memory itself means that of a contiguous operand.
    """
    return inputs if _is_public(target) else [x.contiguous() for x in inputs]


def _is_public(target: str) -> bool:
    return target.startswith("aten::") and not target.startswith(("aten::_", *MEMORY))


def _operator(target: str) -> Callable[..., Any]:
    """Return the reference that an op's declaration gives, else torch's own op.

    Raises:
        IrcError: ``op-undeclared``, where this process has neither.
    """
    known = declaration(target)
    if known is not None and (reference := known.run()) is not None:
        return reference
    if (op := own_op(target)) is None:
        raise IrcError(
            "op-undeclared",
            f"this process has no op {target}",
            because="no package registers it with torch or under the entry point 'irc.ops'",
            help=f"import the file that defines {target} before (irc run --import FILE.py), or "
            "declare an entry point",
        )
    return op


def own_op(target: str) -> Callable[..., Any] | None:
    """Return torch's op of a name, ``namespace::name.overload``; None where it has none."""
    import torch

    namespace, _, rest = target.partition("::")
    name, _, overload = rest.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
    except AttributeError:
        return None


def called_with(
    arguments: Sequence[Any], inputs: Sequence[torch.Tensor]
) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments of a ``flow.extern`` with its operands in place."""
    positional, keywords = arguments
    # A keyword may be called "dtype", as the JSON form of one is.
    return _fill(positional, inputs), {k: _fill(v, inputs) for k, v in keywords.items()}


def calling(
    arguments: Sequence[Any],
) -> Callable[[Sequence[torch.Tensor]], tuple[list[Any], dict[str, Any]]]:
    """Return :func:`called_with` for the arguments of an op that is run again and again."""
    fills = [_filling(value) for value in arguments[0]]
    named = {name: _filling(value) for name, value in arguments[1].items()}

    def fill(inputs: Sequence[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        return [each(inputs) for each in fills], {n: each(inputs) for n, each in named.items()}

    return fill


def _filling(value: Json) -> Callable[[Sequence[torch.Tensor]], Any]:
    """Return what :func:`_fill` does with a value; what needs no operands is made once."""
    match value:
        case {"operand": index}:
            return itemgetter(index)
        case {"device": "here"}:
            return lambda inputs: inputs[0].device if inputs else "cpu"
        case list() if _reads(value):
            fills = [_filling(item) for item in value]
            return lambda inputs: [fill(inputs) for fill in fills]
        case dict() if _reads(value):
            return lambda inputs: _fill(value, inputs)
        case _:
            fixed = _fill(value, ())
            # An op may keep a list and write to it: each call gets its own.
            return (lambda _: [*fixed]) if isinstance(fixed, list) else lambda _: fixed


def _reads(value: Json) -> bool:
    """True where a value has an operand in it, or the place where the operands are."""
    match value:
        case {"operand": _} | {"device": "here"}:
            return True
        case dict():
            return any(map(_reads, value.values()))
        case list():
            return any(map(_reads, value))
        case _:
            return False


def _fill(value: Json, inputs: Sequence[torch.Tensor]) -> Any:
    """Put operands, dtypes, the device and special floats in place of their JSON forms."""
    match value:
        case {"operand": index}:
            place: int = index
            return inputs[place]
        case {"dtype": name}:
            return dtypes()[name]
        case {"device": "here"}:
            return inputs[0].device if inputs else "cpu"
        case {"float": text}:
            return float(text)
        case {"complex": [real, imaginary]}:
            return complex(real, imaginary)
        case dict():
            return {key: _fill(item, inputs) for key, item in value.items()}
        case list():
            return [_fill(item, inputs) for item in value]
        case _:
            return value


CELLS = ("onnx::RNN", "onnx::GRU", "onnx::LSTM")
"""Ops that pack their weights."""

MEMORY = ("aten::as_strided", "aten::resize", "aten::view.dtype", "aten::view_as_complex")
"""How the names of ops begin that look at memory, not at numbers."""
