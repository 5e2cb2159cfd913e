"""Parallel styles of torch for the modules of a plan, and the proof that they fit together.

Torch redistributes at the boundaries of modules only; irc anywhere. So styles are tried in three
levels, and the first that computes the right numbers is taken: ``exact`` has the plan's layouts
between modules, ``pairs`` keeps whole tensors there except from a column-parallel module to a
row-parallel one, ``alone`` keeps whole tensors everywhere. Whether a level is right is found by
walking through the program with what each value would be in torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import SSAValue

from irc.dialects.builder import arguments, functions
from irc.dialects.flow import FlowOp, PointwiseOp, ReshapeOp, loc_of
from irc.dialects.placement import AxisPlacement, B, Broadcast, Partial, Split
from irc.dialects.sbp import BoxingOp
from irc.report.evidence import Evidence
from irc.report.modules import Use, last_dim, module_use, module_uses, on, unboxed
from irc.report.ops import label

Level: TypeAlias = Literal["exact", "pairs", "alone"]
LEVELS: tuple[Level, ...] = ("exact", "pairs", "alone")


@dataclass(frozen=True)
class Style:
    """What ``parallelize_module`` is told of one module.

    Attributes:
        name: the class, ``ColwiseParallel`` or ``RowwiseParallel``.
        takes: the layout of the input as the module is called.
        gives: the layout of its output.
        last: the splits of the last dims of both.
    """

    name: Literal["ColwiseParallel", "RowwiseParallel"]
    takes: AxisPlacement
    gives: AxisPlacement
    last: tuple[Split, Split]

    @property
    def default(self) -> tuple[AxisPlacement, AxisPlacement]:
        """The layouts that torch takes unless told otherwise, of an Embedding, too."""
        return (B, self.last[1]) if self.name == "ColwiseParallel" else (self.last[0], B)


@dataclass(frozen=True)
class Styles:
    """The styles of one mesh axis.

    Attributes:
        level: the closest to the plan that computes the right numbers.
        modules: by dotted name.
        norms: modules whose input is split along dim 1, and stays so (sequence parallelism).
        refused: modules whose weight is split in a way that torch has no style for, and why.
        lost: why closer levels would be wrong.
        reshapes: source lines that reshape a split value: they must not name its size.
    """

    level: Level
    modules: Mapping[str, Style]
    norms: tuple[str, ...]
    refused: Mapping[str, str]
    lost: tuple[str, ...]
    reshapes: tuple[str, ...]


def styles_of(evidence: Evidence, axis: str) -> Styles:
    """Find the styles for one mesh axis."""
    uses = module_uses(evidence)
    refused: dict[str, str] = {}
    lost: list[str] = []
    for level in LEVELS:
        styles: dict[str, Style] = {}
        for module, of in uses.items():
            style = _style(of, axis, level)
            if isinstance(style, str):
                refused[module] = style
            elif style is not None:
                styles[module] = style
        walk = _InTorch(evidence, axis, styles)
        conflicts = walk.run()
        if not conflicts:
            norms = tuple(walk.norms) if level == "exact" else ()
            return Styles(level, styles, norms, refused, tuple(lost), tuple(walk.reshapes))
        lost += [conflict for conflict in conflicts if conflict not in lost]
    raise AssertionError("whole tensors between modules are always right")


def _style(uses: Sequence[Use], axis: str, level: Level) -> Style | str | None:
    """Return the style of a module, None where its weight is whole, or why there is none."""
    weights = {on(use.op.operands[use.weight], axis) for use in uses}
    if weights == {B}:
        return None
    if len({use.kind for use in uses}) > 1:
        return "its weight is tied between an Embedding and a Linear"
    if len(weights) > 1:
        return "it is called with its weight split in different ways"
    use, (weight,) = uses[0], weights
    last = last_dim(use.input), last_dim(use.result)
    gives = _after(use, axis, level)
    if weight == Split(0 if use.kind == "linear" else 1):
        return Style("ColwiseParallel", _before(use, axis, level, B), gives, last)
    takes = _before(use, axis, level, _row_input(use))
    return Style("RowwiseParallel", takes, gives if level == "exact" else B, last)


def _row_input(use: Use) -> AxisPlacement:
    return last_dim(use.input) if use.kind == "linear" else B


def _before(use: Use, axis: str, level: Level, wanted: AxisPlacement) -> AxisPlacement:
    """Return how the module's input arrives."""
    arrives = on(unboxed(use.input), axis)
    if isinstance(arrives, Partial) or level == "alone":
        return B
    return arrives if level == "exact" or arrives == wanted else B


