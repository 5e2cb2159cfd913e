"""Further optimisers of torch as formulas: RMSprop, Adagrad, Adamax, Adadelta.

Each takes a parameter, its gradient and its moments; see :mod:`irc.training.optimizers`.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from irc.dialects.builder import FlowBuilder
from irc.dialects.flow import tensor
from irc.ops.derivatives_pointwise import Term
from irc.training.settings import Settings, Shared


def rmsprop(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Hinton 2012: by the root of a mean of squares; ``centered`` takes the mean's square off."""
    p, g = decayed(b, settings, parameter, gradient)
    square, *rest = (Term(b, moment) for moment in moments)
    square = square * settings.alpha + g * g * (1 - settings.alpha)
    moved, spread = [square], square
    if settings.centered:
        mean = rest.pop(0)
        mean = mean + (g - mean) * (1 - settings.alpha)
        moved.append(mean)
        spread = square - mean * mean
    change = g / (spread.of("sqrt") + settings.eps)
    if rest:
        change = rest[0] * settings.momentum + change
        moved.append(change)
    p = p - change * in_dtype(b, by.lr, p)
    return [p.value, *(moment.value for moment in moved)]


def adagrad(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Duchi, Hazan and Singer 2011: by the root of a sum of squares."""
    p, g = decayed(b, settings, parameter, gradient)
    total = Term(b, moments[0]) + g * g
    assert by.scale is not None
    p = p - g / (total.of("sqrt") + settings.eps) * in_dtype(b, by.scale, p)
    return [p.value, total.value]


def adamax(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Kingma and Ba 2015, section 7.1: by a decaying maximum."""
    p, g = decayed(b, settings, parameter, gradient)
    first, second = settings.betas
    mean = Term(b, moments[0]) * first + g * (1 - first)
    most = (Term(b, moments[1]) * second).of("maximum", g.of("abs") + settings.eps)
    assert by.scale is not None
    p = p - mean / most * in_dtype(b, by.scale, p)
    return [p.value, mean.value, most.value]


def adadelta(
    b: FlowBuilder,
    settings: Settings,
    by: Shared,
    parameter: SSAValue,
    gradient: SSAValue,
    moments: list[SSAValue],
) -> list[SSAValue]:
    """Zeiler 2012 (arXiv:1212.5701): by the ratio of roots of two means of squares."""
    p, g = decayed(b, settings, parameter, gradient)
    square, changes = (Term(b, moment) for moment in moments)
    square = square * settings.rho + g * g * (1 - settings.rho)
    change = (changes + settings.eps).of("sqrt") / (square + settings.eps).of("sqrt") * g
    changes = changes * settings.rho + change * change * (1 - settings.rho)
    p = p - change * in_dtype(b, by.lr, p)
    return [p.value, square.value, changes.value]


def decayed(
    b: FlowBuilder, settings: Settings, parameter: SSAValue, gradient: SSAValue
) -> tuple[Term, Term]:
    """Return a parameter and its gradient, of which weight decay is a part."""
    p, g = Term(b, parameter), Term(b, gradient)
    return p, g + p * settings.weight_decay if settings.weight_decay else g


def in_dtype(b: FlowBuilder, number: SSAValue, like: Term) -> Term:
    """Return one of a step's scalars in the dtype of a parameter."""
    return Term(b, b.cast(number, tensor(like.value).dtype))
