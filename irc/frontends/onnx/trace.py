"""One import of a model for every size: names stay names, and what was decided is noted.

The model is converted once, with the numbers of one call as hints. Sizes are polynomials of the
names that the file gives; a quotient (a window of stride 2) becomes a name of its own. Where a
converter has to know more (does the slice end inside the dim? are these two sizes one?) it is told
what holds for the hints, and that is a condition of the trace (as in PyTorch 2: Ansel et al.,
ASPLOS 2024, section 4). A size that a converter needs as a number is fixed at its hint, with the
reason, and the import starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from irc.dialects.size import Dim, Relation, Size, bind, deciding, floor_quotient, symbol, value_of
from irc.errors import IrcError
from irc.frontends.onnx.boundary import input_dim
from irc.frontends.onnx.importer import Importer
from irc.frontends.onnx.run_time_control import convert_control
from irc.frontends.onnx.sizes import SizeTable

if TYPE_CHECKING:
    import onnx

    from irc.frontends.onnx.read import Source
    from irc.program import Program

MAX_STARTS = 24
"""So often an import starts again with one more size fixed."""


@dataclass(frozen=True)
class Place:
    """Where the number of a name is read: dim ``dim`` of an input, called ``name`` by the model."""

    input: str
    dim: int
    name: str


@dataclass(frozen=True)
class Condition:
    """A polynomial's relation to 0 that was taken for granted, or that it does not hold.

    Attributes:
        relation: ``<``, ``<=`` or ``==``.
        difference: what is compared with 0.
        holds: the answer.
        where: the node that asked.
    """

    relation: Relation
    difference: Dim
    holds: bool
    where: str = ""

    def meets(self, values: Mapping[str, int]) -> bool:
        """True where the answer is the same for these numbers."""
        return relates(self.relation, value_of(self.difference, values)) == self.holds

    def __str__(self) -> str:
        signs = {"<": ">=", "<=": ">", "==": "!="}
        return f"{self.difference} {self.relation if self.holds else signs[self.relation]} 0"


@dataclass(frozen=True)
class Quotient:
    """``floor(dim / by)``."""

    dim: Dim
    by: int


@dataclass(frozen=True)
class Fixed:
    """A size that is a number in a trace.

    Attributes:
        name: of the model.
        number: what it is.
        reason: what needs it.
    """

    name: str
    number: int
    reason: str


def relates(relation: Relation, number: int) -> bool:
    """Compare a number with 0."""
    if relation == "==":
        return number == 0
    return number < 0 if relation == "<" else number <= 0


class TracedSizes(SizeTable):
    """Sizes with hints: answers what a trace asks, and notes it.

    Args:
        hints: a number for each symbol that stays open.
        fixed: numbers for the others.
        ties: symbols that are taken for others.
    """

    def __init__(
        self,
        hints: Mapping[str, int],
        fixed: Mapping[str, int] | None = None,
        ties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(fixed)
        self._ties = ties or {}
        self.hints = {name: n for name, n in hints.items() if name not in (fixed or {})}
        self.conditions: dict[tuple[Relation, Dim], Condition] = {}
        self.quotients: dict[str, Quotient] = {}
        self.needed: dict[str, str] = {}
        self.where: Callable[[], str] = str
        self._quotient_names: dict[tuple[Dim, int], str] = {}

    def _symbol(self, name: str) -> Size:
        symbol_name = str(super()._symbol(name))
        return symbol(self._ties.get(symbol_name, symbol_name))

    def equal_symbols(self) -> dict[str, str]:
        """Return symbols that have to be equal to others, by the conditions."""
        equal: dict[str, str] = {}
        for (relation, difference), condition in self.conditions.items():
            terms = dict(difference.terms) if isinstance(difference, Size) else {}
            names = sorted(_names(difference))
            plain = sorted(terms.values()) == [-1, 1] and () not in terms and len(names) == 2
            if (
                relation == "=="
                and condition.holds
                and plain
                and not set(names) & {*self.quotients}
            ):
                equal.setdefault(names[1], names[0])
        return equal

    def decide(self, relation: Relation, difference: Size) -> bool | None:
        """Compare with 0 by the hints; None for a size that only the run knows."""
        if not difference.names() <= set(self.hints):
            return None
        key = (relation, difference)
        if key not in self.conditions:
            holds = relates(relation, value_of(difference, self.hints))
            self.conditions[key] = Condition(relation, difference, holds, self.where())
        return self.conditions[key].holds

    def quotient(self, dim: Size, by: int) -> Dim | None:
        """Return a polynomial where the quotient is one but for its constant, else a name.

        >>> from irc.dialects.size import symbol
        >>> sizes = TracedSizes({"H": 64})
        >>> str(sizes.quotient(symbol("H") * 4 + 7, 2)), str(sizes.quotient(symbol("H") + 1, 2))
        ('2*H + 3', 'q0')
        """
        if not dim.names() <= set(self.hints):
            return None
        return floor_quotient(dim, by, self.named_quotient)

    def named_quotient(self, dim: Size, by: int) -> Size:
        """Return the name of a quotient."""
        if (dim, by) not in self._quotient_names:
            name = f"q{len(self.quotients)}"
            while name in self._names.values():
                name = f"{name}_"
            self._quotient_names[dim, by] = self._names[name] = name
            self.quotients[name] = Quotient(dim, by)
            self.hints[name] = value_of(dim, self.hints) // by
        return symbol(self._quotient_names[dim, by])

    def need(self, names: frozenset[str], reason: str, where: str) -> None:
        """Note that symbols are needed as numbers."""
        for name in self.roots(names):
            self.needed.setdefault(name, f"{reason} ({where})" if where else reason)

    def roots(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names of inputs' sizes that these follow from, without those of the run."""
        roots: set[str] = set()
        for name in names & set(self.hints):
            inner = self.quotients.get(name)
            dim = symbol(name) if inner is None else inner.dim
            roots |= {name} if inner is None else self.roots(frozenset(_names(dim)))
        return frozenset(roots)


