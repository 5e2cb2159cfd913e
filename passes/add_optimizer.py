"""Pass ``add-optimizer``: gradients become new parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from irc.dialects.builder import entry, results
from irc.errors import IrcError, did_you_mean
from irc.training.entry import globs, matches
from irc.training.groups import FLAGS, OWN, NumberedGroup, group_of, parse_groups
from irc.training.optimizers import OPTIMIZERS
from irc.training.settings import OF_DTYPE, Settings
from irc.training.update import Options, Update


@dataclass(frozen=True)
class AddOptimizerPass(ModulePass):
    """Turn gradients into an optimiser step: one program is one step of training.

    Parameters and moments are then states of the program: their new values are results of role
    ``state``, which lie as the arguments of the same name do, so that no gradient or moment need be
    whole on a rank that does not keep it (ZeRO, arXiv:1910.02054). The learning rate is an input,
    ``lr``, and the number of steps so far a state, ``optimizer.step``. Where groups have rates of
    their own, ``lr`` has one number for each.

    Options: ``kind`` is adamw, adam, sgd or momentum (sgd with one), or another of torch
    (:data:`irc.training.optimizers.OPTIMIZERS`); ``beta1``, ``beta2``, ``eps``, ``momentum``,
    ``weight_decay``, ``alpha``, ``rho``, ``lr_decay``, ``beta2_decay``, ``d``, ``nesterov``,
    ``maximize`` and ``centered`` are torch's, with torch's defaults, and ``eps1`` and ``eps2`` the
    two of its Adafactor's ``eps``: below 0 ``eps1`` is that of the dtype of a parameter, or of its
    master; ``no_decay`` has globs of parameters without decay; ``groups`` are told other numbers
    (:mod:`irc.training.groups`); ``clip_norm`` limits the norm of all gradients together.
    Where other programs (stages of a pipeline) have gradients too, ``norm_apart`` gives the
    sum of the squares of this one's as result ``norm`` and takes that of all as input ``norm``;
    ``uncounted`` has globs of parameters that another program counts.

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
      %0 = flow.pointwise(%lr) {fn = "cast", loc = "optimizer", id = "stepas0.0", phase = "step"}
          : (!flow.tensor<[], f64>) -> !flow.tensor<[], f32>
      %1 = flow.pointwise(%g, %0) {fn = "mul", loc = "m.py:1", id = "step0.0", phase = "step"}
          : (!flow.tensor<[5], f32>, !flow.tensor<[], f32>) -> !flow.tensor<[5], f32>
      %2 = flow.pointwise(%w, %1) {fn = "sub", loc = "m.py:1", id = "step0.1", phase = "step"}
          : (!flow.tensor<[5], f32>, !flow.tensor<[5], f32>) -> !flow.tensor<[5], f32>
      func.return %2 : !flow.tensor<[5], f32>
    }
    ```

    Half-precision parameters are updated in float32 and rounded once; their moments are float32.
    With ``masters`` what rounding takes away is a state, ``remainder``, and added next time.
    With ``scaled`` gradients are multiplied by the input ``loss_scale.inverse`` first, and where
    one is infinite or NaN every state keeps its value; how many are is the result
    ``loss_scale.overflows`` (:mod:`irc.training.loss_scale`).
    ``kind=eager`` moves nothing: gradients, clipped and unscaled, are states
    ``optimizer.gradient.NAME``, for an optimiser of torch that runs after the program.
    Weights of a block that many layers call share one function, ``@step_N``, as the layers do.
    """

    name = "add-optimizer"
    level: ClassVar[str] = "flow"

    kind: str = "adamw"
    beta1: float = 0.9
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    momentum: float = 0.9
    alpha: float = 0.99
    rho: float = 0.9
    beta2_decay: float = -0.8
    eps1: float = OF_DTYPE
    eps2: float = 1e-3
    d: float = 1.0
    lr_decay: float = 0.0
    nesterov: float = 0.0
    maximize: float = 0.0
    centered: float = 0.0
    no_decay: str = ""
    clip_norm: float = 0.0
    norm_apart: bool = False
    uncounted: str = ""
    groups: str = ""
    masters: bool = False
    scaled: bool = False

    def __post_init__(self) -> None:
        try:
            self._groups  # noqa: B018  # read once, so that it is refused here
        except ValueError as error:
            raise IrcError(
                "option-value",
                f"add-optimizer: {error}",
                help="head.*: rate=1 weight_decay=0; *.bias: weight_decay=0",
            ) from None

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
        chosen = Options(
            OPTIMIZERS[self.kind],
            self.settings,
            self.clip_norm,
            self.norm_apart,
            tuple(globs(self.uncounted)),
            1 + max((group.rate for group in self._groups), default=0),
            self.masters,
            self.scaled,
        )
        Update(op, func, chosen).run(gradients)

    def settings(self, name: str) -> Settings:
        """Return the numbers that the optimiser is told for a parameter."""
        kind = OPTIMIZERS[self.kind]
        decay = kind.weight_decay if self.weight_decay is None else self.weight_decay
        if matches(name, globs(self.no_decay)):
            decay = 0.0
        eps = kind.eps if self.eps is None else self.eps
        beta2 = kind.beta2 if self.beta2 is None else self.beta2
        group = group_of(name, self._groups)
        told = {each: getattr(self, each) for each in OWN}
        told |= {
            "weight_decay": decay,
            "eps": eps,
            "beta2": beta2,
            **(group.numbers if group else {}),
        }
        betas = told.pop("beta1"), told.pop("beta2")
        flags = {flag: bool(told.pop(flag)) for flag in FLAGS}
        return Settings(betas=betas, rate=group.rate if group else 0, **flags, **told)

    @cached_property
    def _groups(self) -> list[NumberedGroup]:
        return parse_groups(self.groups)


def _returned(func: FuncOp) -> list[SSAValue]:
    end = func.body.block.last_op
    assert isinstance(end, ReturnOp)
    return list(end.operands)
