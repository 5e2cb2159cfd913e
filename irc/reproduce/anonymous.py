"""A reproducer without what is the user's own: names of tensors, sizes, files, folders, people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute

from irc.dialects.builder import functions
from irc.dialects.text import dump, load
from irc.pipeline.failure import Failure
from irc.pipeline.reproducer import PROGRAM, Reproducer
from irc.reproduce.private_text import (
    PACKAGES,
    WORD,
    exception_name,
    of_packages,
    replaced,
    without_names,
)

LIBRARIES = frozenset({"aten", "prims", "irc", "onnx", "torchvision", "quantized", "higher_order"})
"""Whose ops keep their names; an op of another library is the user's."""
OWN_OP = re.compile(r"\b([A-Za-z_]\w*)(?:::|\.)(\w+)")
WORDS = frozenset({
    "axis", "distribution", "fn", "kind", "mesh", "mode", "op", "phase", "role", "roles", "spec",
    "template",
})  # fmt: skip
"""Attributes whose texts are words of irc's, and may be names of the user's as well."""
ID = re.compile(r"[a-z]?\d*[a-z]?\d+[\w.]*|forward|backward|update|block_\d+|k\d+_\w+|[a-z]{1,2}")
"""What irc calls ops, by parts between slashes."""
FUNCTION = re.compile(r"forward|backward|update|block_\d+|k\d+_\w+|branch_\d+|body_\d+")
SIZES = re.compile(r"<\[([^\]\"]*)\]")


def anonymous(reproducer: Reproducer) -> Reproducer:
    """Return a reproducer of a program in which nothing is named.

    Arguments and results are called ``x0``, sizes ``s0``, functions ``f0``, lines of source are
    left out, ops of libraries that irc does not know are ``own::op0`` and take no text, and a
    traceback has the lines of irc and of what it is built on. What the program computes, with its
    shapes and its numbers, is what fails, and stays.
    """
    module = load(reproducer.program, PROGRAM)
    names = _own_names(module)
    _rename(module, names)
    sizes = _own_sizes(dump(module))
    text = SIZES.sub(lambda m: f"<[{replaced(m[1], sizes)}]", dump(module))
    text = replaced(text, sizes)
    failure, stage = reproducer.failure, reproducer.stage
    place = failure.place if failure.place.partition(".")[0] in PACKAGES else ""
    names |= sizes
    return replace(
        reproducer,
        program=text,
        stage=replace(stage, passes=without_names(stage.passes, names)),
        failure=Failure(exception_name(failure.kind), place, without_names(failure.message, names)),
        traceback=of_packages(reproducer.traceback, names),
    )


def _own_names(module: ModuleOp) -> dict[str, str]:
    """Return another name for each argument, result, function and op of the user's."""
    names: dict[str, str] = {}
    for name, func in functions(module).items():
        if not FUNCTION.fullmatch(name):
            names.setdefault(name, f"f{len(names)}")
        for attrs in (*_ends(func.arg_attrs), *_ends(func.res_attrs)):
            own = attrs.data.get("name")
            if isinstance(own, StringAttr):
                names.setdefault(own.data, f"x{len(names)}")
    for op in module.walk():
        target = op.properties.get("target")
        if isinstance(target, StringAttr) and (own := _own_op(target.data)):
            names.setdefault(own, f"own::op{len(names)}")
    return names


def _own_op(target: str) -> str:
    """Return what calls a user's op by name, "" for an op of a library."""
    match = OWN_OP.match(target)
    return match[0] if match is not None and match[1] not in LIBRARIES else ""


def _own_sizes(text: str) -> dict[str, str]:
    """Return another name for each named size, but for those that are words of the text as well."""
    named = {name for each in SIZES.findall(text) for name in re.findall(r"[A-Za-z_]\w*", each)}
    words = set(re.findall(r"([A-Za-z_]\w*) = |\.([A-Za-z_]\w*)|\"([A-Za-z_]\w*)\"", text))
    taken = {word for each in words for word in each}
    return {name: f"s{i}" for i, name in enumerate(sorted(named - taken)) if len(name) >= WORD}


def _ends(attrs: ArrayAttr[DictionaryAttr] | None) -> Iterable[DictionaryAttr]:
    return () if attrs is None else attrs.data


def _rename(module: ModuleOp, names: dict[str, str]) -> None:
    """Rename what is named wherever it is, and leave lines of source out."""
    for op in module.walk():
        target = op.properties.get("target")
        is_own = isinstance(target, StringAttr) and bool(_own_op(target.data))
        for known in (op.attributes, op.properties):
            for key, attr in list(known.items()):
                if isinstance(attr, SymbolRefAttr):
                    root = attr.root_reference.data
                    known[key] = SymbolRefAttr(names.get(root, root), attr.nested_references)
                elif key == "arguments" and isinstance(attr, StringAttr):
                    known[key] = StringAttr(_arguments(attr.data, names, is_own=is_own))
                else:
                    known[key] = _renamed(key, attr, names)
        inner = (arg for region in op.regions for block in region.blocks for arg in block.args)
        for value in (*op.results, *inner):
            value.name_hint = None


def _renamed(key: str, attr: Attribute, names: dict[str, str]) -> Attribute:
    if isinstance(attr, StringAttr):
        if key in ("loc", "pin"):
            return StringAttr("unknown")
        if key in WORDS:
            return attr
        if key in ("id", "sources", "results", "bucket"):
            return StringAttr("/".join(_id(part, names) for part in attr.data.split("/")))
        if attr.data in names:
            return StringAttr(names[attr.data])
        return StringAttr(without_names(attr.data, names))
    if isinstance(attr, ArrayAttr):
        parts = cast("ArrayAttr[Attribute]", attr).data
        return ArrayAttr([_renamed(key, each, names) for each in parts])
    if isinstance(attr, DictionaryAttr):
        return DictionaryAttr(
            {name: _renamed(name, each, names) for name, each in attr.data.items()}
        )
    return attr


def _id(part: str, names: dict[str, str]) -> str:
    if part in names or not ID.fullmatch(part):
        return names.setdefault(part, f"n{len(names)}_")
    return part


def _arguments(text: str, names: Mapping[str, str], *, is_own: bool) -> str:
    """Return the arguments of an op of a library, JSON, without texts of the user's."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return "text" if is_own else without_names(value, names)
        if isinstance(value, list):
            return [cleaned(each) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {key: cleaned(each) for key, each in cast("dict[str, Any]", value).items()}
        return value

    try:
        whole = cleaned(json.loads(text))
        if is_own and isinstance(whole, list) and isinstance(whole[-1], dict):
            by_name = cast("dict[str, Any]", whole[-1])
            whole[-1] = {f"argument{i}": value for i, value in enumerate(by_name.values())}
        return json.dumps(whole)
    except (ValueError, IndexError):
        return "[[], {}]"  # none of irc's: nothing of it is known
