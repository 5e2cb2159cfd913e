"""What a module's constraints allow: placements of arguments, signatures of ops.

Statements name things by globs; here they meet the module. Of several pins of one thing the one of
the highest priority holds, of equal ones the last. A forbid takes away what it matches, unless a
pin of higher priority asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from irc.constraints.checks import check_argument, check_mesh, check_op, has_dims, result_index
from irc.constraints.patterns import Pattern, SignaturePattern, all_match
from irc.constraints.pins import Statement
from irc.dialects.builder import arguments, entry, functions, results
from irc.dialects.flow import FlowOp, id_of, loc_of, tensor
from irc.dialects.placement import B, Mesh, Placement, Split
from irc.dialects.types import TensorType
from irc.errors import IrcError, did_you_mean
from irc.sharding.signatures import NdSignature
from irc.training.accumulators import ACCUMULATED


@dataclass(frozen=True)
class Constraints:
    """The constraints of one module on one mesh.

    Attributes:
        mesh: the mesh.
        arguments: the statements about each entry argument, by its name.
        ops: the statements about each op, by ``function/id``.
        same: arguments that lie in one way: of each, the first one that it lies as.
    """

    mesh: Mesh = field(default_factory=lambda: Mesh(()))
    arguments: Mapping[str, tuple[Statement, ...]] = field(default_factory=dict[str, Any])
    ops: Mapping[str, tuple[Statement, ...]] = field(default_factory=dict[str, Any])
    same: Mapping[str, str] = field(default_factory=dict[str, str])

    def restricts(self, name: str, *, loaded: bool) -> bool:
        """Return whether an argument has constraints; if it is given whole, only pins count."""
        statements = self.arguments.get(name, ())
        return any(loaded or s.verb == "pin" for s in statements)

    def placements(
        self, name: str, options: Iterable[Placement], kind: TensorType
    ) -> tuple[Placement, ...]:
        """Return what is left of the placements of an argument.

        Raises:
            IrcError: ``sharding-infeasible``, where nothing is.
        """
        candidates = tuple(options)
        statements = self.arguments.get(name)
        if statements is None:
            return candidates
        pin, forbids = effective(statements)
        if pin is not None and isinstance(pin.pattern, Pattern):
            exact = pin.pattern.exact(self.mesh, kind.ndim)
            candidates = candidates if exact is None else (_without_single(exact, self.mesh),)
        used = [pin, *forbids] if pin else forbids
        left = tuple(p for p in candidates if self._fits(pin, forbids, [p], kind.ndim))
        if not left:
            raise _nothing_left(f"argument '{name}'", used, candidates, "")
        return left

    def signatures(
        self, function: str, op: FlowOp, options: Sequence[NdSignature]
    ) -> list[NdSignature]:
        """Return what is left of the signatures of an op.

        Raises:
            IrcError: ``sharding-infeasible``, where nothing is.
        """
        statements = self.ops.get(f"{function}/{id_of(op)}")
        if statements is None:
            return list(options)
        left = list(options)
        # Constraints of the first result and of the second are each their own.
        for index in sorted({result_index(s) for s in statements}):
            mine = [s for s in statements if result_index(s) == index]
            pin, forbids = effective(mine)
            before = left
            left = [s for s in left if self._op_fits(op, s, index, pin, forbids)]
            if not left:
                placements = dict.fromkeys(s.results[index] for s in before)
                what = f"op '{id_of(op)}' ({op.name})"
                used = [pin, *forbids] if pin else forbids
                raise _nothing_left(what, used, placements, loc_of(op))
        return left

    def _op_fits(
        self,
        op: FlowOp,
        signature: NdSignature,
        index: int,
        pin: Statement | None,
        forbids: Sequence[Statement],
    ) -> bool:
        result = signature.results[index]
        plain = [s for s in forbids if isinstance(s.pattern, Pattern)]
        whole = [s for s in forbids if isinstance(s.pattern, SignaturePattern)]
        if any(self._signature_fits(op, signature, s.pattern) for s in whole):
            return False
        if pin is not None and isinstance(pin.pattern, SignaturePattern):
            if not self._signature_fits(op, signature, pin.pattern):
                return False
            pin = None
        return self._fits(pin, plain, [result], _ndim(op.outputs[index]))

    def _signature_fits(self, op: FlowOp, signature: NdSignature, pattern: Any) -> bool:
        ndims = [_ndim(v) for v in op.inputs], [_ndim(v) for v in op.outputs]
        return all_match(pattern.operands, signature.operands, self.mesh, ndims[0]) and all_match(
            pattern.results, signature.results, self.mesh, ndims[1]
        )

    def _fits(
        self,
        pin: Statement | None,
        forbids: Iterable[Statement],
        placements: Sequence[Placement],
        ndim: int,
    ) -> bool:
        def match(statement: Statement, placement: Placement) -> bool:
            pattern = statement.pattern
            return isinstance(pattern, Pattern) and pattern.matches(placement, self.mesh, ndim)

        return all(
            (pin is None or match(pin, p)) and not any(match(f, p) for f in forbids)
            for p in placements
        )


def effective(statements: Sequence[Statement]) -> tuple[Statement | None, list[Statement]]:
    """Return the pin that holds, and the forbids that hold beside it."""
    pins = [s for s in statements if s.verb == "pin"]
    # `max` takes the first of equals, and the later pin is to hold.
    pin = max(reversed(pins), key=lambda s: s.priority, default=None)
    least = pin.priority if pin is not None else None
    forbids = [
        s for s in statements if s.verb == "forbid" and (least is None or s.priority >= least)
    ]
    return pin, forbids


def resolve(module: ModuleOp, mesh: Mesh, statements: Iterable[Statement]) -> Constraints:
    """Find what each statement is about.

    Raises:
        IrcError: a glob matches nothing, or a placement does not fit the mesh or the tensor.
    """
    entry_values = {name: value for _, name, value in arguments(entry(module))}
    sums = {name for role, name, _ in arguments(entry(module)) if role == "accumulator"}
    entry_values |= _held_results(entry(module))
    ops = {
        f"{name}/{id_of(op)}": op
        for name, func in functions(module).items()
        for op in func.body.block.ops
        if isinstance(op, FlowOp)
    }
    on_arguments: dict[str, list[Statement]] = {}
    on_ops: dict[str, list[Statement]] = {}
    same: dict[str, str] = {}
    for statement in statements:
        if statement.verb == "same":
            _link(statement, entry_values, same)
            continue
        check_mesh(statement, mesh)
        if statement.kind == "argument":
            for name in _with_dims(
                _named_arguments(statement, entry_values), statement, entry_values
            ):
                kind = tensor(entry_values[name])
                check_argument(statement, name, kind, mesh, is_sum=name in sums)
                on_arguments.setdefault(name, []).append(statement)
        else:
            for name in _named_ops(statement, ops):
                check_op(statement, ops[name])
                on_ops.setdefault(name, []).append(statement)
    return Constraints(mesh, _frozen(on_arguments), _frozen(on_ops), same)


def _link(statement: Statement, values: Mapping[str, SSAValue], same: dict[str, str]) -> None:
    """Join what a statement names, and whatever lies as one of them, to one group."""
    globs = (statement.glob, *statement.others)
    named = [n for g in globs for n in _named_arguments(replace(statement, glob=g), values)]
    firsts = dict.fromkeys(same.get(name, name) for name in named)
    first = next(iter(firsts))
    same |= dict.fromkeys(named, first)
    same |= {name: first for name, other in same.items() if other in firsts}


def _held_results(func: FuncOp) -> dict[str, SSAValue]:
    """Return the results that lie as the plan likes, such as a new key-value cache, by name."""
    end = func.body.block.last_op
    named = zip(results(func), end.operands if end is not None else (), strict=False)
    return {name: value for (role, name), value in named if role in ("cache", "boundary")}


def _frozen(by_name: Mapping[str, list[Statement]]) -> dict[str, tuple[Statement, ...]]:
    return {name: tuple(statements) for name, statements in by_name.items()}


def _named_arguments(statement: Statement, values: Mapping[str, SSAValue]) -> list[str]:
    placeable = [name for name, value in values.items() if isinstance(value.type, TensorType)]
    names = [name for name in placeable if statement.matches(name)]
    if not statement.glob.startswith(ACCUMULATED):
        # "*.weight" is about weights: where their sums of gradients lie is the search's to say.
        names = [name for name in names if not name.startswith(ACCUMULATED)]
    if not names:
        raise IrcError(
            "input-mismatch",
            f"{statement.verb} '{statement.glob}' names no argument",
            where=statement.where,
            help=did_you_mean(statement.glob, placeable),
        )
    return names


def _with_dims(
    names: Sequence[str], statement: Statement, values: Mapping[str, SSAValue]
) -> list[str]:
    """Return what a glob is about: tensors that have the dims which it splits; all if none has."""
    if not any(sign in statement.glob for sign in "*?["):
        return list(names)
    return [n for n in names if has_dims(statement, tensor(values[n]))] or list(names)


def _named_ops(statement: Statement, ops: Mapping[str, FlowOp]) -> list[str]:
    if statement.kind == "line":
        names = [n for n, op in ops.items() if _at_line(loc_of(op), statement) and _leaves(op)]
        known = {loc_of(op) for op in ops.values()}
    else:
        glob = Statement(statement.verb, "op", statement.glob.partition("#")[0], statement.pattern)
        names = [n for n in ops if glob.matches(n) or glob.matches(n.partition("/")[2])]
        known = {*ops, *(n.partition("/")[2] for n in ops)}
    if not names:
        what = "no op comes from line" if statement.kind == "line" else "there is no op"
        raise IrcError(
            "input-mismatch",
            f"{what} '{statement.glob}'",
            where=statement.where,
            help=did_you_mean(statement.glob, known),
        )
    return names


def _at_line(loc: str, statement: Statement) -> bool:
    return statement.matches(loc) or loc.endswith("/" + statement.glob)


def _leaves(op: FlowOp) -> bool:
    """Return whether the op's result is read by another source line, or returned."""
    uses = (use for value in op.outputs for use in value.uses)
    return any(loc_of(use.operation) != loc_of(op) for use in uses)


def _ndim(value: SSAValue) -> int:
    return value.type.ndim if isinstance(value.type, TensorType) else 0


def _without_single(placement: Placement, mesh: Mesh) -> Placement:
    """Return the same shards with B on axes of one rank, as the search writes it."""
    kept = [(axis, p if mesh.size(axis) > 1 else B) for axis, p in placement.axes]
    order = sorted(kept, key=lambda item: item[1].order if isinstance(item[1], Split) else 0)
    numbered = dict(Placement.in_mesh_order(tuple(order)).axes)
    return Placement(tuple((axis, numbered[axis]) for axis in mesh.names))


def _nothing_left(
    what: str, used: Iterable[Statement], options: Iterable[Placement], loc: str
) -> IrcError:
    """Return the error of constraints that leave no choice, naming them and what there was."""
    groups = [f"group {s.verb}: '{s}' ({s.where})" for s in used]
    shown = [str(p) for p in dict.fromkeys(options)]
    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
    return IrcError(
        "sharding-infeasible",
        f"the constraints leave no placement for {what}",
        where=loc,
        because=groups,
        help=f"without them it can be {', '.join(shown[:8])}{more}" if shown else "",
    )
