"""The stages of a pipeline as programs of their own, and the values that cross between them.

A program whose ops have a ``stage`` (pass ``cut-stages``) falls into one module for each stage. A
value that a later stage reads is a result of role ``boundary`` of the stage that computes it and an
argument of that role of each stage that reads it, which may lie several cuts further on. What is
computed of inputs alone is in every stage that reads it. A parameter that two stages read is an
argument of both: they hold a copy each, and their gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
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
from irc.dialects.flow import loc_of
from irc.dialects.types import TensorType, is_float
from irc.errors import ErrorCollector, IrcError

BOUNDARY = "boundary"
"""Role of what crosses from one stage to another."""
GRADIENT = "gradient."
"""First letters of the name of a gradient that crosses back, before that of the value."""


@dataclass(frozen=True)
class Crossing:
    """One value on its way to one stage that reads it.

    Attributes:
        name: of the result and of the argument, ``cut0.2``: the number of the value, and where to.
        producer: the stage that computes it.
        consumer: the stage that reads it.
        is_smooth: whether its gradient goes back.
    """

    name: str
    producer: int
    consumer: int
    is_smooth: bool


@dataclass(frozen=True)
class Stages:
    """A program in stages.

    Attributes:
        modules: of each stage, level flow, entry ``@forward``.
        crossings: what goes from stage to stage.
    """

    modules: tuple[ModuleOp, ...]
    crossings: tuple[Crossing, ...]


def stages_of(module: ModuleOp) -> Stages:
    """Cut a program where ``cut-stages`` said; the module stays as it is.

    Raises:
        IrcError: ``pipeline-unsupported``, all reasons at once: a buffer that two stages use and
            one moves, a value that is no tensor, an input that is written.
    """
    return _Cut(module).run()


class _Cut:
    """One program while it is cut."""

    def __init__(self, module: ModuleOp) -> None:
        self.module, self.func = module, entry(module)
        self.block = self.func.body.block
        end = self.block.last_op
        assert isinstance(end, ReturnOp)
        self.end = end
        self.stage: dict[Operation, int] = {}
        for op in self.block.ops:
            if isinstance(attr := op.attributes.get("stage"), IntegerAttr):
                self.stage[op] = attr.value.data
        self.count = 1 + max(self.stage.values(), default=0)
        self.errors = ErrorCollector()
        self.crossings: list[Crossing] = []
        self.sent: list[list[tuple[SSAValue, Crossing]]] = [[] for _ in range(self.count)]
        self.taken: list[dict[SSAValue, Crossing]] = [{} for _ in range(self.count)]

    def run(self) -> Stages:
        own = [self._ops(stage) for stage in range(self.count)]
        for stage, ops in enumerate(own):
            self._cross(stage, ops)
        self._check_states(own)
        self.errors.check()
        modules = tuple(self._build(stage, ops) for stage, ops in enumerate(own))
        return Stages(modules, tuple(self.crossings))

    def _ops(self, stage: int) -> list[Operation]:
        """Return the ops of a stage, with those of no stage that they read, in program order."""
        chosen = {op for op, at in self.stage.items() if at == stage}
        returned = self._returned(stage)
        todo = [value for op in chosen for value in op.operands] + returned
        while todo:
            op = todo.pop().owner
            if isinstance(op, Operation) and op not in self.stage and op not in chosen:
                chosen.add(op)
                todo += op.operands
        return [op for op in self.block.ops if op in chosen]

    def _returned(self, stage: int) -> list[SSAValue]:
        return [v for v, at in zip(self.end.operands, self._result_stages(), strict=True)
                if at == stage]  # fmt: skip

    def _result_stages(self) -> list[int]:
        """The stage of each result: that of its op; of what is of no stage, the last one."""
        return [
            self.stage.get(v.owner, self.count - 1)
            if isinstance(v.owner, Operation)
            else self.count - 1
            for v in self.end.operands
        ]

    def _cross(self, stage: int, ops: Iterable[Operation]) -> None:
        for op in ops:
            for value in op.operands:
                owner = value.owner
                if not isinstance(owner, Operation) or self.stage.get(owner, stage) == stage:
                    continue
                if value in self.taken[stage]:
                    continue
                if not isinstance(value.type, TensorType):
                    self.errors.add(
                        _unsupported(
                            f"a value of type {value.type} crosses from stage "
                            f"{self.stage[owner]} to stage {stage}",
                            loc_of(op),
                        )
                    )
                    continue
                number = self._number(value)
                crossing = Crossing(
                    f"cut{number}.{stage}",
                    self.stage[owner],
                    stage,
                    is_float(value.type.dtype),
                )
                self.crossings.append(crossing)
                self.taken[stage][value] = crossing
                self.sent[crossing.producer].append((value, crossing))

    def _number(self, value: SSAValue) -> int:
        known = {v: int(c.name[3:].partition(".")[0]) for sent in self.sent for v, c in sent}
        return known.get(value, len(set(known.values())))

    def _check_states(self, own: list[list[Operation]]) -> None:
        read = [{v for op in ops for v in op.operands} for ops in own]
        held = {name: (role, value) for role, name, value in arguments(self.func)}
        for (role, name), stage in zip(results(self.func), self._result_stages(), strict=True):
            if role != "state":
                continue
            kind, value = held[name]
            others = [k for k, values in enumerate(read) if value in values and k != stage]
            if others:
                self.errors.add(
                    _unsupported(
                        f"buffer '{name}' is moved by stage {stage} and read by stage {others[0]}",
                        because="stages work on different micro-batches at one time",
                        advice="put both in one stage",
                    )
                )
            if kind == "input":
                self.errors.add(
                    _unsupported(f"the model writes into its input '{name}'", because=""),
                )

    def _build(self, stage: int, ops: list[Operation]) -> ModuleOp:
        returned = self._returned(stage)
        read = {value for op in ops for value in op.operands} | set(returned)
        kept = [
            (i, value)
            for i, (_, _, value) in enumerate(arguments(self.func))
            if value in read and isinstance(value, BlockArgument)
        ]
        crossed = list(self.taken[stage].items())
        block = Block(arg_types=[v.type for _, v in kept] + [v.type for v, _ in crossed])
        values: dict[SSAValue, SSAValue] = dict(
            zip([*(v for _, v in kept), *(v for v, _ in crossed)], block.args, strict=True)
        )
        for op in ops:
            copy = cloned(op, values)
            copy.attributes.pop("stage", None)
            block.add_op(copy)
        known = self.func.arg_attrs.data if self.func.arg_attrs else ()
        arg_attrs = [known[i] if i < len(known) else DictionaryAttr({}) for i, _ in kept]
        arg_attrs += [argument_attrs(BOUNDARY, c.name) for _, c in crossed]
        named = [
            (value, argument_attrs(*named))
            for value, named, at in zip(
                self.end.operands, results(self.func), self._result_stages(), strict=True
            )
            if at == stage
        ]
        named += [(v, argument_attrs(BOUNDARY, c.name)) for v, c in self.sent[stage]]
        func = finish_function(
            "forward",
            block,
            [values[v] for v, _ in named],
            arg_attrs=arg_attrs,
            res_attrs=[attrs for _, attrs in named],
        )
        return with_called(func, functions(self.module), dict(self.module.attributes))


def with_called(
    func: FuncOp, known: Mapping[str, FuncOp], attributes: Mapping[str, object] | None = None
) -> ModuleOp:
    """Return a module of an entry and copies of the functions that it reaches, in their order."""
    reached: set[str] = set()
    todo = [func]
    while todo:
        for op in todo.pop().walk():
            if isinstance(op, CallOp) and (name := op.callee.string_value()) not in reached:
                reached.add(name)
                todo.append(known[name])
    module = ModuleOp([*(f.clone() for n, f in known.items() if n in reached), func])
    module.attributes.update(attributes or {})  # type: ignore[arg-type]  # attributes of a module
    return module


def _unsupported(message: str, where: str = "", *, because: str = "", advice: str = "") -> IrcError:
    return IrcError(
        "pipeline-unsupported", message, where=where, because=because or (), help=advice
    )
