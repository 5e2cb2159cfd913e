"""xDSL's printer, with the same text in a third of the time.

Planning keeps a program's text after every pass, and tells by it which passes changed something.
xDSL prints each type anew wherever a value is used, strings byte by byte, and counts the lines; the
form of most ops, which is one and the same, it reads from its description each time.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from immutabledict import immutabledict
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.mlir_lexer import MLIRLexer

from irc.dialects.flow import FORM, FlowOp
from irc.dialects.types import TensorType

T = TypeVar("T")
ESCAPED = re.compile(r'[^\x20-\x7e]|["\\]')
ESCAPES = {byte: f"\\{byte:02X}" for byte in (*range(0x20), 0x22, *range(0x7F, 0x100))}
ESCAPES[ord("\\")] = "\\\\"
"""What stands for each byte that is not written as it is."""
MOST_KEPT = 200
"""The bytes of the longest string whose literal is kept: constants may have millions."""


def text_of(module: ModuleOp) -> str:
    """Return what ``str`` does."""
    printer = TextPrinter()
    printer.print_op(module)
    return "".join(printer.pieces)


class TextPrinter(Printer):
    """Prints to a list; the text of an attribute, which never changes, is made once.

    Args:
        known: texts that other printers printed.

    Attributes:
        pieces: what was printed.
    """

    def __init__(self, known: Known | None = None) -> None:
        super().__init__()
        self.pieces: list[str] = []
        known = known or Known()
        self._known, self._dicts, self._tails = known.attributes, known.dicts, known.tails
        self._types: dict[TensorType, str] = {}

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        if "\n" in text:
            spaces = " " * (self.indent_num_spaces * (self._indent if indent is None else indent))
            text = text.replace("\n", f"\n{spaces}")
        self.pieces.append(text)

    def _print_new_line(self, indent: int | None = None, print_message: bool = True) -> None:
        del print_message  # there are no diagnostics
        self.print_string("\n", indent=indent)

    def print_op(self, op: Operation) -> None:
        if _has_form(type(op)) and not (op.regions or op.successors):
            self._print_form(op, "", op.properties)
        elif type(op) is CallOp and len(op.properties) == 1:
            self._print_form(op, f" @{identifier_or_literal(op.callee.root_reference.data)}", {})
        elif type(op) is ReturnOp and not op.properties:
            self._print_return(op)
        else:
            super().print_op(op)

    def _print_form(self, op: Operation, called: str, properties: Mapping[str, Attribute]) -> None:
        """Print an op in :data:`irc.dialects.flow.FORM`, or a call, which says of what."""
        if op.results:
            self._print_values(op.results)
            self.pieces.append(" = ")
        self.pieces += (op.name, called, "(")
        self._print_values(op.operands)
        self._print_tail(op, properties)

    def _print_return(self, op: Operation) -> None:
        self.pieces.append(op.name)
        self.print_op_attributes(op.attributes)
        if op.operands:
            self.pieces.append(" ")
            self._print_values(op.operands)
            self.pieces.append(" : ")
            self.print_list(op.operand_types, self.print_attribute)

    def _print_tail(self, op: Operation, properties: Mapping[str, Attribute]) -> None:
        """Print an op's attributes and types, which most passes leave as they are."""
        own, types = (op.attributes, properties), (op.operand_types, op.result_types)
        held = (*own[0].values(), *own[1].values(), *types[0], *types[1])
        key = (*own[0], len(types[0]), *own[1], *map(id, held))
        if (known := self._tails.get(key)) is not None:
            self.pieces.append(known[1])
            return
        start = len(self.pieces)
        self.pieces.append(")")
        # What clashes is printed under the one key or the other: xDSL says so.
        assert own[0].keys().isdisjoint(own[1])
        self.print_op_attributes({**own[0], **own[1]})
        self.pieces.append(" : ")
        self.print_function_type(*types)
        self._tails[key] = held, "".join(self.pieces[start:])

    def _print_values(self, values: Iterable[SSAValue]) -> None:
        named, separator = self._ssa_values, "%"
        for value in values:
            if (name := named.get(value)) is None:
                name = named[value] = self._new_name(value)
            self.pieces += (separator, name)
            separator = ", %"

    def _new_name(self, value: SSAValue) -> str:
        """Return the name of a value that has none yet, as xDSL chooses it."""
        if not (hint := value.name_hint):
            return self._get_new_valid_name_id()
        count = self.ssa_names.get(hint, 0)
        self.ssa_names[hint] = count + 1
        return f"{hint}_{count}" if count else hint

    def print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        is_fixed = isinstance(attr_dict, immutabledict)
        if not is_fixed:
            self._print_attr_dict(attr_dict)
        elif (known := self._dicts.get(id(attr_dict))) is not None:
            self.pieces.append(known[1])
        else:
            start = len(self.pieces)
            self._print_attr_dict(attr_dict)
            self._dicts[id(attr_dict)] = attr_dict, "".join(self.pieces[start:])

    def _print_attr_dict(self, attr_dict: Mapping[str, Attribute]) -> None:
        self.pieces.append("{")
        separator = ""
        for name, attribute in attr_dict.items():
            self.pieces += (separator, identifier_or_literal(name))
            if type(attribute) is not UnitAttr:
                self.pieces.append(" = ")
                self.print_attribute(attribute)
            separator = ", "
        self.pieces.append("}")

    def print_list(
        self, elems: Iterable[T], print_fn: Callable[[T], Any], delimiter: str = ", "
    ) -> None:
        is_first = True
        for elem in elems:
            if not is_first:
                self.pieces.append(delimiter)
            is_first = False
            print_fn(elem)

    def delimited(self, start: str, end: str) -> Any:
        return Delimited(self.pieces, start, end)

    def print_ssa_value(self, value: SSAValue) -> str:
        if (name := self._ssa_values.get(value)) is None:
            name = self._ssa_values[value] = self._new_name(value)
        self.pieces.append(f"%{name}")
        return name

    def print_attribute(self, attribute: Attribute) -> None:
        if (known := self._known.get(id(attribute))) is None:
            if type(attribute) is StringAttr:
                self.pieces.append(literal(attribute.data.encode()))
                return
            text = self._types.get(attribute) if type(attribute) is TensorType else None
            if text is None:
                start = len(self.pieces)
                super().print_attribute(attribute)
                text = "".join(self.pieces[start:])
                if type(attribute) is TensorType:
                    self._types[attribute] = text
            else:
                self.pieces.append(text)
            self._known[id(attribute)] = attribute, text
            return
        self.pieces.append(known[1])

    def print_identifier_or_string_literal(self, string: str) -> None:
        self.pieces.append(identifier_or_literal(string))

    def print_bytes_literal(self, bytestring: bytes) -> None:
        self.pieces.append(literal(bytestring))


