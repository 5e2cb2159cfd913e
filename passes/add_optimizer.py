"""Pass ``add-optimizer``: gradients become new parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import argument_attrs, arguments, entry, results
from irc.dialects.flow import loc_of, tensor
from irc.dialects.types import TensorType
from irc.errors import IrcError, did_you_mean
from irc.ops.derivative import PhaseBuilder
from irc.training.entry import add_argument, globs, matches, set_results
from irc.training.optimizers import OPTIMIZERS, Optimizer, Settings, Shared, shared


@dataclass(frozen=True)
class AddOptimizerPass(ModulePass):
    """Turn gradients into an optimiser step: one program is one step of training.

    Parameters and moments are then states of the program: their new values are results of role
    ``state``, which lie as the arguments of the same name do, so that no gradient or moment need be
    whole on a rank that does not keep it (ZeRO, arXiv:1910.02054). The learning rate is an input,
    ``lr``, and the number of steps so far a state, ``optimizer.step``.

    Options: ``kind`` is adamw, adam, sgd or momentum (sgd with one); ``beta1``, ``beta2``, ``eps``,
    ``momentum`` and ``weight_decay`` are torch's, with torch's defaults; ``no_decay`` has globs of
    parameters without decay; ``clip_norm`` limits the norm of all gradients together.

    Run: add-optimizer{kind=sgd}

    Before:

    ```mlir
    func.func @forward(%w: !flow.tensor<[5], f32> {role = "parameter", name = "w"},
        %x: !flow.tensor<[5], f32> {role = "input", name = "x"})
        -> (!flow.tensor<[5], f32> {role = "gradient", name = "w"}) {
      %g = flow.pointwise(%x) {fn = "exp", loc = "m.py:1", id = "n0.g0", phase = "backward"}
          : (!flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      func.return %g : !flow.tensor<[5], f32>
    }
    ```

    After:

    ```mlir
    func.func @forward(%w: !flow.tensor<[5], f32> {role = "parameter", name = "w"},
        %x: !flow.tensor<[5], f32> {role = "input", name = "x"},
        %lr: !flow.tensor<[], f64> {role = "input", name = "lr"})
        -> (!flow.tensor<[5], f32> {role = "state", name = "w"}) {
      %g = flow.pointwise(%x) {fn = "exp", loc = "m.py:1", id = "n0.g0", phase = "backward"}
          : (!flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      %0 = flow.pointwise(%lr) {fn = "cast", loc = "m.py:1", id = "step0.0", phase = "step"}
          : (!flow.tensor<[], f64>) -> !flow.tensor<[], f32>
      %1 = flow.pointwise(%g, %0) {fn = "mul", loc = "m.py:1", id = "step0.1", phase = "step"}
          : (!flow.tensor<[5], f32>, !flow.tensor<[], f32>) -> !flow.tensor<[5], f32>
      %2 = flow.pointwise(%w, %1) {fn = "sub", loc = "m.py:1", id = "step0.2", phase = "step"}
          : (!flow.tensor<[5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      func.return %2 : !flow.tensor<[5], f32>
    }
    ```

    Half-precision parameters are updated in float32 and rounded once; their moments are float32.
    """

    name = "add-optimizer"
    level: ClassVar[str] = "flow"

    kind: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float | None = None
    momentum: float = 0.9
    no_decay: str = ""
    clip_norm: float = 0.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Replace the results of role gradient by new states."""
        if self.kind not in OPTIMIZERS:
            raise IrcError(
                "option-value",
                f"add-optimizer knows no '{self.kind}'",
                help=did_you_mean(self.kind, OPTIMIZERS),
            )
        func = entry(op)
        gradients = {
            name: value
            for (role, name), value in zip(results(func), _returned(func), strict=True)
            if role == "gradient"
        }
        if not gradients:
            raise IrcError(
                "option-value",
                "the program has no gradients for add-optimizer",
                help="run differentiate before it",
            )
        _Update(func, self, OPTIMIZERS[self.kind]).run(gradients)

    def settings(self) -> Settings:
        """The numbers that the optimiser is told."""
        decay = self.weight_decay
        return Settings(
            (self.beta1, self.beta2),
            self.eps,
            OPTIMIZERS[self.kind].weight_decay if decay is None else decay,
            self.momentum,
        )


def _returned(func: FuncOp) -> list[SSAValue]:
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    return list(end.operands)


