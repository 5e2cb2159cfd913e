"""Running ONNX ops: the joined table, one op, and the bodies of If, Loop and Scan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from irc.errors import IrcError
from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import FLOW, Item, as_item, as_tensor, literal

PREFIX = "onnx::node::"

_ARRAY: Any = np.ndarray
_MAP: Any = dict
_TUPLE: Any = tuple
_WHOLE: Any = (np.ndarray, list, dict)
"""Classes that items are told by; what is in them is any."""

Functions: TypeAlias = Callable[[str, list[Any]], list[Any]]
"""Calls a function of the program by name: a body of If, Loop or Scan."""

CATEGORIES = (
    "attention", "bits", "casts", "control", "convolution", "generators", "image", "indexing",
    "logic", "losses", "maps", "math", "ml", "norms", "pooling", "quantization", "recurrent",
    "reductions", "regions", "resize", "sequence", "shapes", "signal", "svm", "text", "training",
    "trees", "units",
)  # fmt: skip
"""Modules of this package, each with a table ``KERNELS`` from op type to kernel.

Ops of other domains than ONNX's own are written ``domain::Op``.
"""


@cache
def kernels() -> Kernels:
    """Return all kernels by op type."""
    table: dict[str, Any] = {}
    for name in CATEGORIES:
        for key, kernel in import_module(f"irc.runtime.onnx_ops.{name}").KERNELS.items():
            assert key not in table, key
            table[key] = kernel
    return table


def key_of(op: str, domain: str) -> str:
    """Return the name of an op in the table.

    >>> key_of("Add", ""), key_of("Binarizer", "ai.onnx.ml")
    ('Add', 'ai.onnx.ml::Binarizer')
    """
    return op if domain in ("", "ai.onnx") else f"{domain}::{op}"


@lru_cache(maxsize=4096)
def decoded(text: str) -> Any:
    """Return the JSON of an op's arguments: the same object for the same text.

    What kernels keep from call to call lies in it, under ``memo``; the rest is not to be changed.
    """
    return json.loads(text)


def run_extern(
    target: str,
    arguments: Sequence[Any],
    inputs: Sequence[Item],
    wanted: Sequence[str | None],
    functions: Functions | None = None,
) -> list[Item]:
    """Run an extern op of a program.

    Args:
        target: ``onnx::node::Unique``.
        arguments: the op's decoded JSON: positions (an operand's number, or null) and options.
        inputs: operands: torch tensors, or what an earlier op gave.
        wanted: for each result, the dtype of a tensor, or None for a value of another kind.
        functions: calls the bodies that are functions of the program.

    Raises:
        IrcError: ``input-mismatch`` where the op cannot run on these values.
        ValueError: where a result is not of the dtype that the program states.
    """
    items = [as_item(value) for value in inputs]
    results = run_items(target, arguments, items, wanted, functions)
    return [
        value if dtype is None else as_tensor(value)
        for value, dtype in zip(results, wanted, strict=False)
    ]


def run_items(
    target: str,
    arguments: Sequence[Any],
    items: Sequence[Item],
    wanted: Sequence[str | None],
    functions: Functions | None = None,
) -> list[Item]:
    """Run an extern op on arrays and other items; see :func:`run_extern`.

    Raises:
        IrcError: ``input-mismatch`` where the op cannot run on these values.
        ValueError: where a result is not of the dtype that the program states.
    """
    positions, options = arguments
    operands = [None if p is None else items[p["operand"]] for p in positions]
    env = {slot: items[place] for slot, place in options.get("captures", ())}
    key = target.removeprefix(PREFIX)
    memo = options.setdefault("memo", {})
    attributes = options["attributes"]
    if functions is not None:
        attributes = {n: _body(v, functions, items) for n, v in attributes.items()}
    try:
        results = run_node(key, options["version"], operands, attributes, len(wanted), env, memo)
    except ImportError as error:
        raise IrcError(
            "package-missing", f"{key} runs with {error.name}, which is not installed",
            help=f"pip install {error.name}",
        ) from None  # fmt: skip
    except (
        ArithmeticError,
        LookupError,
        MemoryError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        shown = ", ".join(_kind(value) for value in operands)
        raise IrcError(
            "input-mismatch", f"{key} cannot run on these values: {error}",
            because=f"its operands are {shown}",
        ) from error  # fmt: skip
    return [
        value if dtype is None else _array(target, value, dtype)
        for value, dtype in zip(results, wanted, strict=False)
    ]


TORCH = frozenset({
    "CausalConvWithState", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Erf", "GRU",
    "Gelu", "GridSample", "LSTM", "QLinearConv", "RNN",
})  # fmt: skip
"""Ops whose kernels are torch's."""


