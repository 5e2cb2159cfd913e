"""JSON from outside: limits first, then strict decoding into dataclasses.

Python's decoder recurses, keeps the last of two equal keys and accepts NaN; a plan that somebody
edited or sent must fail with one message that names the place instead.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from irc.errors import IrcError

MAX_BYTES = 64 << 20
MAX_DEPTH = 32
MAX_DIGITS = 40
SCALARS = json.JSONEncoder(allow_nan=False)
"""Prints what holds no other values."""
T = TypeVar("T")


def corrupt(message: str, where: str = "") -> IrcError:
    """Return the error for a damaged plan."""
    return IrcError(
        "plan-corrupt", message, where=where, help="copy the folder again, or compile again"
    )


def parse(text: str | bytes, where: str) -> Any:
    """Parse JSON within limits.

    Raises:
        IrcError: ``plan-corrupt``: not UTF-8 or JSON, too large, too deep, a key given twice, NaN.
    """
    if len(text) > MAX_BYTES:
        raise corrupt(f"{len(text)} bytes of JSON; at most {MAX_BYTES} are read", where)
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        _check_depth(text, where)
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise corrupt(f"not valid JSON: {error}", where) from None


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse JSON that must be an object.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    data = parse(text, where)
    _expect(data, dict, where)
    return data


def _check_depth(text: str, where: str) -> None:
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)
    if re.search(rf"\d{{{MAX_DIGITS + 1}}}", bare):
        raise corrupt(f"a number of over {MAX_DIGITS} digits", where)
    depth = 0
    for bracket in re.findall(r"[\[{}\]]", bare):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise corrupt(f"nested over {MAX_DEPTH} deep", where)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key is given twice")
    return unique


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a number of JSON")


def dump(value: Any) -> str:
    """Print JSON so that equal values print equally: no options, no hash order.

    It is ``json.dumps`` with an indent of 1, for which Python has no C code, in half the time.

    Raises:
        ValueError: for numbers that are not finite.
    """
    pieces: list[str] = []
    _write(value, "\n", pieces)
    pieces.append("\n")
    return "".join(pieces)


def _write(value: Any, line: str, pieces: list[str]) -> None:
    """Append the text of a value; ``line`` begins a line of what it stands in."""
    if isinstance(value, str):
        pieces.append(encode_basestring_ascii(value))
    elif type(value) is int:
        pieces.append(repr(value))
    elif isinstance(value, dict):
        first = before = f"{{{line} "
        for key, item in cast("dict[Any, Any]", value).items():
            name = encode_basestring_ascii(key) if type(key) is str else f'"{SCALARS.encode(key)}"'
            pieces += (before, name, ": ")
            _write(item, f"{line} ", pieces)
            before = f",{line} "
        pieces.append("{}" if before is first else f"{line}}}")
    elif isinstance(value, list | tuple):
        first = before = f"[{line} "
        for item in cast("list[Any]", value):
            pieces.append(before)
            _write(item, f"{line} ", pieces)
            before = f",{line} "
        pieces.append("[]" if before is first else f"{line}]")
    else:
        pieces.append(SCALARS.encode(value))


def encode(value: Any) -> Any:
    """Turn dataclasses into JSON values; fields that have their default are left out."""
    if isinstance(value, str | int):
        return value
    if (known := _defaults(type(cast("object", value)))) is not None:
        return {
            name: encode(item)
            for name, default in known
            if (item := getattr(value, name)) != default
        }
    if isinstance(value, tuple | list):
        return [encode(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(k): encode(item) for k, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


@cache
def _defaults(cls: type[Any]) -> tuple[tuple[str, Any], ...] | None:
    """Return names and defaults of a dataclass's fields; None for another class."""
    if not is_dataclass(cls):
        return None
    return tuple((field.name, field.default) for field in fields(cls))


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


def decode(kind: Any, data: Any, where: str) -> Any:
    """Turn JSON values into what a type says, strictly.

    Raises:
        IrcError: ``plan-corrupt``, with the path of the value that does not fit.
    """
    if kind is Any:
        return _attribute(data)
    if kind is float and type(data) is int:
        return float(data)
    if kind in (int, str, float, bool):
        if type(data) is not kind:
            raise corrupt(f"expected {kind.__name__}, got {str(data)[:40]!r}", where)
        return data
    if is_dataclass(kind):
        return _decode_dataclass(cast("type[Any]", kind), data, where)
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _decode_tuple(args, data, where)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        _expect(data, dict, where)
        return {key: decode(args[1], item, f"{where}.{key[:40]}") for key, item in data.items()}
    if origin is Literal:
        if not isinstance(data, str) or data not in args:
            raise corrupt(f"expected one of {', '.join(args)}, got {str(data)[:40]!r}", where)
        return data
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        return _decode_union([a for a in args if a is not type(None)], data, where)
    raise TypeError(f"no decoder for {kind}")


def _decode_dataclass(cls: type[Any], data: Any, where: str) -> Any:
    _expect(data, dict, where)
    hints = _hints(cls)
    if unknown := set(data) - set(hints):
        raise corrupt(f"unknown key {min(unknown)[:40]!r}", where)
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name in data:
            values[field.name] = decode(
                hints[field.name], data[field.name], f"{where}.{field.name}"
            )
        elif field.default is MISSING and field.default_factory is MISSING:
            raise corrupt(f"key '{field.name}' is missing", where)
    return cls(**values)


def _decode_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _expect(data, list, where)
    if args[-1] is Ellipsis:
        return tuple(decode(args[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(data) != len(args):
        raise corrupt(f"expected {len(args)} items, got {len(data)}", where)
    return tuple(
        decode(kind, item, f"{where}[{i}]")
        for i, (kind, item) in enumerate(zip(args, data, strict=True))
    )


def _decode_union(kinds: list[Any], data: Any, where: str) -> Any:
    if len(kinds) == 1:
        return decode(kinds[0], data, where)
    # The members of a union are dataclasses told apart by the field `kind`.
    _expect(data, dict, where)
    for cls in kinds:
        if data.get("kind") in get_args(_hints(cls)["kind"]):
            return _decode_dataclass(cls, data, where)
    raise corrupt(f"unknown kind {str(data.get('kind'))[:40]!r}", where)


def _attribute(data: Any) -> Any:
    # Attributes of ops: lists come back as the tuples they were.
    if isinstance(data, list):
        return tuple(_attribute(item) for item in cast("list[Any]", data))
    if isinstance(data, dict):
        items = cast("dict[str, Any]", data)
        if set(items) == {"float"} and items["float"] in ("inf", "-inf", "nan"):
            return float(items["float"])
        return {key: _attribute(item) for key, item in items.items()}
    return data


def _expect(data: Any, kind: type, where: str) -> None:
    if type(data) is not kind:
        name = "an object" if kind is dict else "a list"
        raise corrupt(f"expected {name}, got {str(data)[:40]!r}", where)
