"""Sizes of inputs: numbers, names, and sums of products of names, by a small grammar of our own.

``dim_param`` is free text in the file. It is parsed, never evaluated; what the grammar does not
cover (``floor(s0/2)``, ``?``) becomes a fresh name, which `sizes` may bind like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from irc.dialects.size import Dim, Size, bind, symbol, terms_of
from irc.errors import IrcError, did_you_mean

if TYPE_CHECKING:
    import onnx

MAX_TEXT = 200
MAX_TERMS = 64
PLACE = re.compile("[0-9]{1,4}")
TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]{1,12})|(?P<name>[A-Za-z_][A-Za-z0-9_.]{0,63})|(?P<sign>[-+*()]))"
)


class SizeTable:
    """Gives each dimension of the model its size, and the user's numbers to the names.

    Args:
        sizes: numbers by name, as the user gave them.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self._given = dict(sizes or {})
        self._names: dict[str, str] = {}
        self._stated: set[str] = set()
        for name, number in self._given.items():
            if isinstance(number, bool) or not 0 <= number < 1 << 40:
                raise IrcError("option-value", f"size {name}={number} is not a size")

    def dim(self, text: str, place: str) -> Dim:
        """Return the size of a dimension.

        Args:
            text: its ``dim_param``, which may be empty.
            place: input and position (``x_2``), the name of a size that has none of its own.
        """
        if text in self._given:
            return bind(self._symbol(text), self.bound)
        try:
            size = Parser(text, self._symbol).parse()
        except ValueError:
            # "?" and the like say nothing: two of them need not be equal, so the place names them.
            words = any(char.isalnum() for char in text) and len(text) <= MAX_TEXT
            size = self._symbol(text if words else place)
        return bind(size, self.bound)

    @property
    def bound(self) -> dict[str, int]:
        """The given numbers by symbol."""
        return {
            sym: self._given[name] for name, sym in self._names.items() if name in self._given
        } | {sym: self._given[sym] for sym in self._names.values() if sym in self._given}

    def names(self, symbols: frozenset[str]) -> list[str]:
        """Return the names by which the user knows these symbols."""
        original = {sym: name for name, sym in self._names.items()}
        return sorted(original.get(name, name) for name in symbols)

    def inputs_are_read(self) -> None:
        """Take note that names from here on are of sizes that the model computes."""
        self._stated = set(self._names)

    def own(self, symbols: frozenset[str]) -> list[str]:
        """Return the names that give these symbols numbers: all, where the model computes one."""
        known = self.names(symbols)
        return known if set(known) <= self._stated else sorted(self._stated)

    def need(self, names: frozenset[str], reason: str, where: str) -> None:
        """Take note that symbols are needed as numbers; here the user is told, and gives them."""

    def check_used(self) -> None:
        """Complain of numbers for names that the model does not have.

        Raises:
            IrcError: ``size-unknown``.
        """
        known = {*self._names, *self._names.values()}
        for name in self._given:
            if name not in known:
                raise IrcError(
                    "size-unknown",
                    f"the model has no size named '{name}'",
                    because=f"its sizes are: {', '.join(sorted(self._names)) or 'all numbers'}",
                    help=did_you_mean(name, known),
                )

    def _symbol(self, name: str) -> Size:
        if name not in self._names:
            plain = re.sub(r"[^A-Za-z0-9_]+", "_", name)[:40].strip("_") or "size"
            plain = plain if plain[0].isalpha() else f"d{plain}"
            # Words of the IR's own grammar, and names that differ only in what was replaced.
            taken = {*self._names.values(), "true", "false"}
            unique, count = plain, 0
            while unique in taken:
                count += 1
                unique = f"{plain}_{count}"
            self._names[name] = unique
        return symbol(self._names[name])


