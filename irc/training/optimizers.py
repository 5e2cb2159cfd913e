"""Optimiser steps as formulas: from a parameter, its gradient and its state to their new values.

Numbers that parameters share (a learning rate with its bias corrections) are computed once, in
float64 scalars, as torch computes them in Python. Half types are updated in float32 and rounded
once; their moments are float32. Where they have masters, what a parameter lacks of its float32
value is kept as a state: the sum of both is that value exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.ops.derivatives_pointwise import Term
from irc.training.adaptive import adadelta, adagrad, adamax, in_dtype, rmsprop
from irc.training.factored import COLUMNS, ROWS, adafactor
from irc.training.settings import Settings, Shared

D = TypeVar("D")
Step: TypeAlias = Callable[
    [FlowBuilder, Settings, Shared, SSAValue, SSAValue, list[SSAValue]], list[SSAValue]
]
"""Takes a parameter, its gradient and its moments; returns the parameter and moments anew."""


@dataclass(frozen=True)
class Optimizer:
    """One kind of optimiser.

    Attributes:
        moments: names of the tensors that it keeps for each parameter, of its shape.
        counts: true where it needs the number of the step.
        step: its formula.
        weight_decay: torch's default.
        eps: torch's default.
        beta2: its default.
        decays: whether its rate falls with the number of the step.
        moves: whether parameters get new values; otherwise gradients are kept, for one that does
            that after the program.
        factors: of matrices it keeps means of rows and of columns in the place of moments.
    """

    moments: tuple[str, ...]
    counts: bool
    step: Step
    weight_decay: float = 0.0
    eps: float = 1e-8
    beta2: float = 0.999
    decays: bool = False
    moves: bool = True
    factors: bool = False

    def states(self, shape: Sequence[D]) -> Mapping[str, tuple[D | int, ...]]:
        """Return the shapes of what is kept for a parameter, by name.

        Args:
            shape: of the parameter.

        >>> OPTIMIZERS["adafactor"].states((4, 8))
        {'row_var': (4, 1), 'col_var': (1, 8)}
        """
        if self.factors and len(shape) > 1:
            return {ROWS: (*shape[:-1], 1), COLUMNS: (*shape[:-2], 1, shape[-1])}
        return dict.fromkeys(self.moments, tuple(shape))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that may be kept for a parameter."""
        return (*self.moments, *([ROWS, COLUMNS] if self.factors else []))


def shared(
    b: FlowBuilder,
    settings: Settings,
    lr: SSAValue,
    count: SSAValue | None,
    *,
    kind: Optimizer,
) -> Shared:
    """Compute a step's scalars.

    Args:
        b: where ops go.
        settings: betas, or how a rate or a mean decays.
        lr: the learning rate.
        count: the number of this step, from 1.
        kind: the optimiser.
    """
    if count is None:
        return Shared(lr)
    steps = Term(b, b.cast(count, "f64"))
    if kind.factors:
        rate = Term(b, b.cast(lr, "f64")).of("minimum", steps.of("rsqrt"))
        new = steps.of("pow", steps.number(settings.beta2_decay))
        return Shared(lr, rate.value, new.value)
    if kind.decays:
        slower = (steps - 1.0) * settings.lr_decay + 1.0
        return Shared(lr, (Term(b, b.cast(lr, "f64")) / slower).value)
    corrections = [1 - steps.number(beta).of("pow", steps) for beta in settings.betas]
    scale = Term(b, b.cast(lr, "f64")) / corrections[0]
    return Shared(lr, scale.value, corrections[1].of("sqrt").value)


