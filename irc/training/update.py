"""The step of an optimiser at the end of a program, written once for layers that are alike.

A weight of a block that is called many times has its formula in a function, ``@step_N``, which each
layer calls with its own weight, gradient and moments: a program grows by one call for each weight,
and passes see the formula once. A weight whose gradient is not a block's result stands alone, and
its formula in the entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, OpResult, SSAValue

from irc.dialects.builder import argument_attrs, arguments, finish_function, functions, results
from irc.dialects.flow import SliceOp, loc_of, tensor
from irc.dialects.types import TensorType
from irc.ops.derivative import PhaseBuilder
from irc.sharding.padding import names_of_padded
from irc.training.entry import add_argument, add_arguments, matches, set_results
from irc.training.factored import with_epsilon
from irc.training.gradient_totals import Common, Totals, clip_factor, widened
from irc.training.loss_scale import INVERSE, KIND, OVERFLOWS
from irc.training.optimizers import REMAINDER, Optimizer, shared
from irc.training.settings import Settings, Shared

Origin: TypeAlias = tuple[object, ...]
"""Equal for weights of different layers that get their gradient, and their step, in one way."""

Formula: TypeAlias = Callable[[PhaseBuilder, "list[SSAValue]"], "list[SSAValue]"]


@dataclass(frozen=True)
class Options:
    """What a step does.

    Attributes:
        optimizer: the kind.
        settings: the numbers that it is told, for a parameter's name.
        clip_norm: the limit of the norm of all gradients together; 0: none.
        norm_apart: other programs have gradients too: the sum of the squares of this one's is the
            result ``norm``, and that of all the input ``norm``; the same of their overflows.
        uncounted: globs of parameters whose gradients another program counts.
        rates: how many learning rates there are.
        masters: keep what half-precision parameters lack of their float32 values.
        scaled: gradients are multiples of what they stand for; where one overflows nothing moves.
    """

    optimizer: Optimizer
    settings: Callable[[str], Settings]
    clip_norm: float = 0.0
    norm_apart: bool = False
    uncounted: tuple[str, ...] = ()
    rates: int = 1
    masters: bool = False
    scaled: bool = False


@dataclass
class Update:
    """One module while its entry gets its step."""

    module: ModuleOp
    func: FuncOp
    options: Options
    new: list[tuple[SSAValue, DictionaryAttr]] = field(
        default_factory=list[tuple[SSAValue, DictionaryAttr]]
    )

    def __post_init__(self) -> None:
        self._outlined: dict[Origin, _Outlined] = {}
        self._alike: Counter[Origin] = Counter()
        self._casts: dict[tuple[SSAValue, str], SSAValue] = {}

    def run(self, gradients: Mapping[str, SSAValue]) -> None:
        """Append the step and set the results: outputs, then states."""
        func = self.func
        end = func.body.block.last_op
        assert isinstance(end, ReturnOp)
        kept = [
            (value, argument_attrs(role, name))
            for (role, name), value in zip(results(func), end.operands, strict=True)
            if role != "gradient"
        ]
        held = {name: value for role, name, value in arguments(func) if role == "parameter"}
        end.detach()
        self._alike = Counter(self._origin(name, value) for name, value in gradients.items())
        common = self._common(gradients)
        by = self._shared(gradients, common.skips)
        moments = self._moments(held, gradients)
        for number, (name, gradient) in enumerate(gradients.items()):
            own = by[_of_many(self.options.settings(name))]
            self._parameter(number, name, held[name], gradient, moments[name], own, common)
        for value in self._casts.values():
            if value.first_use is None and isinstance(value, OpResult):
                value.op.detach()
                value.op.erase()
        func.body.block.add_op(end)
        every = [*kept, *self.new]
        set_results(func, [value for value, _ in every], [attrs for _, attrs in every])

    def _builder(self, name: str, loc: str) -> PhaseBuilder:
        # Names are the user's; ids are ours.
        return PhaseBuilder(self.func.body.block, "step", prefix=f"step{name}.", loc=loc)

    def _origin(self, name: str, gradient: SSAValue) -> Origin:
        if not (isinstance(gradient, OpResult) and isinstance(gradient.op, CallOp)):
            return (gradient, name)
        callee = gradient.op.callee.string_value()
        return callee, gradient.index, self.options.settings(name)

    def _shared(self, names: Iterable[str], skips: SSAValue | None) -> dict[Settings, Shared]:
        """Return the scalars of parameters that have a rate and betas in common."""
        many = self.options.rates
        kind = TensorType.of((many,) if many > 1 else (), "f64")
        lr, count = add_argument(self.func, kind, "input", "lr"), None
        b = self._builder("lr", "optimizer")
        if self.options.optimizer.counts:
            steps = add_argument(self.func, TensorType.of((), "i64"), "state", "optimizer.step")
            count = b.pointwise("add", steps, b.scalar(1, "i64"))
            new_steps = count if skips is None else b.pointwise("where", skips, steps, count)
            self.new.append((new_steps, argument_attrs("state", "optimizer.step")))
        by_settings: dict[Settings, Shared] = {}
        for settings in dict.fromkeys(_of_many(self.options.settings(name)) for name in names):
            rate = _rate(b, lr, settings.rate)
            by_settings[settings] = shared(b, settings, rate, count, kind=self.options.optimizer)
        return by_settings

    def _moments(
        self, held: Mapping[str, SSAValue], gradients: Mapping[str, SSAValue]
    ) -> dict[str, dict[str, SSAValue]]:
        """Add the arguments of all moments; return them by parameter and name."""
        wanted: list[tuple[TensorType, str, str]] = []
        owners: list[str] = []
        for name in gradients:
            kind = tensor(held[name])
            wide = widened(kind.dtype)
            own = dict(self.options.optimizer.states(kind.shape))
            own |= {REMAINDER: kind.shape} if self._has_master(kind) else {}
            wanted += [(TensorType.of(shape, wide), "state", f"optimizer.{moment}.{name}")
                       for moment, shape in own.items()]  # fmt: skip
            owners += [name] * len(own)
        moments: dict[str, dict[str, SSAValue]] = {name: {} for name in gradients}
        rows = names_of_padded(self.func)
        added = add_arguments(self.func, wanted, [rows.get(owner, 0) for owner in owners])
        for owner, (_, _, name), value in zip(owners, wanted, added, strict=True):
            moments[owner][name] = value
        return moments

    def _has_master(self, kind: TensorType) -> bool:
        return self.options.masters and widened(kind.dtype) != kind.dtype

    def _parameter(
        self,
        number: int,
        name: str,
        parameter: SSAValue,
        gradient: SSAValue,
        moments: Mapping[str, SSAValue],
        by: Shared,
        common: Common,
    ) -> None:
        settings, kind = self.options.settings(name), tensor(parameter)
        wide = widened(kind.dtype)
        stored = wide if self._has_master(kind) else kind.dtype
        settings = with_epsilon(settings, stored) if self.options.optimizer.factors else settings
        narrow = wide if self.options.scaled else tensor(gradient).dtype
        numbers = [(by.lr, wide), (by.scale, wide), (by.root, wide), (common.clip, narrow)]
        numbers += [(common.inverse, wide), (common.skips, "i1")]
        scalars = [n and self._cast(n, dtype) for n, dtype in numbers]

        def formula(b: PhaseBuilder, values: list[SSAValue]) -> list[SSAValue]:
            p, g, *rest = values
            state, known = rest[: len(moments)], iter(rest[len(moments) :])
            lr, first, root, clip, inverse, skips = (n and next(known) for n in scalars)
            assert lr is not None
            before = [p, *state]
            if inverse is not None:
                g = b.pointwise("mul", b.cast(g, wide), inverse)
            if clip is not None:
                g = b.pointwise("mul", g, clip)
            p, g = b.cast(p, wide), b.cast(g, wide)
            if settings.maximize:
                g = b.pointwise("neg", g)
            lacking = [state.pop()] if self._has_master(kind) else []
            for value in lacking:
                p = b.pointwise("add", p, value)
            step = self.options.optimizer.step
            value, *moved = step(b, settings, Shared(lr, first, root), p, g, state)
            if not self.options.optimizer.moves:
                return moved  # what is skipped, is skipped after the program
            rounded = b.cast(value, kind.dtype)
            if lacking:
                # Exact: what rounding takes away has fewer digits than the value.
                moved.append(b.pointwise("sub", value, b.cast(rounded, wide)))
            after = [rounded, *moved]
            if skips is None:
                return after
            pairs = zip(before, after, strict=True)
            return [b.pointwise("where", skips, old, new) for old, new in pairs]

        operands = [parameter, gradient, *moments.values(), *(n for n in scalars if n is not None)]
        moved = self._written("step", number, name, gradient, operands, formula)
        if self.options.optimizer.moves:
            self.new.append((moved.pop(0), argument_attrs("state", name)))
        self.new += [(m, argument_attrs("state", n)) for n, m in zip(moments, moved, strict=True)]

    def _cast(self, value: SSAValue, dtype: str) -> SSAValue:
        """Return a number of all parameters in another dtype: one cast for all of them."""
        if (value, dtype) not in self._casts:
            b = self._builder(f"as{len(self._casts)}", "optimizer")
            self._casts[value, dtype] = b.cast(value, dtype)
        return self._casts[value, dtype]

    def _common(self, gradients: Mapping[str, SSAValue]) -> Common:
        """Return what all gradients together say to the step of each parameter."""
        limit, scaled = self.options.clip_norm, self.options.scaled
        if not limit and not scaled:
            return Common()
        b = self._builder("norm", "optimizer")
        inverse = add_argument(self.func, KIND, "input", INVERSE) if scaled else None
        dtype = widened(tensor(next(iter(gradients.values()))).dtype)
        squares = b.scalar(0, dtype) if limit else None
        totals = Totals(squares, b.scalar(0, "f32") if scaled else None)
        totals = self._totals(gradients, totals, inverse)
        if self.options.norm_apart:
            apart = [b.cast(each, dtype) for each in totals.values]
            names = [*(["norm"] if limit else []), *([OVERFLOWS] if scaled else [])]
            # Where another stage counts all of them, there is nothing to say.
            if not all(matches(name, self.options.uncounted) for name in gradients):
                self.new += [
                    (value, argument_attrs("norm", name))
                    for value, name in zip(apart, names, strict=True)
                ]
            kind = TensorType.of((), dtype)
            totals = totals.like([add_argument(self.func, kind, "input", n) for n in names])
            b = self._builder("scale", "optimizer")
        elif totals.overflows is not None:
            self.new.append((totals.overflows, argument_attrs("output", OVERFLOWS)))
        clip = None if totals.squares is None else clip_factor(b, totals.squares, limit)
        if (count := totals.overflows) is None:
            return Common(clip)
        return Common(clip, inverse, b.pointwise("gt", count, b.scalar(0, tensor(count).dtype)))

    def _totals(
        self, gradients: Mapping[str, SSAValue], totals: Totals, inverse: SSAValue | None
    ) -> Totals:
        """Append the sums over all gradients that count here."""
        scales = [inverse] if inverse is not None and totals.squares is not None else []

        def formula(b: PhaseBuilder, values: list[SSAValue]) -> list[SSAValue]:
            gradient, *rest = values
            scale = rest.pop() if scales else None
            return totals.like(rest).more(b, gradient, scale).values

        for number, (name, value) in enumerate(gradients.items()):
            if not matches(name, self.options.uncounted):
                operands = [value, *totals.values, *scales]
                totals = totals.like(self._written("norm", number, name, value, operands, formula))
        return totals

    def _written(
        self,
        what: str,
        number: int,
        name: str,
        gradient: SSAValue,
        operands: list[SSAValue],
        formula: Formula,
    ) -> list[SSAValue]:
        """Append a formula of one parameter: itself, or a call of what it shares with others."""
        loc = "optimizer" if isinstance(gradient.owner, Block) else loc_of(gradient.owner)
        prefix = f"{number}" if what == "step" else f"{number}.{what}"
        origin = self._origin(name, gradient)
        if self._alike[origin] == 1:
            return formula(self._builder(prefix, loc), operands)
        if (what, *origin) not in self._outlined:
            free = self._free(f"{what}_{number}")
            outlined = _outline(free, f"step{prefix}.", loc, operands, formula)
            self._outlined[what, *origin] = outlined
            self.module.body.block.insert_op_before(outlined.func, self.func)
        known = self._outlined[what, *origin]
        outputs = list(known.func.function_type.outputs)
        call = CallOp(known.func.sym_name.data, [operands[i] for i in known.reads], outputs)
        call.attributes["loc"] = StringAttr(loc)
        call.attributes["id"] = StringAttr(f"step{prefix}")
        call.attributes["phase"] = StringAttr("step")
        self.func.body.block.add_op(call)
        return list(call.results)

    def _free(self, name: str) -> str:
        known, number = functions(self.module), 0
        while (free := f"{name}_{number}" if number else name) in known:
            number += 1
        return free


def _of_many(settings: Settings) -> Settings:
    """Return settings with what a step's scalars depend on alone."""
    return Settings(
        betas=settings.betas,
        rate=settings.rate,
        lr_decay=settings.lr_decay,
        beta2_decay=settings.beta2_decay,
    )


def _rate(b: PhaseBuilder, lr: SSAValue, number: int) -> SSAValue:
    """Return one of the learning rates."""
    if not tensor(lr).ndim:
        return lr
    part = b.op(SliceOp, [lr], starts=(number,), stops=(number + 1,), steps=(1,))
    return b.reshape(part, ())


@dataclass(frozen=True)
class _Outlined:
    """A function, and which operands of its formula it reads."""

    func: FuncOp
    reads: tuple[int, ...]


def _outline(
    name: str, prefix: str, loc: str, operands: Sequence[SSAValue], formula: Formula
) -> _Outlined:
    block = Block(arg_types=[value.type for value in operands])
    outputs = formula(PhaseBuilder(block, "step", prefix=prefix, loc=loc), list(block.args))
    reads = [i for i, value in enumerate(block.args) if value.first_use is not None]
    for argument in reversed(block.args):
        if argument.first_use is None and argument not in outputs:
            block.erase_arg(argument)
    return _Outlined(finish_function(name, block, outputs), tuple(reads))