@dataclass
class _Update:
    """One entry while it gets its step."""

    func: FuncOp
    options: AddOptimizerPass
    optimizer: Optimizer
    new: list[tuple[SSAValue, DictionaryAttr]] = field(
        default_factory=list[tuple[SSAValue, DictionaryAttr]]
    )

    def run(self, gradients: Mapping[str, SSAValue]) -> None:
        """Append the step and set the results: outputs, then states."""
        func, settings = self.func, self.options.settings()
        kept = [
            (value, argument_attrs(role, name))
            for (role, name), value in zip(results(func), _returned(func), strict=True)
            if role != "gradient"
        ]
        held = {name: value for role, name, value in arguments(func) if role == "parameter"}
        end = func.body.block.last_op
        assert end is not None
        end.detach()
        gradients = self._clipped(gradients)
        by = self._shared(settings)
        for number, (name, gradient) in enumerate(gradients.items()):
            # Names are the user's; ids are ours.
            b = self._builder(str(number), _line(gradient))
            self._parameter(b, name, held[name], gradient, settings, by)
        func.body.block.add_op(end)
        every = [*kept, *self.new]
        set_results(func, [value for value, _ in every], [attrs for _, attrs in every])

    def _builder(self, name: str, loc: str) -> PhaseBuilder:
        return PhaseBuilder(self.func.body.block, "step", prefix=f"step{name}.", loc=loc)

    def _shared(self, settings: Settings) -> Shared:
        scalar = TensorType.of((), "f64")
        lr = add_argument(self.func, scalar, "input", "lr")
        b = self._builder("lr", "optimizer")
        if not self.optimizer.counts:
            return shared(b, settings, lr, None)
        steps = add_argument(self.func, TensorType.of((), "i64"), "state", "optimizer.step")
        count = b.pointwise("add", steps, b.scalar(1, "i64"))
        self.new.append((count, argument_attrs("state", "optimizer.step")))
        return shared(b, settings, lr, count)

    def _parameter(
        self,
        b: PhaseBuilder,
        name: str,
        parameter: SSAValue,
        gradient: SSAValue,
        settings: Settings,
        by: Shared,
    ) -> None:
        kind = tensor(parameter)
        wide = _wide(kind.dtype)
        if matches(name, globs(self.options.no_decay)):
            settings = replace(settings, weight_decay=0.0)
        names = [f"optimizer.{moment}.{name}" for moment in self.optimizer.moments]
        held = TensorType.of(kind.shape, wide)
        moments = [add_argument(self.func, held, "state", n) for n in names]
        given = b.cast(parameter, wide), b.cast(gradient, wide)
        value, *moved = self.optimizer.step(b, settings, by, *given, moments)
        self.new.append((b.cast(value, kind.dtype), argument_attrs("state", name)))
        self.new += [(m, argument_attrs("state", n)) for n, m in zip(names, moved, strict=True)]

    def _clipped(self, gradients: Mapping[str, SSAValue]) -> Mapping[str, SSAValue]:
        """Scale all gradients down where their common norm is larger than the limit."""
        if not self.options.clip_norm:
            return gradients
        b = self._builder("norm", "optimizer")
        total: SSAValue | None = None
        for value in gradients.values():
            wide = b.cast(value, _wide(tensor(value).dtype))
            square = b.pointwise("mul", wide, wide)
            part = b.reduce("sum", square, range(tensor(wide).ndim), keep_dims=False)
            if total is not None:
                part = b.pointwise("add", total, b.cast(part, tensor(total).dtype))
            total = part
        assert total is not None
        dtype = tensor(total).dtype
        # torch.nn.utils.clip_grad_norm_ adds this to the norm.
        norm = b.pointwise("add", b.pointwise("sqrt", total), b.scalar(1e-6, dtype))
        ratio = b.pointwise("div", b.scalar(self.options.clip_norm, dtype), norm)
        scale = b.pointwise("minimum", ratio, b.scalar(1, dtype))
        return {
            name: b.pointwise("mul", value, b.cast(scale, tensor(value).dtype))
            for name, value in gradients.items()
        }


def _wide(dtype: str) -> str:
    return "f32" if dtype in ("f16", "bf16") else dtype


def _line(value: SSAValue) -> str:
    return "optimizer" if isinstance(value.owner, Block) else loc_of(value.owner)
