"""What an optimiser is told, and the scalars of one of its steps."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

OF_DTYPE = -1.0
"""An ``eps1`` that stands for how far 1 is from the next number of a parameter's dtype."""


@dataclass(frozen=True)
class Settings:
    """What an optimiser is told of a parameter, under torch's names.

    Attributes:
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: how fast parameters decay.
        momentum: of sgd and rmsprop.
        rate: the number of its learning rate.
        alpha: decay of rmsprop's mean of squares.
        rho: decay of adadelta's means.
        beta2_decay: of adafactor: its means' decay is 1 less the step's number to this power.
        eps1: of adafactor, the least root of a second moment; :data:`OF_DTYPE`: how far 1 is from
            the next number of the dtype that a parameter is stored in, or its master.
        eps2: of adafactor, the least root mean square of a parameter that steps are measured by.
        d: of adafactor, the limit of a change's root mean square.
        lr_decay: of adagrad's rate.
        nesterov: sgd looks a step ahead.
        maximize: go up instead of down.
        centered: rmsprop divides by the variance.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    rate: int = 0
    alpha: float = 0.99
    rho: float = 0.9
    beta2_decay: float = -0.8
    eps1: float = OF_DTYPE
    eps2: float = 1e-3
    d: float = 1.0
    lr_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    centered: bool = False


@dataclass(frozen=True)
class Shared:
    """Scalars of one step.

    Attributes:
        lr: the learning rate.
        scale: of the first moment: the learning rate over its bias correction; of adagrad and
            adafactor, the rate as it has decayed.
        root: the square root of the second moment's bias correction; of adafactor, how much of a
            mean is new.
    """

    lr: SSAValue
    scale: SSAValue | None = None
    root: SSAValue | None = None
