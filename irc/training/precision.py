"""In which dtypes a step of training stores parameters, computes, and moves what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from irc.errors import IrcError, did_you_mean

FULL, HALVES = "float32", ("bfloat16", "float16")
"""What masters are, and what one can compute and store in beside the module's own dtypes."""

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
KNOWN = {"parameters": HALVES, "compute": HALVES, "masters": (FULL,), "reduce": (FULL, *HALVES)}
"""The dtypes that each of a policy may be."""

PrecisionOption: TypeAlias = "Precision | str | object | None"
"""A policy; a dtype to compute in, by name or torch's; several as ``parameters=bfloat16,
masters=float32``; None: everything as the module has it."""


@dataclass(frozen=True)
class Precision:
    """A policy of dtypes; each is a name (``bfloat16``), torch's dtype, or None.

    With ``compute`` alone parameters, states and updates stay float32 and are the masters: matrix
    products, convolutions and attention are computed in ``compute``, what needs more in float32, by
    the rules of ``torch.autocast``. Weights that ranks hold in parts may then be gathered in
    ``compute``, and gradients of products be added up in it. With ``parameters`` the module itself
    is changed: what it holds, ranks store and a checkpoint has is of that dtype; updates are made
    in float32 and rounded once. With ``masters`` what is lost by rounding is kept beside the
    moments, so that updates far smaller than a parameter still count::

        irc.compile_step(model, loss=f, precision="bfloat16")  # compute
        irc.compile_step(model, loss=f, precision=irc.Precision(parameters="bfloat16"))
        irc.compile_step(
            model, loss=f, precision=irc.Precision(parameters="bfloat16", masters="float32")
        )

    In ``float16`` small gradients are zero, so the loss is scaled, as ``torch.amp.GradScaler`` does
    it: where a gradient of any rank or stage is infinite or NaN, the step leaves parameters, states
    and the optimiser's count as they are on all of them, and the scale is halved; after 2000 steps
    in a row it is doubled. What a fused kernel computes in float16 and no other reads is float32
    inside of it, so that it may overflow at a scale higher than in eager. ``step.scaler`` is the
    scaler; its state is a part of the step's::

        irc.compile_step(model, loss=f, precision="float16")
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        irc.compile_step(model, loss=f, precision=irc.Precision(compute="float16", scaler=scaler))

    Attributes:
        parameters: ``bfloat16`` or ``float16``, of float32 parameters; None: as they are.
        compute: ``bfloat16`` or ``float16``; None: what parameters are changed to, or what the
            module says.
        masters: ``float32``, of parameters that are of half precision; None: they have none.
        reduce: ``float32``, ``bfloat16`` or ``float16``: what ranks add up their gradients of
            weights in; None: what the gradients are computed in.
        scaler: scales the loss in any dtype: a ``torch.amp.GradScaler``, whose numbers each step
            reads and writes, or its arguments by name (``init_scale``, ``growth_factor``,
            ``backoff_factor``, ``growth_interval``); one with ``enabled=False`` does nothing.
            None: torch's own numbers in ``float16``, no scale otherwise.

    Raises:
        IrcError: ``option-value`` for other dtypes.
    """

    # What a user says, and names in the recipe of a plan.
    parameters: Any = None
    compute: Any = None
    masters: Any = None
    reduce: Any = None
    scaler: Any = None

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            value = dtype_name(getattr(self, name))
            if value and value not in known:
                raise IrcError(
                    "option-value",
                    f"precision: {name}={value} is none that a step trains in",
                    because=f"{name} may be {', '.join(known)}, or left out",
                    help=did_you_mean(value, known),
                )
            object.__setattr__(self, name, value or None)
        scaler = self.scaler
        is_scaler = hasattr(scaler, "get_scale") and hasattr(scaler, "is_enabled")
        if scaler is not None and not (is_scaler or isinstance(scaler, Mapping)):
            raise IrcError(
                "option-value",
                f"precision: scaler={scaler!r} is no torch.amp.GradScaler",
                help='give one, or its arguments: scaler={"init_scale": 2.0**12}',
            )

    @property
    def computes(self) -> str:
        """The dtype that autocast is to compute in; empty: as the module says."""
        return f"{self.compute or self.parameters or ''}"

    @property
    def sums(self) -> str:
        """The dtype that ranks add up gradients in, as the IR has it; empty: their own."""
        return SHORT.get(f"{self.reduce}", "")

    @property
    def is_scaled(self) -> bool:
        """Whether the loss is scaled: in float16, and where there is a scaler."""
        scaler = self.scaler
        if scaler is None:
            return "float16" in (self.compute, self.parameters)
        is_enabled = (
            scaler.is_enabled() if hasattr(scaler, "is_enabled") else scaler.get("enabled", 1)
        )
        return bool(is_enabled)


def dtype_name(dtype: object) -> str:
    """Return a dtype by name, without ``torch.``; empty for None.

    >>> dtype_name("torch.bfloat16"), dtype_name(None)
    ('bfloat16', '')
    """
    return "" if dtype is None else f"{dtype}".removeprefix("torch.")


AS_IS = Precision()
"""Everything as the module has it."""


def precision_of(option: PrecisionOption) -> Precision:
    """Read what a user says of dtypes: a policy, a dtype to compute in, or a text of several.

    >>> precision_of("bfloat16").computes
    'bfloat16'
    >>> precision_of("parameters=bfloat16, masters=float32").masters
    'float32'

    Raises:
        IrcError: ``option-value``.
    """
    if isinstance(option, Precision):
        return option
    if not isinstance(option, str) or "=" not in option:
        return Precision(compute=option)
    pairs = [part.partition("=") for part in option.split(",")]
    dtypes = {name.strip(): dtype.strip() for name, _, dtype in pairs}
    for name, dtype in dtypes.items():
        if name not in KNOWN or not dtype:
            raise IrcError(
                "option-value",
                f"precision: '{name}={dtype}' says nothing of a policy",
                because=f"it has {', '.join(KNOWN)}",
                help=did_you_mean(name, KNOWN) if dtype else f"write compute={name}",
            )
    if len(dtypes) < len(pairs):
        raise IrcError("option-value", f"precision: '{option}' says something twice")
    return Precision(**dtypes)