def _after(use: Use, axis: str, level: Level) -> AxisPlacement:
    """Return how what reads the module's output wants it."""
    wanted = _wanted(use.result, axis)
    (target,) = wanted if len(wanted) == 1 else (B,)
    if isinstance(target, Partial) or level == "alone":
        return B
    return target if level == "exact" or target == on(use.result, axis) else B


def _wanted(value: SSAValue, axis: str) -> set[AxisPlacement]:
    """Return how readers want a value, after boxings, once it is no partial sum any more."""
    placements: set[AxisPlacement] = set()
    for use in value.uses:
        reader = use.operation
        if isinstance(reader, BoxingOp):
            placements |= {on(reader.outputs[0], axis)}
        elif isinstance(reader, FlowOp) and isinstance(on(value, axis), Partial):
            placements |= _wanted(reader.outputs[0], axis)
        else:
            placements |= {on(value, axis)}
    return placements


class _InTorch:
    """Walks through the program with what each value would be in torch."""

    def __init__(self, evidence: Evidence, axis: str, styles: Mapping[str, Style]) -> None:
        self._functions = functions(evidence.logical)
        self._axis, self._styles = axis, styles
        self.conflicts: dict[str, None] = {}
        self.norms: dict[str, None] = {}
        self.reshapes: dict[str, None] = {}

    def run(self) -> list[str]:
        """Return where torch would compute something else, an empty list where nowhere."""
        forward = self._functions["forward"]
        names: dict[SSAValue, str] = {v: name for _, name, v in arguments(forward)}
        values: dict[SSAValue, AxisPlacement] = dict.fromkeys(forward.body.block.args, B)
        results = self._function(forward, values, names)
        for index, placed in enumerate(results):
            if placed != B:
                self.conflicts[f"result {index} of the model would be a shard, {placed}"] = None
        return list(self.conflicts)

    def _function(
        self, func: FuncOp, values: dict[SSAValue, AxisPlacement], names: dict[SSAValue, str]
    ) -> list[AxisPlacement]:
        for op in func.body.block.ops:
            if isinstance(op, ReturnOp):
                return [values[v] for v in op.operands]
            if isinstance(op, CallOp):
                inside = self._functions[op.callee.string_value()]
                placements: dict[SSAValue, AxisPlacement] = {}
                called: dict[SSAValue, str] = {}
                for argument, v in zip(inside.body.block.args, op.operands, strict=True):
                    placements[argument] = values[v]
                    if v in names:
                        called[argument] = names[v]
                results = self._function(inside, placements, called)
            elif isinstance(op, BoxingOp):
                results = [values[op.x]]
                if op.x in names:
                    names[op.outputs[0]] = names[op.x]
            else:
                assert isinstance(op, FlowOp)
                results = self._op(op, values, names)
            values.update(zip(op.results, results, strict=True))
        raise AssertionError(f"@{func.sym_name.data} does not return")

    def _op(
        self, op: FlowOp, values: Mapping[SSAValue, AxisPlacement], names: Mapping[SSAValue, str]
    ) -> list[AxisPlacement]:
        use = module_use(op, names)
        if use is not None and (style := self._styles.get(use.module)):
            if values[use.input] != style.takes:
                self._conflict(op, f"'{use.module}' would be given {values[use.input]}")
            return [style.gives]
        if (of := self._bias_of(op, names)) is not None:
            return [values[of]]
        placements = [values[v] for v in op.inputs]
        if all(isinstance(placed, Broadcast) for placed in placements):
            return [B for _ in op.outputs]
        planned = [on(v, self._axis) for v in op.inputs]
        results = [on(v, self._axis) for v in op.outputs]
        if placements != planned or any(isinstance(placed, Partial) for placed in results):
            self._conflict(op, f"{label(op)} would read {', '.join(map(str, placements))}")
            return [B for _ in op.outputs]
        self._note(op, placements, names)
        return results

    def _note(
        self, op: FlowOp, placements: Sequence[AxisPlacement], names: Mapping[SSAValue, str]
    ) -> None:
        if isinstance(op, ReshapeOp):
            self.reshapes[loc_of(op)] = None
        read = {names[v].rpartition(".")[0] for v in op.inputs if v in names}
        if Split(1) in placements and isinstance(op, PointwiseOp):
            self.norms.update(dict.fromkeys(name for name in read if name))

    def _bias_of(self, op: FlowOp, names: Mapping[SSAValue, str]) -> SSAValue | None:
        """Return the operand that a module's own bias is added to: the module does that, too."""
        if not isinstance(op, PointwiseOp) or op.fn != "add":
            return None
        for index, value in enumerate(op.inputs):
            module, _, leaf = names.get(value, "").rpartition(".")
            if leaf == "bias" and module in self._styles:
                return op.operands[1 - index]
        return None

    def _conflict(self, op: FlowOp, what: str) -> None:
        self.conflicts[f"{loc_of(op)}: {what}"] = None