def needs_torch(target: str) -> bool:
    """True for an op whose kernel is torch's: ``onnx::node::Conv``."""
    return target.removeprefix(PREFIX) in TORCH


def functions_of(arguments: Sequence[Any]) -> list[str]:
    """Return the names of the functions that an extern op calls, from its decoded JSON."""
    options: dict[str, Any] = (
        arguments[1] if len(arguments) > 1 and isinstance(arguments[1], _MAP) else {}
    )
    values = options.get("attributes", {}).values()
    return [
        value["function"] for value in values if isinstance(value, _MAP) and "function" in value
    ]


def _body(value: Any, functions: Functions, items: Sequence[Item]) -> Any:
    """Return an attribute that is a body as what runs it; others as they are."""
    if not (isinstance(value, _MAP) and "function" in value):
        return value
    captured = [items[place] for place in value["captures"]]
    return partial(_called, functions, value["function"], captured)


def _called(functions: Functions, name: str, captured: list[Item], *inputs: Item) -> list[Item]:
    return [as_item(value) for value in functions(name, [*inputs, *captured])]


def _kind(value: Item) -> str:
    return (
        f"{list(value.shape)} {value.dtype}"
        if isinstance(value, _ARRAY)
        else str(type(value).__name__)
    )


def _array(target: str, value: Item, dtype: str) -> Item:
    if not isinstance(value, _ARRAY) or value.dtype != FLOW[dtype]:
        kind = value.dtype if isinstance(value, _ARRAY) else type(value).__name__
        raise ValueError(f"{target} gives {kind}, the program says {dtype}")
    return value


def run_node(
    key: str,
    version: int,
    operands: Sequence[Item],
    attributes: Mapping[str, Any],
    outputs: int,
    env: Mapping[int, Item],
    memo: dict[str, Any] | None = None,
) -> list[Item]:
    """Run one op.

    Args:
        key: its name in the table.
        version: the opset in whose meaning it is read.
        operands: in order; None where an optional one is absent.
        attributes: in their JSON form.
        outputs: how many results are wanted.
        env: what bodies among the attributes see of what surrounds them.
        memo: of this node, from call to call.
    """
    memo = {} if memo is None else memo
    values = _attributes(attributes, env, memo)
    call = Call(key, version, operands, values, outputs, memo)
    with np.errstate(all="ignore"):
        returned: Any = kernels()[key](call)
    results = returned if isinstance(returned, _TUPLE) else (returned,)
    return [_normal(value) for value in results]


def _normal(value: Any) -> Item:
    if value is None or isinstance(value, _WHOLE):
        return value
    if isinstance(value, str):
        return np.array(value, object)
    return np.asarray(value) if isinstance(value, np.generic | int | float) else as_item(value)


def _attributes(
    attributes: Mapping[str, Any], env: Mapping[int, Item], memo: dict[str, Any]
) -> Mapping[str, Any]:
    """Return attributes as Python values: once, unless one is a body, for it sees the call."""
    values: Mapping[str, Any] | None = memo.get("attributes")
    if values is None:
        values = {name: _attribute(value, env) for name, value in attributes.items()}
        if not any(isinstance(value, partial) for value in values.values()):
            memo["attributes"] = values
    return values


def _attribute(value: Any, env: Mapping[int, Item]) -> Any:
    match value:
        case {"graph": body}:
            return partial(run_body, body, env)
        case {"data": _} | {"strings": _}:
            return literal(value)
        case {"float": text}:
            return float(text)
        case list():
            return [
                _attribute(each, env)
                for each in value  # pyright: ignore[reportUnknownVariableType]
            ]
        case _:
            return value


def run_body(body: Mapping[str, Any], env: Mapping[int, Item], *inputs: Item) -> list[Item]:
    """Run a subgraph.

    Args:
        body: slots of its inputs and outputs, and its nodes in order: key, version,
            slots of operands and results (-1: absent), attributes.
        env: values of slots outside it.
        inputs: its inputs.
    """
    values = dict(env)
    values.update(zip(body["in"], inputs, strict=False))
    for key, version, read, written, attributes in body["nodes"]:
        operands = [None if slot < 0 else values[slot] for slot in read]
        results = run_node(key, version, operands, attributes, len(written), values)
        values.update((s, v) for s, v in zip(written, results, strict=False) if s >= 0)
    return [values[slot] for slot in body["out"]]
