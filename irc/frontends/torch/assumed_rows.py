"""Loops over experts that skip those that no token chose, traced without the skip.

``if rows.numel() == 0: continue`` and ``if mask.any():`` ask a tensor that has no values while a
model is traced. :func:`some_rows` answers for them: every selection has rows, or none has. That
both traces say the same where no rows are is checked (:func:`agree`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.overrides import TorchFunctionMode

from irc.frontends.torch.expert_loops import addition_of, is_impure, merge
from irc.frontends.torch.repeat import is_mark

SELECTING = frozenset({"where", "nonzero", "argwhere", "masked_select", "nonzero_numpy"})
"""Functions whose results are as long as a mask has elements that are true."""

COUNTING = frozenset({"sum", "count_nonzero"})
"""Functions that say how many are true, and give 0 where none is."""

OF_MASKS = COUNTING | {"any", "to", "bool", "int", "long", "float"}
"""Functions of a mask that say something of the same rows."""

COMPARED = {
    "any": True, "sum": True, "count_nonzero": True, "gt": True, "__gt__": True, "ne": True,
    "__ne__": True, "eq": False, "__eq__": False, "greater": True, "not_equal": True,
}  # fmt: skip
"""Whether a function's result is true where there are rows: of a mask, or a count next to 0."""

_TORCH: Any = torch
_SYMPY: Any = sympy
"""Types know of them only in part."""

_SEVERAL: Any = (tuple, list)
_TUPLE: Any = tuple
_MAP: Any = dict
"""Classes of what has anything in it."""

Form = tuple[Any, ...]
"""What a value was computed from: a function's name, and the forms of what it took."""


