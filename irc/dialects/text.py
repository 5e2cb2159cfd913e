"""Text of any level: parse with limits, print, clone.

xDSL's parser trusts its input; text from outside is measured first, so that a hostile file ends in one
message and not in exhausted memory (limits: bracket depth, digits of one number, total size).
"""

from __future__ import annotations

import re

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from irc.dialects.comm import Comm
from irc.dialects.flow import Flow
from irc.dialects.sbp import Sbp
from irc.dialects.task import Task
from irc.errors import IrcError

MAX_DEPTH = 200
MAX_DIGITS = 40
MAX_BYTES = 256 << 20


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
        module = Parser(context(), text, name).parse_module()
        module.verify()
    except ParseError as error:
        raise IrcError("ir-syntax", f"{name} does not parse: {error}") from None
    except (VerifyException, ValueError) as error:
        raise IrcError("ir-invalid", f"{name} is not valid: {error}") from None
    except RecursionError:
        raise IrcError("ir-too-large", f"{name} is nested too deeply") from None
    return module


def dump(module: ModuleOp) -> str:
    """Print a module; :func:`load` reads it back."""
    return str(module) + "\n"


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
    if found := re.search(r"[0-9]{%d}" % (MAX_DIGITS + 1), text):
        raise IrcError(
            "ir-too-large", f"{name} holds a number of over {MAX_DIGITS} digits at {found.start()}"
        )
    if "dense<" in text or "dense_resource<" in text:
        raise IrcError(
            "ir-invalid", f"{name} holds a dense attribute; irc keeps weights outside the text"
        )
    depth = 0
    for bracket in re.findall(r"[(\[{<>}\])]", re.sub(r'"(?:[^"\\]|\\.)*"|->', "", text)):
        depth += 1 if bracket in "([{<" else -1
        if depth > MAX_DEPTH:
            raise IrcError("ir-too-large", f"{name} nests brackets over {MAX_DEPTH} deep")