def _adam(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Kingma and Ba 2015; weight decay is part of the gradient."""
    if settings.weight_decay:
        gradient = (Term(b, gradient) + Term(b, parameter) * settings.weight_decay).value
    return _moved(b, settings, by, Term(b, parameter), Term(b, gradient), moments)


def _adamw(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Loshchilov and Hutter 2019: weight decay apart from the moments."""
    p = Term(b, parameter)
    if settings.weight_decay:
        lr = Term(b, b.cast(by.lr, tensor(parameter).dtype))
        p = p * (1 - lr * settings.weight_decay)
    return _moved(b, settings, by, p, Term(b, gradient), moments)


def _moved(
    b: FlowBuilder, settings: Settings, by: Shared, p: Term, g: Term, moments: list[SSAValue]
) -> list[SSAValue]:
    first, second = settings.betas
    m = Term(b, moments[0]) * first + g * (1 - first)
    v = Term(b, moments[1]) * second + g * g * (1 - second)
    assert by.scale is not None
    assert by.root is not None
    dtype = tensor(p.value).dtype
    scale, root = (Term(b, b.cast(value, dtype)) for value in (by.scale, by.root))
    most = [Term(b, moment).of("maximum", v) for moment in moments[2:]]
    p = p - m * scale / ((most[0] if most else v).of("sqrt") / root + settings.eps)
    return [p.value, m.value, v.value, *(moment.value for moment in most)]


def _lion(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Chen et al. 2023 (arXiv:2302.06675): by signs; weight decay apart."""
    p, g, mean = Term(b, parameter), Term(b, gradient), Term(b, moments[0])
    lr = in_dtype(b, by.lr, p)
    if settings.weight_decay:
        p = p * (1 - lr * settings.weight_decay)
    first, second = settings.betas
    p = p - (mean * first + g * (1 - first)).of("sign") * lr
    return [p.value, (mean * second + g * (1 - second)).value]


def _sgd(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Stochastic gradient descent, with momentum where it is not 0."""
    p, g = Term(b, parameter), Term(b, gradient)
    if settings.weight_decay:
        g = g + p * settings.weight_decay
    change = g
    if moments:
        g = Term(b, moments[0]) * settings.momentum + g
        change = change + g * settings.momentum if settings.nesterov else g
    new = p - change * Term(b, b.cast(by.lr, tensor(parameter).dtype))
    return [new.value, *([g.value] if moments else [])]


def _kept(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Keep the gradient; a copy of it is of the step, whatever function has computed it."""
    return [parameter, Term(b, gradient).of("copy").value]


ADAM = ("exp_avg", "exp_avg_sq")

EAGER = "eager"
"""The kind of an optimiser of torch that runs on what a program computed."""

GRADIENT = "gradient"
"""What a program keeps for it of each parameter: clipped, and without the scale of the loss."""

OPTIMIZERS: Mapping[str, Optimizer] = {
    "adamw": Optimizer(("exp_avg", "exp_avg_sq"), counts=True, step=_adamw, weight_decay=0.01),
    "adam": Optimizer(("exp_avg", "exp_avg_sq"), counts=True, step=_adam),
    "sgd": Optimizer((), counts=False, step=_sgd),
    "momentum": Optimizer(("momentum_buffer",), counts=False, step=_sgd),
    "adamw-amsgrad": Optimizer((*ADAM, "max_exp_avg_sq"), True, _adamw, weight_decay=0.01),
    "adam-amsgrad": Optimizer((*ADAM, "max_exp_avg_sq"), True, _adam),
    "rmsprop": Optimizer(("square_avg",), True, rmsprop),
    "rmsprop-momentum": Optimizer(("square_avg", "momentum_buffer"), True, rmsprop),
    "rmsprop-centered": Optimizer(("square_avg", "grad_avg"), True, rmsprop),
    "rmsprop-centered-momentum": Optimizer(
        ("square_avg", "grad_avg", "momentum_buffer"), True, rmsprop
    ),
    "adagrad": Optimizer(("sum",), True, adagrad, eps=1e-10, decays=True),
    "adamax": Optimizer(("exp_avg", "exp_inf"), True, adamax),
    "adadelta": Optimizer(("square_avg", "acc_delta"), True, adadelta, eps=1e-6),
    "adafactor": Optimizer(("variance",), True, adafactor, factors=True),
    "lion": Optimizer(("exp_avg",), counts=False, step=_lion, beta2=0.99),
    EAGER: Optimizer((GRADIENT,), counts=False, step=_kept, moves=False),
}
"""By name: torch's optimiser, then what it keeps more states for; ``momentum`` is of its SGD."""

REMAINDER = "remainder"
"""What a master has more than its parameter, float32: a state beside the moments, zero at first."""

SQUARES = frozenset(
    {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta", "variance"}
    | {ROWS, COLUMNS}
)
"""Moments that are means or sums of squares, or magnitudes: no element is negative."""
