"""A reproducer without what is the user's own: names of tensors, files, folders and people."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from irc.dialects.builder import functions
from irc.dialects.text import dump, load
from irc.pipeline.failure import Failure
from irc.pipeline.reproducer import PROGRAM, Reproducer

PACKAGES = ("irc", "xdsl", "torch", "onnx", "numpy", "networkx", "highspy", "llvmlite")
"""Whose lines a traceback keeps."""
LIBRARIES = frozenset({"aten", "prims", "irc", "onnx", "torchvision", "quantized", "higher_order"})
"""Whose ops keep their names; an op of another library is the user's."""
FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (\S+)\n((?:    .*\n)*)')
PLACE = re.compile(
    r"""(?P<quote>['"])[^'"\n]*[\\/][^'"\n]*(?P=quote)"""  # whatever is quoted, blanks in it too
    r"|(?:file://)?(?:~|[A-Za-z]:)?(?:[\\/][\w.@+-](?:[\w.@+ -]*[\w.@+-])?(?=[\\/]))+[\\/][\w.@+-]+"
    r"|\b[\w.+-]+@[\w-]+\.[\w.]+"
)
"""A path of at least two folders, or an address."""
OWN_OP = re.compile(r"\b([A-Za-z_]\w*)::(\w+)")
WORDS = frozenset({
    "arguments", "axis", "distribution", "fn", "kind", "mesh", "mode", "op", "phase", "role",
    "roles", "spec", "target", "template",
})  # fmt: skip
"""Attributes whose texts are words of irc's, and may be names of the user's as well."""
WORD = 3
"""Names of fewer letters say nothing, and are parts of words of irc's."""


def anonymous(reproducer: Reproducer) -> Reproducer:
    """Return a reproducer of a program in which nothing is named.

    Arguments and results are called ``x0``, ``x1``, lines of source are left out, ops of libraries
    that irc does not know are ``own::op0``, and a traceback has the lines of irc and of what it is
    built on. What the program computes, with its shapes and literals, is what fails, and stays.
    """
    module = load(reproducer.program, PROGRAM)
    names = _own_names(module)
    _rename(module, names)
    text = dump(module)
    for own in sorted({f"{a}::{b}" for a, b in OWN_OP.findall(text) if a not in LIBRARIES}):
        names[own] = f"own::op{len(names)}"
    text = _replaced(text, {own: new for own, new in names.items() if "::" in own})
    failure, stage = reproducer.failure, reproducer.stage
    place = failure.place if failure.place.partition(".")[0] in PACKAGES else ""
    return replace(
        reproducer,
        program=text,
        stage=replace(stage, passes=without_names(stage.passes, names)),
        failure=Failure(failure.kind, place, without_names(failure.message, names)),
        traceback=_of_packages(reproducer.traceback, names),
    )


def without_names(text: str, names: Mapping[str, str] | None = None) -> str:
    """Return a text without names that are known, and without paths, addresses, user and host.

    >>> without_names("cannot read /home/ada/secret/net.py: layer.w has 3 rows", {"layer.w": "x0"})
    'cannot read <path>: x0 has 3 rows'
    """
    text = _replaced(text, names or {})
    text = PLACE.sub(lambda m: f"{m['quote'] or ''}<path>{m['quote'] or ''}", text)
    return _replaced(text, dict.fromkeys(_people(), "<user>"))


def _people() -> Iterable[str]:
    with suppress(Exception):  # there may be no such user, or no host name
        yield getpass.getuser()
    with suppress(Exception):
        yield socket.gethostname()
    with suppress(RuntimeError):
        yield Path.home().name


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for own in sorted(names, key=len, reverse=True):
        if len(own) >= WORD:
            text = re.sub(rf"(?<![\w]){re.escape(own)}(?![\w])", names[own], text)
    return text


def _own_names(module: ModuleOp) -> dict[str, str]:
    """Return what arguments and results are called, with another name for each."""
    names: dict[str, str] = {}
    for func in functions(module).values():
        for attrs in (*_ends(func.arg_attrs), *_ends(func.res_attrs)):
            own = attrs.data.get("name")
            if isinstance(own, StringAttr):
                names.setdefault(own.data, f"x{len(names)}")
    return names


def _ends(attrs: ArrayAttr[DictionaryAttr] | None) -> Iterable[DictionaryAttr]:
    return () if attrs is None else attrs.data


def _rename(module: ModuleOp, names: Mapping[str, str]) -> None:
    """Rename arguments and results wherever they are named, and leave lines of source out."""

    def renamed(key: str, attr: Attribute) -> Attribute:
        if isinstance(attr, StringAttr):
            if key in ("loc", "pin"):
                return StringAttr("unknown")
            return attr if key in WORDS else StringAttr(names.get(attr.data, attr.data))
        if isinstance(attr, ArrayAttr):
            parts = cast("ArrayAttr[Attribute]", attr).data
            return ArrayAttr([renamed(key, each) for each in parts])
        if isinstance(attr, DictionaryAttr):
            return DictionaryAttr({name: renamed(name, each) for name, each in attr.data.items()})
        return attr

    for op in module.walk():
        for known in (op.attributes, op.properties):
            for key, attr in list(known.items()):
                known[key] = renamed(key, attr)
        for result in op.results:
            result.name_hint = None
    for key, attr in module.attributes.items():  # accounts of passes, JSON that names values
        if isinstance(attr, StringAttr):
            dotted = {own: new for own, new in names.items() if "." in own or "_" in own}
            module.attributes[key] = StringAttr(_replaced(attr.data, dotted))


def _of_packages(text: str, names: Mapping[str, str]) -> str:
    """Return a traceback with the frames of packages that irc is built on alone."""

    def frame(found: re.Match[str]) -> str:
        parts = Path(found[1]).parts
        for package in PACKAGES:
            if package in parts[:-1]:
                at = len(parts) - 1 - parts[::-1].index(package)
                line = f'  File "{"/".join(parts[at:])}", line {found[2]}, in {found[3]}\n'
                return line.replace("/", "|") + found[4]
        return "  (a frame of other code)\n"

    kept = re.sub(r"(?:  \(a frame of other code\)\n)+", "  (frames of other code)\n",
                  FRAME.sub(frame, text))  # fmt: skip
    # Paths of packages are no one's own: they pass the filter of paths as other letters.
    return without_names(kept, names).replace("|", "/")