def by_name(inputs: Sequence[onnx.ValueInfoProto], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return numbers by the names of sizes, where some are given by input and position (``x.0``).

    A dim without a name is called by its place, as `SizeTable` does. A name of the model that
    looks like a place is that name.

    Raises:
        IrcError: ``option-value`` where a dim is a number already, or made of several names;
            ``size-unknown`` where the input has no such dim.
    """
    dims = {formal.name: list(formal.type.tensor_type.shape.dim) for formal in inputs}
    named = {dim.dim_param for own in dims.values() for dim in own}
    numbers: dict[str, int] = {}
    for key, number in sizes.items():
        name, _, index = key.rpartition(".")
        known = key in named or name not in dims or not PLACE.fullmatch(index)
        target = key if known else _name_at(dims[name], name, int(index))
        if numbers.setdefault(target, number) != number:
            raise IrcError("option-value", f"size '{target}' is given two numbers")
    return numbers


def _name_at(dims: list[onnx.TensorShapeProto.Dimension], name: str, index: int) -> str:
    if index >= len(dims):
        raise IrcError("size-unknown", f"input '{name}' has {len(dims)} dims, none is {index}")
    dim = dims[index]
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        raise IrcError("option-value", f"dim {index} of '{name}' is {dim.dim_value} in the file")
    text = dim.dim_param
    try:
        whole = Parser(text, symbol_of_text).parse()
    except ValueError:
        # As in SizeTable.dim: text that says something is a name, other text is not.
        return text if any(char.isalnum() for char in text) else f"{name}_{index}"
    if not (isinstance(whole, Size) and str(whole).isidentifier()):
        raise IrcError(
            "option-value", f"dim {index} of '{name}' is '{text}'", help="give its names numbers"
        )
    return text


class Parser:
    """``sum = product (('+'|'-') product)*``, ``product = atom ('*' atom)*``, atom or ``(sum)``.

    >>> str(Parser("2*(s + 1)", symbol).parse())
    '2*s + 2'
    """

    def __init__(self, text: str, symbol_of: Callable[[str], Size]) -> None:
        if not text.strip() or len(text) > MAX_TEXT or not text.isascii():
            raise ValueError("not an expression")
        self._symbol = symbol_of
        self._tokens: list[tuple[str, str]] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = TOKEN.match(text, position)
            if not match:
                raise ValueError(f"unexpected {text[position]!r}")
            self._tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            position = match.end()

    def parse(self) -> Dim:
        """Return the size; names are asked for only once the whole text is known to parse.

        Raises:
            ValueError: where the text is not in the grammar.
        """
        names, self._symbol = self._symbol, symbol_of_text
        tokens = list(self._tokens)
        self._whole()
        self._tokens, self._symbol = tokens, names
        return self._whole()

    def _whole(self) -> Dim:
        dim = self._sum(0)
        if self._tokens:
            raise ValueError("text after the expression")
        return dim

    def _sum(self, depth: int) -> Dim:
        total = self._product(depth)
        while self._tokens and self._tokens[0][1] in ("+", "-"):
            sign = self._tokens.pop(0)[1]
            term = self._product(depth)
            total = total + (term if sign == "+" else term * -1)
        return total

    def _product(self, depth: int) -> Dim:
        total = self._atom(depth)
        while self._tokens and self._tokens[0][1] == "*":
            self._tokens.pop(0)
            other = self._atom(depth)
            if len(terms_of(total)) * len(terms_of(other)) > MAX_TERMS:
                raise ValueError("too many terms")
            total = total * other
        return total

    def _atom(self, depth: int) -> Dim:
        if not self._tokens or depth > 20:
            raise ValueError("an operand is missing")
        kind, text = self._tokens.pop(0)
        if kind == "number":
            return int(text)
        if kind == "name":
            return self._symbol(text)
        if text == "(":
            inner = self._sum(depth + 1)
            if not self._tokens or self._tokens.pop(0)[1] != ")":
                raise ValueError("')' is missing")
            return inner
        raise ValueError(f"unexpected {text!r}")


def symbol_of_text(name: str) -> Size:
    """Return a size for a name that may hold dots, to try a parse out."""
    return symbol(name.replace(".", "_"))
