"""Sizes that a capture leaves open: one graph of torch, a program for every number they may be.

torch.export and Dynamo trace once, with symbols for sizes, and note what they took for granted on
the way (``s0 >= 2``, ``s0 <= 512``, ``s1 != s0``). A program of irc is made from that graph for
numbers: every size in it, also one that is no polynomial (a quotient, a minimum), is computed from
its expression. So no size that torch can trace has to be refused, and nothing is traced again.
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import nn
from torch.export import Dim, ShapesCollection
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.export import shape_specs
from irc.frontends.torch.sizes import SizeError, SizeNames, dims_of
from irc.program import Program

LEAST = 2
"""Traced sizes are neither 0 nor 1: those broadcast, or make a tensor empty."""


LARGEST = 2**63 - 1
"""The largest number that a size, or a number that is made of sizes, may be."""


class NumberedSizes(SizeNames):
    """Every size as a number, from a number for each symbol.

    >>> s = sympy.Symbol("s0")
    >>> NumberedSizes({"s0": 7}).dim(s * 4 + 1)
    29
    """

    def __init__(self, values: Mapping[str, int]) -> None:
        super().__init__({})
        self._values = values
        self._known: dict[sympy.Expr, Any] = {}

    def dim(self, size: Any) -> int:
        """Return the number of an int, SymInt or sympy expression.

        Raises:
            SizeError: it depends on the values of a tensor, or is too large.
        """
        return size if isinstance(size, int) else int(self.number(size))

    def number(self, value: Any) -> Any:
        """Return what a SymInt, SymFloat, SymBool or sympy expression is: int, float or bool."""
        expr = value.node.expr if hasattr(value, "node") else value
        if expr not in self._known:
            self._known[expr] = self._evaluated(expr)
        return self._known[expr]

    def _evaluated(self, expr: Any) -> Any:
        if expr.is_Symbol and expr.name in self._values:
            return self._values[expr.name]
        named = {s: self._values[s.name] for s in expr.free_symbols if s.name in self._values}
        value = expr.xreplace({symbol: sympy.Integer(n) for symbol, n in named.items()})
        if getattr(value, "free_symbols", None):
            raise SizeError(f"size '{expr}' depends on the values of a tensor")
        if value in (sympy.true, sympy.false):
            return bool(value)
        if value.is_infinite or (value.is_integer and abs(value) > LARGEST):
            raise SizeError(f"'{expr}' is no number of 64 bits for {dict(self._values)}")
        return int(value) if value.is_integer else float(value)


@dataclass(frozen=True)
class Place:
    """Where the number of a symbol is read: dim ``dim`` of input ``index``."""

    index: int
    dim: int
    name: str


@dataclass
class OpenSizes:
    """The sizes that a traced graph has left open.

    Attributes:
        places: where the number of each symbol comes from.
        shapes: of the inputs, as expressions; a number that is an input counts as a shape.
        translate: makes the program for numbers of all symbols of the graph.
        conditions: what the trace took for granted.
        ranges: the least and the greatest number of each symbol.
        quotients: dims that are no polynomials of the symbols, by a name.
        aliases: symbols that stand for others.
        failed_on: the condition that did not hold when one did not last.
    """

    places: dict[str, Place]
    shapes: list[tuple[Any, ...]]
    translate: Callable[[Mapping[str, int]], Program]
    conditions: list[Any] = field(default_factory=list[Any])
    ranges: dict[str, tuple[int, int | None]] = field(
        default_factory=dict[str, tuple[int, int | None]]
    )
    quotients: dict[str, Any] = field(default_factory=dict[str, Any])
    aliases: dict[str, str] = field(default_factory=dict[str, str])
    failed_on: sympy.Basic | None = None

    def whole(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of all symbols of the graph, given those of :attr:`places`."""
        return {**values, **{name: values[kept] for name, kept in self.aliases.items()}}

    def program_at(self, values: Mapping[str, int]) -> Program:
        """Return the program for numbers; nothing is traced."""
        return self.translate(self.whole(values))

    def tie(self, groups: Sequence[Sequence[str]]) -> None:
        """Take several symbols for one from now on: calls in which they differ are refused.

        Args:
            groups: symbols that are one, the first of which stands for all.
        """
        pairs = [(name, group[0]) for group in groups for name in group[1:] if name != group[0]]
        first = {name: kept for name, kept in pairs if name in self.places}
        if not first:
            return
        known = {str(s): s for shape in self.shapes for e in shape for s in _free(e)}
        swap = {known[name]: known[kept] for name, kept in first.items()}
        self.shapes = [
            tuple(e if isinstance(e, int) else e.xreplace(swap) for e in shape)
            for shape in self.shapes
        ]
        self.conditions = [condition.xreplace(swap) for condition in self.conditions]
        self.quotients = {name: expr.xreplace(swap) for name, expr in self.quotients.items()}
        for name, kept in first.items():
            del self.places[name]
            self.ranges[kept] = _both(self.ranges.get(kept), self.ranges.pop(name, None))
        moved = {name: first.get(kept, kept) for name, kept in self.aliases.items()}
        self.aliases = {**moved, **first}

    def tie_equal(self, values: Mapping[str, int]) -> bool:
        """Take symbols for one whose numbers are equal; False where there are none.

        Args:
            values: of a call. Where two sizes have to be equal that torch does not compare (the
                keys and values of attention), the program for others makes no sense.
        """
        groups: dict[int, list[str]] = {}
        for name, number in values.items():
            groups.setdefault(number, []).append(name)
        self.tie(list(groups.values()))
        return any(len(group) > 1 for group in groups.values())

    def read(self, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
        """Return the number of each symbol in the shapes of a call."""
        return {name: shapes[p.index][p.dim] for name, p in self.places.items()}

    def refused(self, values: Mapping[str, int], shapes: Sequence[Sequence[int]]) -> str | None:
        """Say what the trace took for granted that does not hold for a call; None where all does.

        Args:
            values: what :meth:`read` gave.
            shapes: of the inputs.
        """
        for name, (low, high) in self.ranges.items():
            if self._is_outside(name, values[name]):
                return f"{self.said(name)} is {values[name]}, traced for {low} to {high or 'any'}"
        numbers = NumberedSizes(values)
        for place, (shape, traced) in enumerate(zip(shapes, self.shapes, strict=True)):
            for dim, (size, expr) in enumerate(zip(shape, traced, strict=True)):
                if numbers.dim(expr) != size:
                    return f"dim {dim} of input {place} is {size}, traced for {self.shown(expr)}"
        if (condition := self._unmet(numbers)) is None:
            return self._too_large(values)
        return f"it was traced for sizes with {self.shown(condition)}"

    def _unmet(self, numbers: NumberedSizes) -> sympy.Basic | None:
        """Return a condition that does not hold; what others failed on is looked at first."""
        last = [self.failed_on] if self.failed_on in self.conditions else []
        for condition in (*last, *self.conditions):
            if not numbers.number(condition):
                self.failed_on = condition
                return condition
        return None

    @property
    def most(self) -> dict[str, int]:
        """The greatest number of each symbol that has one."""
        return {name: high for name, (_, high) in self.ranges.items() if high is not None}

    def admits(self, values: Mapping[str, int]) -> bool:
        """True where the trace holds for numbers of the symbols."""
        if any(self._is_outside(name, values[name]) for name in self.ranges):
            return False
        return self._unmet(NumberedSizes(values)) is None and not self._too_large(values)

    def _too_large(self, values: Mapping[str, int]) -> str | None:
        """Say which number that sizes are made of is too large (a power); None where none is."""
        try:
            self.extended(values)
        except SizeError as error:
            return str(error)
        return None

    def _is_outside(self, name: str, number: int) -> bool:
        low, high = self.ranges[name]
        return number < low or (high is not None and number > high)

    def said(self, name: str) -> str:
        """Return the name of a symbol in the user's terms."""
        place = self.places[name]
        return f"dim {place.dim} of '{place.name}'"

    def shown(self, expr: Any) -> str:
        """Return an expression in the user's terms."""
        text = str(expr)
        for name in sorted(self.places, key=len, reverse=True):
            place = self.places[name]
            text = text.replace(name, f"{place.name}.shape[{place.dim}]")
        return text

    def extended(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the symbols, and of what else sizes are made of: quotients."""
        numbers = NumberedSizes(values)
        return {**values, **{name: numbers.dim(expr) for name, expr in self.quotients.items()}}


def open_dims(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> Any:
    """Return which dims a trace is to leave open, as torch.export takes them.

    Dims whose size is 0 or 1, or outside the range of its ``Dim``, are fixed: such a trace is for
    that size alone.

    Args:
        module: what takes the arguments.
        args: positional arguments.
        kwargs: keyword arguments.
        dynamic_shapes: True for all that the module does not fix, or as ``torch.export`` takes
            them, with names in place of ``Dim`` too. A ``Dim`` promises a range, which torch has to
            prove; of a dim with a name only what the trace takes for granted is checked, at every
            new size.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if dynamic_shapes is True:
        wanted = [dict.fromkeys(range(leaf.ndim), Dim.AUTO) for leaf in tensors]
    else:
        loose = pytree.tree_map(_loose, dynamic_shapes)
        _, specs = shape_specs(module.forward, args, kwargs, loose)
        chosen = [
            s for s, leaf in zip(specs, leaves, strict=True) if isinstance(leaf, torch.Tensor)
        ]
        wanted = [{dim: said for dim, said in dims_of(spec) if said is not None} for spec in chosen]
    collection: Any = ShapesCollection()
    for leaf, dims in zip(tensors, wanted, strict=True):
        collection[leaf] = {
            dim: said for dim, said in dims.items() if _may_vary(leaf.shape[dim], said)
        }
    return collection.dynamic_shapes(module, args, kwargs)


def _loose(said: Any) -> Any:
    return Dim.DYNAMIC if isinstance(said, str) else said


def _may_vary(size: int, said: Any) -> bool:
    low, high = getattr(said, "min", None), getattr(said, "max", None)
    return max(low or 0, LEAST) <= size and (high is None or size <= high)


def open_sizes(
    graph: GraphModule,
    inputs: Sequence[tuple[str, Any]],
    program_at: Callable[[Mapping[str, int]], Program],
) -> OpenSizes:
    """Read what a traced graph says of its sizes.

    Args:
        graph: its nodes have fake values as meta data.
        inputs: name and fake value of each input, in order, tensors and numbers.
        program_at: translates the graph for numbers.

    Raises:
        IrcError: ``capture-failed`` where a symbol is not the size of an input's dim.
    """
    shapes = [tuple(map(_expr, _sizes(value))) for _, value in inputs]
    places: dict[str, Place] = {}
    for index, ((name, _), shape) in enumerate(zip(inputs, shapes, strict=True)):
        for dim, expr in enumerate(shape):
            if not isinstance(expr, int) and expr.is_Symbol:
                places.setdefault(str(expr), Place(index, dim, name))
    wanted = {str(s) for shape in shapes for e in shape if not isinstance(e, int)
              for s in e.free_symbols}  # fmt: skip
    if missing := sorted(wanted - set(places)):
        raise IrcError(
            "capture-failed",
            f"size '{missing[0]}' stands in no dim of an input by itself",
            help="leave it fixed",
        )
    sizes = OpenSizes(places, shapes, program_at)
    environment: Any = next(
        (_node(s).shape_env for _, v in inputs for s in _sizes(v) if isinstance(s, torch.SymInt)),
        None,
    )
    if environment is not None:
        _read_environment(sizes, environment, graph)
    sizes.quotients = _quotients(graph, frozenset(places))
    return sizes


def _sizes(value: Any) -> Sequence[Any]:
    return value.shape if isinstance(value, torch.Tensor) else (value,)


def _free(expr: Any) -> set[Any]:
    return set() if isinstance(expr, int) else expr.free_symbols


def _both(
    one: tuple[int, int | None] | None, other: tuple[int, int | None] | None
) -> tuple[int, int | None]:
    """Return the numbers that two ranges share."""
    spans = [span for span in (one, other) if span is not None]
    highs = [high for _, high in spans if high is not None]
    return max((low for low, _ in spans), default=LEAST), min(highs, default=None)


def named_dims(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> dict[str, list[tuple[int, int]]]:
    """Return where each name stands that the user gave: tensor (in order) and dim."""
    places: dict[str, list[tuple[int, int]]] = {}
    if dynamic_shapes is True:
        return places
    leaves = pytree.tree_leaves((args, kwargs))
    _, specs = shape_specs(module.forward, args, kwargs, dynamic_shapes)
    tensors = [s for s, leaf in zip(specs, leaves, strict=True) if isinstance(leaf, torch.Tensor)]
    for index, spec in enumerate(tensors):
        for dim, said in dims_of(spec):
            if (name := getattr(said, "__name__", None)) is not None:
                places.setdefault(name, []).append((index, dim))
    return places


def _node(number: Any) -> Any:
    """Return what torch holds of a traced number, for which it has no types."""
    return number.node


def _expr(size: Any) -> Any:
    if isinstance(size, int):
        return size
    expr = size.node.expr
    return int(expr) if expr.is_Integer else expr


def _read_environment(sizes: OpenSizes, environment: Any, graph: GraphModule) -> None:
    """Note what torch's trace took for granted: ranges, and conditions on several sizes."""
    known = frozenset(sizes.places)
    for symbol, span in environment.var_to_range.items():
        if str(symbol) in known:
            low = int(span.lower) if span.lower.is_Integer else LEAST
            high = int(span.upper) if span.upper.is_Integer else None
            # Beyond the integers of 63 bits torch writes an integer for "any".
            high = None if high is not None and high >= 1 << 48 else high
            sizes.ranges[str(symbol)] = (max(low, LEAST), high)
    deferred = environment.deferred_runtime_asserts.values()
    stated = [each.expr for each in environment.guards]
    stated += [each.expr for checks in deferred for each in checks]
    stated += _asserted(graph)
    simplified = dict.fromkeys(environment.simplify(expr) for expr in stated)
    sizes.conditions = [
        expr for expr in simplified if len(names := _names(expr)) > 0 and names <= known
    ]


def _asserted(graph: GraphModule) -> list[Any]:
    """Return what the graph itself checks of its sizes: programs of irc do not."""
    checks = [n for n in graph.graph.nodes if "_assert_scalar" in str(n.target)]
    values = [n.args[0].meta.get("val") for n in checks if isinstance(n.args[0], Node)]
    return [_node(value).expr for value in values if isinstance(value, torch.SymBool)]


def _names(expr: Any) -> set[str]:
    return {str(symbol) for symbol in getattr(expr, "free_symbols", ())}


def _quotients(graph: GraphModule, known: frozenset[str]) -> dict[str, Any]:
    """Name the dims that are no polynomials of the symbols, such as ``s0 // 2 + 1``."""
    parts: set[Any] = set()
    for node in graph.graph.nodes:
        stated = node.meta.get("val")
        values: list[Any] = [*stated] if isinstance(stated, list | tuple) else [stated]
        for value in values:
            for size in _sizes(value):
                if isinstance(size, torch.SymInt):
                    parts |= _uneven(_node(size).expr)
    named = (p for p in parts if {str(s) for s in p.free_symbols} <= known)
    return {f"q{i}": part for i, part in enumerate(sorted(named, key=str))}


def _uneven(expr: Any) -> set[Any]:
    """Return the factors of a size that are no polynomials: a dim counts as a whole."""
    if expr.is_Mul:
        return set[Any]().union(*map(_uneven, expr.args))
    return set() if _is_polynomial(expr) else {expr}


def _is_polynomial(expr: Any) -> bool:
    if expr.is_Integer or expr.is_Symbol:
        return True
    if expr.is_Pow:
        return bool(expr.args[1].is_Integer and expr.args[1] > 0) and _is_polynomial(expr.args[0])
    return (expr.is_Add or expr.is_Mul) and all(map(_is_polynomial, expr.args))
