"""Text of any level: parse with limits, print, clone.

xDSL's parser trusts its input; text from outside is measured first, so that a hostile file ends in
one message and not in exhausted memory (limits: bracket depth, digits of one number, total size).
"""

from __future__ import annotations

import re
import struct

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.mlir_lexer import MLIRTokenKind

from irc.dialects.comm import Comm
from irc.dialects.dominance import verify_module
from irc.dialects.flow_ops import Flow
from irc.dialects.printer import text_of
from irc.dialects.sbp import Sbp
from irc.dialects.task_ops import Task
from irc.errors import IrcError

MAX_DEPTH = 200
MAX_DIGITS = 40
MAX_BYTES = 256 << 20
MAX_ALIASED = 100_000
"""Attributes that aliases stand for, counted each time that one is named: an alias of aliases of
aliases is short as text, and grows with a power of its length."""
ALIAS = re.compile(r"([#!][A-Za-z_][\w$.-]*)(\s*=(?!=))?")
SKIPPED = re.compile(
    r"//[^\n]*|->"
    r'|"(?:[^"\\\n\v\f]|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*(?P<end>"?)'
)
"""Comments, arrows and strings, in which a bracket opens nothing. xDSL's lexer takes a time that is
exponential in the length of a string that nothing closes: that is looked for first, and here each
character is tried once."""


class IrParser(Parser):
    """xDSL's parser, which also reads what xDSL's printer writes for an infinity or NaN.

    They are printed as the bits of the f64, ``0x7ff0000000000000``.
    """

    def parse_optional_float(self, *, allow_negative: bool = True) -> float | None:
        token = self._current_token
        is_hex = token.kind is MLIRTokenKind.INTEGER_LIT and token.text[:2] == "0x"
        if is_hex and len(token.text) == 18:
            self._consume_token()
            (value,) = struct.unpack(">d", bytes.fromhex(token.text[2:]))
            return value
        return super().parse_optional_float(allow_negative=allow_negative)


def context() -> Context:
    """Return an xDSL context with every dialect of irc, builtin and func."""
    ctx = Context()
    for dialect in (Builtin, Func, Flow, Sbp, Comm, Task):
        ctx.load_dialect(dialect)
    return ctx


def load(text: str, name: str = "<text>") -> ModuleOp:
    """Parse and verify a module.

    Raises:
        IrcError: ``ir-too-large``, ``ir-syntax`` (with the line) or ``ir-invalid``.
    """
    check_limits(text, name)
    try:
        module = IrParser(context(), text, name).parse_module()
        verify_module(module)
    except ParseError as error:
        raise IrcError("ir-syntax", f"{name} does not parse: {error}") from None
    except (VerifyException, ValueError, OverflowError) as error:
        raise IrcError("ir-invalid", f"{name} is not valid: {error}") from None
    except RecursionError:
        raise IrcError("ir-too-large", f"{name} is nested too deeply") from None
    return module


def dump(module: ModuleOp) -> str:
    """Print a module; :func:`load` reads it back."""
    return text_of(module) + "\n"


def check_limits(text: str, name: str) -> None:
    """Refuse text that would exhaust the parser.

    Raises:
        IrcError: ``ir-too-large`` with the limit that is passed.
    """
    if len(text) > MAX_BYTES:
        raise IrcError(
            "ir-too-large", f"{name} has {len(text)} characters; at most {MAX_BYTES} are read"
        )
    if "\0" in text:
        raise IrcError("ir-syntax", f"{name} holds a NUL character")
    if match := re.search(rf"[0-9]{{{MAX_DIGITS + 1}}}", text):
        raise IrcError(
            "ir-too-large", f"{name} holds a number of over {MAX_DIGITS} digits at {match.start()}"
        )
    if "dense<" in text or "dense_resource<" in text:
        raise IrcError(
            "ir-invalid", f"{name} holds a dense attribute; irc keeps weights outside the text"
        )
    for match in SKIPPED.finditer(text):
        if match["end"] == "":
            line = text.count("\n", 0, match.start()) + 1
            raise IrcError(
                "ir-syntax", f"{name} does not parse: a string is not closed", where=f"line {line}"
            )
    bare = SKIPPED.sub("", text)
    _check_aliases(bare, name)
    depth = 0
    for bracket in re.findall(r"[(\[{<>}\])]", bare):
        depth += 1 if bracket in "([{<" else -1
        if depth > MAX_DEPTH:
            raise IrcError("ir-too-large", f"{name} nests brackets over {MAX_DEPTH} deep")


def _check_aliases(text: str, name: str) -> None:
    """Refuse aliases that stand for more than is read without them."""
    sizes: dict[str, int] = {}
    current, total = "", 0
    for match in ALIAS.finditer(text):
        if match[2]:
            current = match[1]
            sizes[current] = 1
            continue
        size = sizes.get(match[1], 1)
        total += size
        if current:
            sizes[current] += size
        if total > MAX_ALIASED:
            raise IrcError("ir-too-large", f"{name} has aliases for over {MAX_ALIASED} attributes")
