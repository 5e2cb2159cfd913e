"""A stage's step in functions that a schedule runs one by one.

``F`` computes a micro-batch forward; ``I`` the gradients that earlier layers and stages wait for;
``W`` those of the weights, added to what the micro-batches before gave; ``B`` is both. ``norm``
gives the sum of the squares of the stage's gradients, ``step`` moves the parameters. The split
between I and W is that of Zero Bubble (arXiv:2401.10241, section 2): what depends on no gradient of
a weight goes first. What a function reads of an earlier one is *saved*: a result of that one, and
an argument of role ``saved``. Literals and views are not saved but made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from irc.dialects.builder import (
    argument_attrs,
    arguments,
    cloned,
    entry,
    finish_function,
    functions,
    results,
)
from irc.dialects.flow import PointwiseOp, phase_of
from irc.ops.derivative import PhaseBuilder
from irc.training.accumulators import ACCUMULATOR
from irc.training.call_parts import closure, input_part, is_cheap
from irc.training.stages import BOUNDARY, GRADIENT, with_called

SAVED = "saved"
"""Role of what one function of a stage hands to another."""
ORDER = ("F", "I", "W", "norm", "step")
"""The functions of a stage, each of which may read what those before it compute."""
NORM = "norm"

Kind: TypeAlias = str


@dataclass(frozen=True)
class Functions:
    """A stage in functions.

    Attributes:
        modules: by kind, in the order in which they run; entry ``@forward``. Kinds that have
            nothing to do are left out.
        registers: of a value that crosses, the name by which functions hand it on, by the name of
            what is sent: ``cut0.1`` may lie in the register ``saved3``.
    """

    modules: Mapping[Kind, ModuleOp]
    registers: Mapping[str, str]


def split_functions(
    module: ModuleOp, *, splits_backward: bool, entries_alone: bool = False
) -> Functions:
    """Split the program of a stage along its marks; the module is taken apart.

    Args:
        module: level flow or spmd, as `irc.programs.stage_step` and auto-shard leave it; where
            backward is split, after `irc.training.call_parts.split_calls`.
        splits_backward: whether backward is I and W, or one function B.
        entries_alone: leave out what the functions call; the module may lack it.
    """
    return _Split(module, merged=not splits_backward, entries_alone=entries_alone).run()


def kinds_of(func: FuncOp, *, merged: bool) -> dict[Operation, Kind]:
    """Return the function that each op of a stage's entry lands in."""
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    named = _kinds(merged=merged)
    return {op: named[place] for op, place in _places(func, merged=merged).items()}


def sort_by_function(module: ModuleOp, *, merged: bool) -> None:
    """Bring the entry's ops into the order in which functions run, in place.

    What lives inside of one function then never lives beside what does inside of another.
    """
    func = entry(module)
    places = _places(func, merged=merged)
    end = func.body.block.last_op
    assert end is not None
    for op in sorted(places, key=lambda op: places[op]):
        op.detach()
        func.body.block.insert_op_before(op, end)


def last_kind(kinds: Iterable[Kind]) -> Kind:
    """Return the function that runs last of some.

    >>> last_kind(["F", "W", "I"])
    'W'
    """
    return max(kinds, key=_place_of)


def first_kind(kinds: Iterable[Kind]) -> Kind:
    """Return the function that runs first of some."""
    return min(kinds, key=_place_of)


def _place_of(kind: Kind) -> int:
    return ORDER.index("I" if kind == "B" else kind)


def sums_of(func: FuncOp) -> dict[SSAValue, BlockArgument]:
    """Return the sums of gradients, each with the accumulator that holds it between functions.

    What norm and step read of a sum is the accumulator itself.
    """
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    held = {
        name: value
        for role, name, value in arguments(func)
        if role == ACCUMULATOR and isinstance(value, BlockArgument)
    }
    pairs = zip(results(func), end.operands, strict=True)
    return {v: held[name] for (role, name), v in pairs if role == "state" and name in held}


def _kinds(*, merged: bool) -> Sequence[Kind]:
    return ("F", "B", "", "norm", "step") if merged else ORDER


