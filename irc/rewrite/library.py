"""Where rules come from: those of irc, files that the user names, packages that bring some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import cast

from xdsl.dialects.builtin import ArrayAttr, BytesAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from irc.dialects.text import check_limits
from irc.errors import IrcError
from irc.rewrite.notation import parse_rules
from irc.rewrite.terms import Rule

SUFFIX = ".rules"
MAX_BYTES = 1 << 20
KEPT = "irc.rules"
"""The attribute of a module that keeps the text of the user's rules."""


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """The rules of irc, file by file."""
    folder = files("irc.rewrite") / "rules"
    texts = sorted((each.name, each) for each in folder.iterdir() if each.name.endswith(SUFFIX))
    return tuple(
        rule
        for name, each in texts
        for rule in parse_rules(each.read_text(encoding="utf-8"), where=name)
    )


def rules_of(paths: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules of files, then those of irc: a user's rule comes first.

    Raises:
        IrcError: ``file-missing`` or ``rewrite-syntax``.
    """
    return (*own_rules(read_texts(paths)), *builtin_rules())


def own_rules(texts: Iterable[tuple[str, str]]) -> tuple[Rule, ...]:
    """Return the rules of (name, text) of files, without those of irc.

    Raises:
        IrcError: ``rewrite-syntax``.
    """
    return tuple(rule for name, text in texts for rule in parse_rules(text, where=name))


def read_texts(paths: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return name and text of files of rules.

    Raises:
        IrcError: ``file-missing``, or ``rewrite-syntax`` for what is no text.
    """
    return tuple((Path(path).name, _read(Path(path))) for path in paths)


def keep_texts(module: ModuleOp, texts: Sequence[tuple[str, str]]) -> None:
    """Write the rules that a module was rewritten with into it, for whoever asks later."""
    if texts:
        module.attributes[KEPT] = ArrayAttr(
            [DictionaryAttr({"name": StringAttr(n), "text": StringAttr(t)}) for n, t in texts]
        )


def kept_texts(module: ModuleOp) -> tuple[tuple[str, str], ...]:
    """Return name and text of the rules that :func:`keep_texts` left; none in another module."""
    attr = module.attributes.get(KEPT)
    if not isinstance(attr, ArrayAttr):
        return ()
    return tuple(map(_entry, cast("ArrayAttr[Attribute]", attr)))


def _entry(kept: Attribute) -> tuple[str, str]:
    if isinstance(kept, DictionaryAttr):
        name, text = (_text(kept.data.get(key)) for key in ("name", "text"))
        if name is not None and text is not None:
            return name, text
    raise IrcError("plan-corrupt", f"{KEPT} holds no names and texts of rules")


def _text(kept: Attribute | None) -> str | None:
    """Return a string; xDSL reads one that is not ASCII as bytes."""
    if isinstance(kept, BytesAttr):
        return kept.data.decode("utf-8", "replace")
    return kept.data if isinstance(kept, StringAttr) else None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise IrcError("rewrite-syntax", f"'{path}' has over {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise IrcError(
            "rewrite-syntax", f"'{path}' is no text",
            because=f"at byte {error.start} it is not UTF-8",
            help=f"name a text file of rewrite rules, such as my{SUFFIX}",
        ) from None  # fmt: skip
    except (OSError, ValueError) as error:
        raise IrcError(
            "file-missing", f"cannot read the rules in '{path}'",
            because=str(getattr(error, "strerror", None) or error),
            help=f"name a text file of rewrite rules, such as my{SUFFIX}",
        ) from error  # fmt: skip
    # A plan keeps the text, and has to be read again.
    try:
        check_limits(text, path.name)
    except IrcError as error:
        raise IrcError("rewrite-syntax", error.message) from None
    return text
