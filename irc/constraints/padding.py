"""Padding of parameters whose rows a pin splits unevenly."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from irc.constraints.patterns import Pattern
from irc.constraints.pins import Statement
from irc.constraints.resolve import effective
from irc.dialects.builder import arguments, entry, results
from irc.dialects.flow import tensor
from irc.dialects.placement import Mesh, Split
from irc.dialects.types import TensorType
from irc.sharding.padding import is_front, names_of_padded, pad_argument, padded_rows
from irc.training.optimizers import OPTIMIZERS

STATES = sorted({state for each in OPTIMIZERS.values() for state in each.moments})
"""What optimisers keep of a parameter, by the names that pins have: ``optimizer.exp_avg.NAME``."""

MOVED = ("state", "gradient")
"""Roles of results that are as large as a parameter of the same name."""


def pad_pinned(
    module: ModuleOp, mesh: Mesh, statements: Sequence[Statement]
) -> dict[str, tuple[str, ...]]:
    """Pad the parameters whose first dim is pinned to axes that do not divide it; in place.

    So it is with those of whose states of the optimiser that is pinned.

    A pin that asks for equal shards, one whose shards are no slices of the parameter, and one of a
    parameter whose gradient is there already are left to who checks them.

    Args:
        module: level flow.
        mesh: of the program.
        statements: in the order in which they count.

    Returns:
        Of all parameters that are pinned, padded or not, the axes that split the first dim.
    """
    func = entry(module)
    statements = [each for each in statements if each.kind == "argument"]
    pinned: dict[str, tuple[str, ...]] = {}
    if not statements:
        return pinned
    moved = {name for role, name in results(func) if role in MOVED}
    padded = names_of_padded(func)
    for number, (role, name, value) in enumerate(arguments(func)):
        if role != "parameter" or not isinstance(value.type, TensorType):
            continue
        pin = _pin_of(name, statements)
        if pin is not None:
            pinned[name] = _axes_of_rows(pin, mesh, value)
        if name in moved or name in padded:
            continue
        # States are as large as their parameter is stored, and there are none yet.
        pins = [pin, *(_pin_of(f"optimizer.{state}.{name}", statements) for state in STATES)]
        for pin in pins:
            axes = () if pin is None or pin.equal else _axes_of_rows(pin, mesh, value)
            parts = [mesh.size(axis) for axis in axes]
            rows = tensor(value).shape[0] if axes else 1
            if not parts or not isinstance(rows, int):
                continue
            stored = padded_rows(rows, parts)
            if stored != rows and is_front(rows, stored, parts):
                pad_argument(func, number, stored)
                break
    return pinned


def _pin_of(name: str, statements: Sequence[Statement]) -> Statement | None:
    own = [each for each in statements if each.matches(name)]
    pin, _ = effective(own)
    return pin if pin is not None and isinstance(pin.pattern, Pattern) else None


def _axes_of_rows(pin: Statement, mesh: Mesh, value: SSAValue) -> tuple[str, ...]:
    """Return the axes that split the first dim, in the order of the mesh."""
    assert isinstance(pin.pattern, Pattern)
    ndim = tensor(value).ndim
    try:
        axes = pin.pattern.axes(mesh)
    except ValueError:
        return ()  # axes that the mesh lacks are refused where constraints are resolved
    return tuple(
        axis
        for axis, one in zip(mesh.names, axes, strict=True)
        if isinstance(one.placed, Split) and one.placed.dim in (0, -ndim)
    )
