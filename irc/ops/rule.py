"""The rule of an op: index factors that its operands and results share (Shardy's op sharding rule).

Each factor is one loop of the op's iteration space. Splitting a factor splits every dim that it
leads, leaves operands without it whole, and makes a result without it partial where the factor is
reduced. So one rule gives the op's signatures, local shapes and work::

    (b m k, b k n) -> (b m n) sum(k) linear(0) linear(1)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias, cast

from irc.dialects.items import Shape
from irc.dialects.placement import Reduction
from irc.dialects.size import Dim, Size, divide, product
from irc.errors import IrcError

DimTerm: TypeAlias = tuple[str, ...]
"""The factors of one dim, major to minor; empty for a dim that is never split, written ``1``."""

TensorTerm: TypeAlias = tuple[DimTerm, ...]


class RuleError(ValueError):
    """A rule that contradicts itself, or the shapes of its op."""


@dataclass(frozen=True)
class Rule:
    """What one op shares and reduces, as data.

    Attributes:
        operands: the dims of each operand, as factors.
        results: the dims of each result.
        reduced: ``(factor, kind)``: splitting the factor gives partial results of that kind.
        whole: factors that every rank must see whole (softmax-like dims, sorted dims).
        linear: groups of operands; P(sum) passes when exactly those are P and the others B.
        monotone: the same for P(max) and P(min).
        sizes: ``(factor, size)`` of factors that stand only inside compound dims.

    Invariants, checked in this order: a factor stands once per tensor; a reduced factor is in no
    result; a factor of operands only is reduced or whole; groups name operands that exist.
    """

    operands: tuple[TensorTerm, ...]
    results: tuple[TensorTerm, ...]
    reduced: tuple[tuple[str, Reduction], ...] = ()
    whole: tuple[str, ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    monotone: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for term in (*self.operands, *self.results):
            names = [name for dim in term for name in dim]
            if repeated := {name for name in names if names.count(name) > 1}:
                raise RuleError(f"factor '{min(repeated)}' stands twice in ({show_tensor(term)})")
        kept = {name for term in self.results for dim in term for name in dim}
        known = set(self.factors)
        for name, kind in self.reduced:
            if name in kept:
                raise RuleError(f"factor '{name}' of {kind}({name}) stands in a result")
        for name in (*(name for name, _ in self.reduced), *self.whole, *(n for n, _ in self.sizes)):
            if name not in known:
                raise RuleError(f"factor '{name}' stands in no operand and no result")
        if lost := known - kept - {name for name, _ in self.reduced} - set(self.whole):
            raise RuleError(
                f"factor '{min(lost)}' is in no result: say sum({min(lost)}) or whole({min(lost)})"
            )
        for group in (*self.linear, *self.monotone):
            if not group or max(group) >= len(self.operands) or len(set(group)) != len(group):
                raise RuleError(
                    f"({' '.join(map(str, group))}) does not name some of the "
                    f"{len(self.operands)} operands, each once"
                )

    @property
    def factors(self) -> tuple[str, ...]:
        """Every factor, in order of appearance."""
        terms = (*self.operands, *self.results)
        return tuple(dict.fromkeys(name for term in terms for dim in term for name in dim))

    def reduction(self, factor: str) -> Reduction | None:
        """Return how a factor is reduced, or None where it is kept."""
        return dict(self.reduced).get(factor)

    def splittable(self) -> tuple[str, ...]:
        """Return the factors that a mesh axis can split.

        A factor must lead every dim that it stands in: the shard of a merged dim is contiguous
        only along its major factor.

        >>> parse_rule("([h d] k) -> (h d k)").splittable()
        ('h', 'k')
        """
        minor = {n for term in (*self.operands, *self.results) for dim in term for n in dim[1:]}
        return tuple(n for n in self.factors if n not in minor and n not in self.whole)

    def compound(self, factor: str) -> bool:
        """True where the factor leads a compound dim, so that only even splits are its shards."""
        terms = (*self.operands, *self.results)
        return any(len(dim) > 1 and dim[0] == factor for term in terms for dim in term)

    def factor_sizes(self, operands: Sequence[Shape], results: Sequence[Shape]) -> dict[str, Dim]:
        """Return the size of each factor, from the shapes and the rule's own ``sizes``.

        Raises:
            RuleError: where a shape does not fit.
        """
        sizes: dict[str, Dim] = dict(self.sizes)
        dims = list(_paired(self.operands, operands, "operand"))
        dims += _paired(self.results, results, "result")
        for term, size in dims:
            if len(term) == 1 and sizes.setdefault(term[0], size) != size:
                raise RuleError(f"factor '{term[0]}' is {sizes[term[0]]} and {size}")
        for term, size in dims:
            _solve(term, size, sizes)
        if unknown := [name for name in self.factors if name not in sizes]:
            raise RuleError(
                f"the size of factor '{unknown[0]}' is unknown: say size({unknown[0]}=..)"
            )
        return sizes

    def __str__(self) -> str:
        return f"({_show(self.operands)}) -> ({_show(self.results)}){self._clauses()}"

    def _clauses(self) -> str:
        kinds: dict[str, list[str]] = {}
        for name, kind in self.reduced:
            kinds.setdefault(kind, []).append(name)
        clauses = [f" {kind}({' '.join(names)})" for kind, names in kinds.items()]
        if self.whole:
            clauses.append(f" whole({' '.join(self.whole)})")
        clauses += [f" linear({' '.join(map(str, group))})" for group in self.linear]
        clauses += [f" monotone({' '.join(map(str, group))})" for group in self.monotone]
        if self.sizes:
            clauses.append(f" size({' '.join(f'{n}={s}' for n, s in self.sizes)})")
        return "".join(clauses)


def _paired(
    terms: Sequence[TensorTerm], shapes: Sequence[Shape], what: str
) -> Iterator[tuple[DimTerm, Dim]]:
    if len(terms) != len(shapes):
        raise RuleError(f"the rule has {len(terms)} {what}s, the op {len(shapes)}")
    for index, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        if len(term) != len(shape):
            raise RuleError(
                f"{what} {index} has {len(shape)} dims, but {len(term)} in its rule, "
                f"({show_tensor(term)})"
            )
        yield from zip(term, shape, strict=True)


def _solve(term: DimTerm, size: Dim, sizes: dict[str, Dim]) -> None:
    """Fill in the one unknown factor of a compound dim, or check the dim."""
    unknown = [name for name in term if name not in sizes]
    known = product(sizes[name] for name in term if name in sizes)
    if len(term) < 2 or len(unknown) > 1:
        return
    rest = divide(size, known)
    if rest is None or (not unknown and rest != 1):
        raise RuleError(f"dim [{' '.join(term)}] of size {size} is not a multiple of {known}")
    for name in unknown:
        sizes[name] = rest


def show_tensor(term: TensorTerm) -> str:
    """Print one tensor of a rule: ``b [h d] 1``, or ``.`` for a scalar."""
    dims = ["1" if not d else d[0] if len(d) == 1 else f"[{' '.join(d)}]" for d in term]
    return " ".join(dims) or "."


def _show(terms: Sequence[TensorTerm]) -> str:
    return ", ".join(map(show_tensor, terms))


def parse_rule(text: str, *, where: str = "") -> Rule:
    """Parse the notation.

    >>> str(parse_rule("(b m k,b k n)->(b m n)sum(k)"))
    '(b m k, b k n) -> (b m n) sum(k)'

    Raises:
        IrcError: ``rule-syntax``, with the place in the text.
    """
    from lark.exceptions import UnexpectedInput

    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        column = getattr(error, "column", -1)
        place = f" at column {column}" if column > 0 else " at its end"
        raise _syntax_error(text, f"the rule stops making sense{place}", where) from None
    try:
        return _build(tree)
    except RuleError as error:
        raise _syntax_error(text, str(error), where) from None


def _syntax_error(text: str, because: str, where: str) -> IrcError:
    return IrcError(
        "rule-syntax",
        f"cannot read the rule '{text}'",
        where=where,
        because=because,
        help="write a rule as (b m k, b k n) -> (b m n) sum(k)",
    )


@cache
def _parser() -> Any:
    from importlib.resources import files

    from lark import Lark

    grammar = files("irc.grammar").joinpath("rule.lark").read_text(encoding="utf-8")
    return Lark(grammar, start="rule", parser="lalr")


def _build(tree: Any) -> Rule:
    operands, results, *clauses = tree.children
    fields: dict[str, list[Any]] = {
        key: [] for key in ("reduced", "whole", "linear", "monotone", "sizes")
    }
    for clause in clauses:
        tokens = list(clause.children)
        match str(clause.data):
            case "reduced":
                kind = cast("Reduction", str(tokens[0]))
                fields["reduced"] += [(str(token), kind) for token in tokens[1:]]
            case "whole":
                fields["whole"] += map(str, tokens)
            case "sizes":
                fields["sizes"] += [(str(t.children[0]), int(t.children[1])) for t in tokens]
            case group:
                fields[group].append(tuple(map(int, tokens)))
    for key in ("reduced", "sizes"):
        names = [name for name, _ in fields[key]]
        if len(set(names)) != len(names):
            raise RuleError(f"a factor is given twice in {' '.join(names)}")
    plain: Mapping[str, Any] = {key: tuple(values) for key, values in fields.items()}
    return Rule(_terms(operands), _terms(results), **plain)


def _terms(tree: Any) -> tuple[TensorTerm, ...]:
    return tuple(
        tuple(tuple(map(str, dim.children)) for dim in tensor.children if hasattr(dim, "children"))
        for tensor in tree.children
        if tensor is not None
    )


def static(sizes: Mapping[str, Dim]) -> dict[str, int]:
    """Return factor sizes as numbers.

    Raises:
        RuleError: naming a size that is still symbolic.
    """
    for name, size in sizes.items():
        if isinstance(size, Size):
            raise RuleError(f"factor '{name}' has size '{size}', which is not bound to a number")
    return {name: size for name, size in sizes.items() if isinstance(size, int)}