def _places(func: FuncOp, *, merged: bool) -> dict[Operation, int]:
    """The function of each op, as a position in ORDER."""
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    named = list(zip(results(func), end.operands, strict=True))
    ops = [op for op in func.body.block.ops if op is not end]
    first = input_part(ops, [v for (role, _), v in named if role == BOUNDARY])
    norm = closure([v for (role, _), v in named if role == NORM])
    sums = {v.owner for v in sums_of(func)}
    places: dict[Operation, int] = {}
    for op in reversed(ops):
        # A literal is where its first reader is: those of the forward and of the seed of gradients
        # may be one.
        match "" if is_cheap(op) and not op.operands else phase_of(op):
            case "forward":
                place = 0
            case "backward":
                place = 1 if merged or op in first else 2
            case "step":
                place = 3 if op in norm else 4
            case _:
                # A boxing is where its first reader is; that of a sum where the sum is computed.
                readers = [
                    places[u.operation]
                    for v in (op.results if op not in sums else ())
                    for u in v.uses
                    if u.operation in places
                ]
                place = min(readers, default=-1)
        places[op] = place
    for op in ops:
        before = [places[v.owner] for v in op.operands if v.owner in places]  # type: ignore[index]
        places[op] = max([places[op], *before], default=0)
    return {op: max(places[op], 0) for op in ops}