def _names(dim: Dim) -> frozenset[str]:
    return dim.names() if isinstance(dim, Size) else frozenset()


@dataclass
class OpenProgram:
    """A program whose sizes are names, and when it is the model.

    Attributes:
        program: at level flow.
        shapes: of the inputs by name, as far as they have any.
        places: where the number of each symbol comes from.
        conditions: what the trace took for granted.
        quotients: symbols that follow from others, in an order in which they can be computed.
        fixed: symbols that are numbers in it.
        hints: the numbers that it was traced with.
        library_nodes: nodes that run as they are.
    """

    program: Program
    shapes: Mapping[str, tuple[Dim, ...]]
    places: dict[str, Place]
    conditions: tuple[Condition, ...]
    quotients: Mapping[str, Quotient]
    fixed: Mapping[str, Fixed]
    hints: Mapping[str, int]
    library_nodes: int = 0

    @property
    def most(self) -> dict[str, int]:
        """The greatest number of each symbol that a condition ``symbol <= number`` gives one."""
        greatest: dict[str, int] = {}
        for condition in self.conditions:
            terms = (
                dict(condition.difference.terms) if isinstance(condition.difference, Size) else {}
            )
            for name in _names(condition.difference):
                bounded = condition.relation == "<" and not condition.holds
                if bounded and terms == {((name, 1),): -1, (): terms.get((), 0)}:
                    greatest[name] = min(terms[()], greatest.get(name, terms[()]))
        return greatest

    def tie_equal(self, values: Mapping[str, int]) -> bool:
        """Sizes that have to be equal were found by the trace: no more are."""
        return False

    def extended(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the symbols, and of the quotients."""
        return extended(values, self.quotients)

    def refused(self, values: Mapping[str, int]) -> str | None:
        """Say what the trace took for granted that does not hold; None where all does."""
        full = self.extended(values)
        for name, number in full.items():
            if number < 1:
                return f"{self.said(name)} is {number}, traced for 1 and more"
        for condition in self.conditions:
            if not condition.meets(full):
                return f"it was traced for sizes with {self.shown(condition)}"
        return None

    def admits(self, values: Mapping[str, int]) -> bool:
        """True where the trace holds for numbers of the symbols."""
        return self.refused(values) is None

    def said(self, name: str) -> str:
        """Return a symbol in the user's terms."""
        if name in self.quotients:
            quotient = self.quotients[name]
            return f"floor(({quotient.dim}) / {quotient.by})"
        place = self.places[name]
        return f"'{place.name}' (dim {place.dim} of '{place.input}')"

    def shown(self, condition: Condition) -> str:
        """Return a condition with quotients written out."""
        text = str(condition)
        for name in reversed(list(self.quotients)):
            quotient = self.quotients[name]
            text = text.replace(name, f"floor(({quotient.dim})/{quotient.by})")
        return text


def extended(values: Mapping[str, int], quotients: Mapping[str, Quotient]) -> dict[str, int]:
    """Return the numbers of symbols and of quotients of them.

    >>> from irc.dialects.size import symbol
    >>> extended({"H": 9}, {"q0": Quotient(symbol("H") + 1, 2), "q1": Quotient(symbol("q0"), 2)})
    {'H': 9, 'q0': 5, 'q1': 2}
    """
    full = dict(values)
    for name, quotient in quotients.items():
        full[name] = value_of(quotient.dim, full) // quotient.by
    return full


def stated_shapes(
    inputs: Sequence[onnx.ValueInfoProto], table: SizeTable
) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes of inputs that have one, as sizes; unnamed ones get the place's name."""
    shapes: dict[str, tuple[Dim, ...]] = {}
    for formal in inputs:
        tensor = formal.type.tensor_type
        if formal.type.HasField("tensor_type") and tensor.HasField("shape"):
            dims = enumerate(tensor.shape.dim)
            shapes[formal.name] = tuple(input_dim(table, formal.name, i, dim) for i, dim in dims)
    return shapes


def places_of(
    shapes: Mapping[str, tuple[Dim, ...]], table: SizeTable
) -> tuple[dict[str, Place], list[str]]:
    """Return where each symbol stands by itself, and the symbols that stand nowhere so."""
    places: dict[str, Place] = {}
    names: dict[str, None] = {}
    for input_name, shape in shapes.items():
        for index, dim in enumerate(shape):
            names |= dict.fromkeys(sorted(_names(dim)))
            if _is_plain(dim):
                (shown,) = table.names(frozenset([str(dim)]))
                places.setdefault(str(dim), Place(input_name, index, shown))
    return places, [name for name in names if name not in places]


def _is_plain(dim: Dim) -> bool:
    return isinstance(dim, Size) and len(dim.terms) == 1 and str(dim).isidentifier()


def read_values(places: Mapping[str, Place], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the number of each symbol in the shapes of a call."""
    return {name: shapes[place.input][place.dim] for name, place in places.items()}


def disagreement(
    stated: Mapping[str, tuple[Dim, ...]],
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, int],
) -> str | None:
    """Say which dim of a call is not what the model states of it; None where all are."""
    for input_name, shape in stated.items():
        if len(shape) != len(shapes[input_name]):
            return f"'{input_name}' has {len(shapes[input_name])} dims, the model says {len(shape)}"
        for index, (dim, number) in enumerate(zip(shape, shapes[input_name], strict=True)):
            wanted = bind(dim, values)
            if wanted != number:
                said = f"{dim} = {wanted}" if isinstance(dim, Size) else str(wanted)
                return f"dim {index} of '{input_name}' is {number}, the model says {said}"
    return None


def batches(source: Source, values: Mapping[str, int], fixed: Collection[str]) -> dict[str, str]:
    """Return symbols of first dims that are taken for one: equal numbers there are the batch.

    Exporters give each input's batch a name of its own, and what would show that they are one may
    be an index (``mask[arange(batch)]``), which says nothing of sizes.
    """
    places, _ = places_of(stated_shapes(source.model.graph.input, table := SizeTable()), table)
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    for name, place in places.items():
        if place.dim == 0 and name in values and name not in fixed:
            kept = first.setdefault(values[name], name)
            if kept != name:
                ties[name] = kept
    return ties


def trace(
    source: Source,
    values: Mapping[str, int],
    fixed: Mapping[str, Fixed] | None = None,
    *,
    given: Mapping[str, int] | None = None,
    dynamic: bool = False,
    bodies: bool = False,
) -> OpenProgram:
    """Import a model with names for its sizes.

    Args:
        source: prepared; with the stated types of its inputs.
        values: hints: a number for each symbol that stands in a dim by itself.
        fixed: symbols that are to be numbers from the start.
        given: numbers by the model's names, which the user gave.
        dynamic: as the importer takes it.
        bodies: whether If, Loop and Scan become functions of the program, as its ``control`` does.

    Raises:
        IrcError: what the model is refused for at any sizes.
    """
    known = dict(fixed or {})
    ties: dict[str, str] = batches(source, values, set(known))
    for _ in range(MAX_STARTS):
        numbers = {**(given or {}), **{name: each.number for name, each in known.items()}}
        sizes = TracedSizes({n: v for n, v in values.items() if n not in ties}, numbers, ties)
        control = convert_control if bodies else None
        importer = Importer(source, dynamic=dynamic, control=control, table=sizes)
        sizes.where = partial(getattr, importer.b, "loc")
        stated = stated_shapes(source.model.graph.input, sizes)
        places, lonely = places_of(stated, sizes)
        if lonely:
            raise IrcError(
                "size-unbound",
                f"size '{lonely[0]}' stands in no dim of an input by itself",
                source.name,
            )
        try:
            with deciding(sizes):
                program = importer.run()
        except IrcError:
            fresh = {name: why for name, why in sizes.needed.items() if name not in known}
            if not fresh:
                raise
            for name, why in fresh.items():
                (shown,) = sizes.names(frozenset([name]))
                known[name] = Fixed(shown, values[name], why)
            continue
        more = {name: kept for name, kept in sizes.equal_symbols().items() if kept not in ties}
        if more:
            # One symbol says it more simply than a condition on two.
            moved = {name: more.get(kept, kept) for name, kept in ties.items()}
            ties = {**moved, **more}
            continue
        held = {name: place for name, place in places.items() if name not in known}
        return OpenProgram(
            program, stated, held, tuple(sizes.conditions.values()), dict(sizes.quotients), known,
            dict(sizes.hints), importer.library_nodes,
        )  # fmt: skip
    raise IrcError("size-unbound", f"over {MAX_STARTS} sizes are needed as numbers", source.name)
