"""The attribute that has a task mapping, and its text in a program."""

from __future__ import annotations

from itertools import product as cartesian
from math import prod

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Span

from irc.dialects.mapping import MAX_ENUMERATED, Task, TaskMapping, verify_form
from irc.errors import IrcError


def verify_coverage(mapping: TaskMapping) -> None:
    """Prove that every task is done exactly once; where workers are replicas, that often.

    By the strides of its digits (:mod:`irc.dialects.mapping_modes`), which needs no enumeration:
    in each dim the digits of workers and of slots, sorted by stride, must be a mixed-radix number.
    A subclass that says otherwise what a worker does is enumerated, up to 65,536 tasks.

    Raises:
        VerifyException: with the first task that is missed or done too often.
    """
    verify_form(mapping)
    if type(mapping).tasks is TaskMapping.tasks:
        from irc.dialects.mapping_modes import modes_of, verify_modes

        verify_modes(modes_of(mapping), str(mapping))
    elif prod(mapping.task_shape) <= MAX_ENUMERATED:
        _enumerate(mapping)


def _enumerate(mapping: TaskMapping) -> None:
    counts: dict[Task, int] = {}
    for worker in range(mapping.num_workers):
        for task in mapping.tasks(worker):
            counts[task] = counts.get(task, 0) + 1
            if counts[task] > mapping.replication:
                raise VerifyException(
                    f"{mapping} does task {task} twice (again by worker {worker})"
                )
    for task in cartesian(*map(range, mapping.task_shape)):
        if counts.get(task, 0) < mapping.replication:
            raise VerifyException(f"{mapping} misses task {task}")


def parse_mapping(text: str) -> TaskMapping:
    """Parse ``spatial(4, 2) * repeat(2, 2)`` (``grammar/mapping.lark``).

    Raises:
        IrcError: ``mapping-syntax``, naming the part that is wrong.
    """
    from irc.dialects.mapping_text import read_mapping

    return read_mapping(text)


@irdl_attr_definition
class MappingAttr(Data[TaskMapping]):
    """A task mapping, ``#task.map<spatial(4, 2) * repeat(2, 2)>``; does each task of it once.

    Prints as it was written; the chain form in quotes, as MLIR has no token for its dot.

    Raises:
        IrcError: ``mapping-syntax`` from the parser, with file, line and column.
    """

    name = "task.map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TaskMapping:
        start = parser.pos
        try:
            with parser.in_angle_brackets():
                text = parser.parse_optional_str_literal() or _tokens(parser)
            return parse_mapping(text)
        except (ParseError, IrcError) as error:
            raise _located(error, Span(start, start, parser.lexer.input)) from None

    def print_parameter(self, printer: Printer) -> None:
        text = str(self.data)
        printer.print_string(f'<"{text}">' if "." in text else f"<{text}>")

    def verify(self) -> None:
        verify_coverage(self.data)


def _located(error: ParseError | IrcError, start: Span[str]) -> IrcError:
    """Say what is wrong with the mapping that begins at ``start``, and where that is."""
    from irc.dialects.mapping_text import mapping_error

    where = str(start.get_location())
    rest = start.input.content[start.start :].partition("\n")[0]
    text = rest.removeprefix("<").partition(">")[0]
    if isinstance(error, ParseError):  # not even the tokens of one
        try:
            parse_mapping(text)
        except IrcError as inner:
            error = inner
    if isinstance(error, IrcError):
        return IrcError(error.code, error.message, where, error.because, error.help)
    if "." in text:
        return mapping_error(text, "a chain stands in quotes, as MLIR has no token for .", where)
    return mapping_error(text, "it does not end with >", where)


def _tokens(parser: AttrParser) -> str:
    """Read the text of a mapping up to the closing bracket, token by token."""
    parts: list[str] = []
    while True:
        token = parser.parse_optional_identifier()
        if token is None:
            number = parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
            token = None if number is None else str(number)
        for mark in ("*", "(", ")", "[", "]", ",", "="):
            token = token or parser.parse_optional_punctuation(mark)
        if token is None:
            return "".join(parts)
        parts.append(token)