class some_rows(TorchFunctionMode):  # noqa: N801  # a context, named as what it states
    """Answer what asks whether a selection has rows.

    Args:
        any_rows: what is answered.
        length: what ``len`` answers where there are rows.

    Attributes:
        lengths: how often ``len`` was asked.
        asked: the masks that were asked, each by what it was computed from.
        selected: the masks whose rows were selected.
    """

    def __init__(self, any_rows: bool, length: int = 2) -> None:
        super().__init__()
        self.any_rows = any_rows
        self.length = length
        self.lengths = 0
        self.asked: set[Form] = set()
        self.selected: set[Form] = set()
        self._forms: dict[int, tuple[Tensor, Form]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__bool__", "__len__", "item", "__int__", "__index__") and len(args) == 1:
            return self._answer(name, func, args[0])
        result = func(*args, **(kwargs or {}))
        if name in SELECTING and len(args) + len(kwargs or {}) == 1:
            self._select(args[0] if args else next(iter((kwargs or {}).values())), result)
        elif name == "__getitem__":
            for mask in _masks(args[1]):
                self._select(mask, result)
        for each in result if isinstance(result, _SEVERAL) else (result,):
            if isinstance(each, Tensor):
                form = (name, *map(self._form, args), *map(self._form, (kwargs or {}).items()))
                self._forms[id(each)] = each, form
        return result

    def _form(self, value: Any) -> Form:
        """Return what a value was computed from: what is computed alike from the same is it."""
        if isinstance(value, Tensor):
            # It is kept, so that no other has its id.
            return self._forms.setdefault(id(value), (value, ("given", id(value))))[1]
        if isinstance(value, _SEVERAL):
            return tuple(map(self._form, value))
        return (type(value).__name__, str(value))

    def _select(self, mask: Any, rows: Any) -> None:
        self.selected.add(_mask_of(self._form(mask)))
        for each in rows if isinstance(rows, _SEVERAL) else (rows,):
            if each.ndim:
                self._state(each.shape[0])

    def _answer(self, name: str, func: Callable[..., Any], asked: Tensor) -> Any:
        form = self._form(asked)
        by, against = form[0], form[2:]
        of_count = by in COMPARED and against == (("int", "0"),) and form[1][0] in COUNTING
        if name == "__bool__" and (of_count or by in (*COUNTING, "any")):
            self.asked.add(_mask_of(form))
            return COMPARED[by] is self.any_rows
        if name == "__len__" and _is_open(asked.shape[0]):
            # Python has no other number here. A use of it as one differs between the traces.
            self.lengths += 1
            return self.length if self.any_rows else 0
        result = func(asked)
        if by in COUNTING:
            self.asked.add(_mask_of(form))
            self._state(result)
        return result

    def _state(self, size: Any) -> None:
        """State that a size that depends on values is none, or large enough to be no broadcast."""
        if _is_open(size):
            _TORCH._check(size >= 2 if self.any_rows else size == 0)


def _mask_of(form: Form) -> Form:
    """Return of which mask something is said."""
    while form[0] in OF_MASKS or (
        form[0] in COMPARED and form[2:] == (("int", "0"),) and form[1][0] in COUNTING
    ):
        form = form[1]
    return form


def _is_open(size: Any) -> bool:
    return isinstance(size, _TORCH.SymInt) and not size.node.has_hint()


def _masks(index: Any) -> list[Tensor]:
    parts = index if isinstance(index, _TUPLE) else (index,)
    return [part for part in parts if isinstance(part, Tensor) and part.dtype == torch.bool]


def without_skips(trace: Callable[[], ExportedProgram]) -> ExportedProgram | None:
    """Trace a program whose loops over experts skip those without rows; None: it has others.

    Args:
        trace: traces it.
    """
    try:
        with some_rows(any_rows=True) as rows, _compared() as compared:
            some = trace()
        # Code that treats one row otherwise, or many, does not only ask whether there are rows.
        if not all(map(_is_of_none, compared)):
            return None
        for length in (1, 97) if rows.lengths else ():
            with some_rows(any_rows=True, length=length):
                other = trace()
            if _meaning(some.graph) != _meaning(other.graph):
                return None
        with some_rows(any_rows=False):
            none = trace()
    except Exception:
        # The program's own code, with answers that it may not expect. What is told is why it was
        # not traced as it is.
        return None
    return some if rows.asked <= rows.selected and agree(some.graph, none.graph) else None


@contextmanager
def _compared() -> Generator[list[Any]]:
    """Collect the comparisons of sizes that code outside torch decides by."""
    collected: list[Any] = []
    before = _TORCH.SymBool.__bool__

    def decide(self: Any) -> bool:
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in ("torch", "irc"):
            collected.append(self.node.expr)
        return before(self)

    with mock.patch.object(torch.SymBool, "__bool__", decide):
        yield collected


def _is_of_none(compared: Any) -> bool:
    """Return whether a comparison says the same of one row and of any more."""
    rows = [s for s in compared.free_symbols if str(s).startswith("u")]
    if not rows:
        return True
    if len(rows) > 1 or compared.free_symbols != set(rows):
        return False
    if not isinstance(compared, _SYMPY.core.relational.Relational):
        return False
    size = _SYMPY.Symbol("size")
    difference = (compared.lhs - compared.rhs).subs(rows[0], size)
    if not difference.is_polynomial(size) or _SYMPY.degree(difference, size) != 1:
        return False
    turn = _SYMPY.solve(difference, size)[0]
    one, two = (bool(compared.subs(rows[0], number)) for number in (1, 2))
    return bool(turn < 1) or (bool(turn <= 1) and one == two)


def agree(some: Graph, none: Graph) -> bool:
    """Return whether two traces differ in loops over experts alone.

    Args:
        some: traced where every selection has rows. It is not changed.
        none: traced where none has any.
    """
    copied = Graph()
    known: dict[Node, Node] = {}
    copied.output(copied.graph_copy(some, known))
    _, computed = _meaning(some)
    if not merge(copied, only_none=True):
        return False
    results, behind = _meaning(copied)
    wanted, also = _meaning(none)
    # What is computed where no rows are is no more than where some are.
    return results == wanted and also <= computed | behind


def _meaning(graph: Graph) -> tuple[list[int], set[int]]:
    """Return a number for each result and each write of a graph, and for each value."""
    of: dict[Node, int] = {}
    wanted: list[int] = []
    values: set[int] = set()

    def plain(value: Any) -> Any:
        if isinstance(value, Node):
            return ("node", of[value])
        if isinstance(value, _SEVERAL):
            return tuple(map(plain, value))
        if isinstance(value, _MAP):
            return tuple((key, plain(item)) for key, item in sorted(value.items()))
        return (type(value).__name__, str(value))

    for node in graph.nodes:
        if _adds_nothing(node):
            of[node] = of[node.args[0]]
            continue
        name = node.target if node.op in ("placeholder", "get_attr") else ""
        # Marks of layers are numbered anew in each trace.
        args = node.args[:2] if is_mark(node) else node.args
        form = (node.op, str(node.target), name, plain(args), plain(node.kwargs))
        of[node] = hash(form)
        if node.op == "output" or (is_impure(node) and not _is_idle(node)):
            wanted.append(of[node])
        elif not _is_idle(node):
            values.add(of[node])
    return wanted, values


def _adds_nothing(node: Node) -> bool:
    """Return whether an op adds no rows to what it takes."""
    addition = addition_of(node)
    value: Any = addition.value if addition is not None else None
    return isinstance(value, Node) and 0 in tuple(value.meta["val"].shape)


def _is_idle(node: Node) -> bool:
    """Return whether an op asserts something of a size, or writes to what has no elements."""
    value: Any = node.meta.get("val")
    return not isinstance(value, Tensor) or 0 in tuple(value.shape)