class _Split:
    """One stage while it is split."""

    def __init__(self, module: ModuleOp, *, merged: bool, entries_alone: bool) -> None:
        self.module, self.func = module, entry(module)
        self.entries_alone = entries_alone
        self.block = self.func.body.block
        end = self.block.last_op
        assert isinstance(end, ReturnOp)
        self._copy_arguments(end)
        self.returned = [
            (role, name, value, attrs)
            for (role, name), value, attrs in zip(
                results(self.func), end.operands, _attributes(self.func), strict=True
            )
        ]
        self.merged = merged
        self.places = _places(self.func, merged=merged)
        self.saved: dict[SSAValue, str] = {}
        self.sums = sums_of(self.func)
        self.states = {n: v for role, n, v in arguments(self.func) if role == "state"}
        self.moved = {name for role, name, _, _ in self.returned if role == "state"}

    def _copy_arguments(self, end: ReturnOp) -> None:
        """Let what crosses be computed, also where it is what the stage was given (a share)."""
        for place, (role, name) in enumerate(results(self.func)):
            value = end.operands[place]
            if role != BOUNDARY or not isinstance(value, BlockArgument):
                continue
            phase = "backward" if name.startswith(GRADIENT) else "forward"
            b = PhaseBuilder(self.block, phase, prefix=f"given.{name}.", loc="micro-batches")
            b.part = "input" if phase == "backward" else None
            like = b.pointwise("copy", value).owner
            assert isinstance(like, PointwiseOp)
            like.detach()
            copy = PointwiseOp.create(
                operands=[value],
                result_types=[value.type],
                attributes=like.attributes,
                properties=like.properties,
            )
            self.block.insert_op_before(copy, end)
            end.operands[place] = copy.results[0]

    def run(self) -> Functions:
        own: dict[int, list[Operation]] = {place: [] for place in range(len(ORDER))}
        for op in self.block.ops:
            if not isinstance(op, ReturnOp):
                own[self.places[op]].append(op)
        results_of = self._results()
        needed = {p: self._with_cheap(p, ops, results_of[p]) for p, ops in own.items()}
        reads = {p: self._reads(ops, results_of[p]) for p, ops in needed.items()}
        self._save(reads, results_of)
        modules: dict[Kind, ModuleOp] = {}
        for place, kind in enumerate(_kinds(merged=self.merged)):
            if kind and (own[place] or results_of[place]):
                modules[kind] = self._module(place, needed[place], reads[place], results_of[place])
        registers = {
            name: self.saved.get(value, name)
            for role, name, value, _ in self.returned
            if role == BOUNDARY
        }
        return Functions(modules, registers)

    def _results(self) -> dict[int, list[tuple[SSAValue, DictionaryAttr]]]:
        """What each function returns of what the stage does, by its place."""
        by_place: dict[int, list[tuple[SSAValue, DictionaryAttr]]] = {
            place: [] for place in range(len(ORDER))
        }
        for role, _, value, attrs in self.returned:
            if role != BOUNDARY:
                by_place[self._place(value)].append((value, attrs))
        return by_place

    def _place(self, value: SSAValue) -> int:
        owner = value.owner
        return self.places[owner] if isinstance(owner, Operation) else 0

    def _with_cheap(
        self,
        place: int,
        ops: Sequence[Operation],
        returned: Sequence[tuple[SSAValue, DictionaryAttr]],
    ) -> list[Operation]:
        """Return the ops of a function with the cheap ones of earlier functions that it reads.

        What the norm makes of gradients, too: nothing is handed from there to the step.
        """
        chosen, norm = set(ops), ORDER.index(NORM)
        todo = [v for op in ops for v in op.operands] + [v for v, _ in returned]
        while todo:
            op = todo.pop().owner
            if not isinstance(op, Operation) or op in chosen:
                continue
            if is_cheap(op) or place > norm == self.places.get(op):
                chosen.add(op)
                todo += op.operands
        return [op for op in self.block.ops if op in chosen]

    def _reads(
        self, ops: Sequence[Operation], returned: Sequence[tuple[SSAValue, DictionaryAttr]]
    ) -> list[SSAValue]:
        """Return what a function takes from outside of it, each once."""
        inside = {value for op in ops for value in op.results}
        read = [v for op in ops for v in op.operands] + [v for v, _ in returned]
        # A state that nothing reads is an argument all the same: that is where it lies.
        read += [
            self.states[name] for _, attrs in returned if (name := _name(attrs)) in self.states
        ]
        return [value for value in dict.fromkeys(read) if value not in inside]

    def _save(
        self,
        reads: Mapping[int, Sequence[SSAValue]],
        results_of: dict[int, list[tuple[SSAValue, DictionaryAttr]]],
    ) -> None:
        """Return what later functions read, and what crosses, from the function that makes it."""
        moved = {
            value
            for role, name, value in arguments(self.func)
            if role == "buffer" and name in self.moved
        }
        wanted: dict[SSAValue, None] = {}
        for place, values in reads.items():
            for value in values:
                is_computed = isinstance(value.owner, Operation) and value not in self.sums
                if is_computed or (value in moved and place):
                    wanted[value] = None
        boundary: dict[SSAValue, tuple[str, DictionaryAttr]] = {}
        for role, name, value, attrs in self.returned:
            if role == BOUNDARY:
                boundary.setdefault(value, (name, attrs))
        for value in dict.fromkeys([*wanted, *boundary]):
            if value in boundary:
                name, attrs = boundary[value]
            else:
                name = f"saved{len(self.saved)}"
                attrs = argument_attrs(SAVED, name)
            self.saved[value] = name
            results_of[self._place(value)].append((value, attrs))

    def _module(
        self,
        place: int,
        ops: Sequence[Operation],
        reads: Sequence[SSAValue],
        returned: Sequence[tuple[SSAValue, DictionaryAttr]],
    ) -> ModuleOp:
        known = self.func.arg_attrs.data if self.func.arg_attrs else ()
        attrs: list[DictionaryAttr] = []
        for value in reads:
            own = self.sums.get(value, value)
            if isinstance(own, BlockArgument) and not (place and own in self.saved):
                attrs.append(_as_argument(known[own.index]))
            else:
                attrs.append(argument_attrs(SAVED, self.saved[value]))
        block = Block(arg_types=[v.type for v in reads])
        values: dict[SSAValue, SSAValue] = dict(zip(reads, block.args, strict=True))
        for op in ops:
            block.add_op(cloned(op, values))
        func = finish_function(
            "forward",
            block,
            [values[v] for v, _ in returned],
            arg_attrs=attrs,
            res_attrs=[a for _, a in returned],
        )
        if self.entries_alone:
            return ModuleOp([func])
        return with_called(func, functions(self.module), dict(self.module.attributes))


def _attributes(func: FuncOp) -> Sequence[DictionaryAttr]:
    count = len(func.function_type.outputs)
    return func.res_attrs.data if func.res_attrs else [DictionaryAttr({})] * count


def _name(attrs: DictionaryAttr) -> str:
    name = attrs.data.get("name")
    return name.data if isinstance(name, StringAttr) else ""


def _as_argument(attrs: DictionaryAttr) -> DictionaryAttr:
    """Return the attributes of an argument in a function: a seed is given to each call."""
    role = attrs.data.get("role")
    if isinstance(role, StringAttr) and role.data == "seed":
        return DictionaryAttr({**attrs.data, "role": StringAttr("input")})
    return attrs