@functools.cache
def _has_form(cls: type[Operation]) -> bool:
    """Return whether all that ops of a class have is printed by :data:`irc.dialects.flow.FORM`."""
    if not issubclass(cls, FlowOp) or cls.assembly_format != FORM:
        return False
    own = cls.get_irdl_definition()
    known = (*own.properties.values(), *own.attributes.values())
    # What has a default value is left out where it has that.
    return not cls.has_trait(IsolatedFromAbove) and all(
        each.default_value is None for each in known
    )


@dataclass(frozen=True)
class Known:
    """Texts of parts that do not change, each beside what it is of, by the ids of those.

    They go by identity, as equal attributes may print differently (0.0 and -0.0); what is beside a
    text keeps the ids from becoming those of others.

    Attributes:
        attributes: texts of attributes.
        dicts: texts of dictionaries of attributes.
        tails: what stands behind the operands of ops: attributes and types.
    """

    attributes: dict[int, tuple[Attribute, str]] = field(
        default_factory=dict[int, tuple[Attribute, str]]
    )
    dicts: dict[int, tuple[object, str]] = field(default_factory=dict[int, tuple[object, str]])
    tails: dict[tuple[object, ...], tuple[object, str]] = field(
        default_factory=dict[tuple[object, ...], tuple[object, str]]
    )


class Texts:
    """The texts of one module while passes run on it.

    A function or kernel that a pass leaves as it is, is not printed again: its ops, their operands,
    attributes and types are the same objects as before.
    """

    def __init__(self) -> None:
        self._known: dict[Operation, tuple[Contents, str]] = {}
        self._parts = Known()

    def of(self, module: ModuleOp) -> str:
        """Return what ``str`` does."""
        printer = _Again(module, self._known, self._parts)
        printer.print_op(module)
        self._known = printer.printed
        return "".join(printer.pieces)


class _Again(TextPrinter):
    """Prints a module, but for what is known of the ops in it that stand for themselves."""

    def __init__(
        self,
        module: ModuleOp,
        known: Mapping[Operation, tuple[Contents, str]],
        parts: Known,
    ) -> None:
        super().__init__(parts)
        self._block, self._before = module.body.block, known
        self.printed: dict[Operation, tuple[Contents, str]] = {}

    def print_op(self, op: Operation) -> None:
        if op.parent is not self._block or not op.get_traits_of_type(IsolatedFromAbove):
            super().print_op(op)
            return
        contents = Contents(op)
        known = self._before.get(op)
        if known is None or known[0] != contents:
            start = len(self.pieces)
            super().print_op(op)
            known = contents, "".join(self.pieces[start:])
        else:
            self.pieces.append(known[1])
        self.printed[op] = known


class Contents:
    """What an op's text says, as objects; two are equal where all objects are the same."""

    def __init__(self, op: Operation) -> None:
        objects: list[object] = []
        for each in op.walk():
            objects += (each, *each.operands, *each.successors)
            for held in (each.attributes, each.properties):
                objects += (*map(sys.intern, held), *held.values())
            for region in each.regions:
                for block in region.blocks:
                    objects.append(block)
                    objects += _shown(block.args)
            objects += _shown(each.results)
        # An id is that of one object as long as the object lives.
        self._objects, self._ids = objects, [*map(id, objects)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self._ids == other._ids

    __hash__ = None  # type: ignore[assignment]  # it is compared alone


def _shown(values: Sequence[SSAValue]) -> list[object]:
    """Return values with what is printed of them: types and names."""
    shown: list[object] = []
    for value in values:
        hint = value.name_hint
        shown += (value, value.type, hint and sys.intern(hint))
    return shown


class Delimited:
    """Prints something before and after what is printed inside."""

    def __init__(self, pieces: list[str], start: str, end: str) -> None:
        self._pieces, self._end = pieces, end
        pieces.append(start)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pieces.append(self._end)


@functools.lru_cache(maxsize=4096)
def identifier_or_literal(text: str) -> str:
    """Return the key of an attribute as it is written."""
    return text if MLIRLexer.bare_identifier_regex.fullmatch(text) else literal(text.encode())


def literal(data: bytes) -> str:
    """Return a string literal; the text of a short one is kept."""
    return _short_literal(data) if len(data) <= MOST_KEPT else _literal(data)


@functools.lru_cache(maxsize=1 << 16)
def _short_literal(data: bytes) -> str:
    return _literal(data)


def _literal(data: bytes) -> str:
    text = data.decode("latin-1")
    return f'"{text.translate(ESCAPES) if ESCAPED.search(text) else text}"'
