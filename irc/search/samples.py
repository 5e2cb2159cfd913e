"""Samples that the ranks of an axis do not share equally: an axis that then divides nothing.

Shards of what is computed come out even. Where an axis is there to divide the samples and does not
divide their number, a search may find nothing that the axis is good for: each of its ranks would
compute everything, which takes as long as one of them alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry
from irc.dialects.flow import FlowOp, phase_of, tensor
from irc.dialects.placement import B, Mesh
from irc.dialects.sbp import BoxingOp
from irc.dialects.types import TensorType
from irc.errors import IrcError
from irc.sharding.mesh import equal_shares


def check_samples(
    module: ModuleOp, mesh: Mesh, axes: Sequence[str], pinned: Collection[str]
) -> None:
    """Refuse a batch that ranks do not share equally, where each would compute all of it.

    Args:
        module: level flow+sbp.
        mesh: of the plan.
        axes: that are to divide samples, the first dim of the first input that has one.
        pinned: names of the inputs whose placement the user chose, which is heard.

    Raises:
        IrcError: ``mesh-axis-indivisible``.
    """
    own = [axis for axis in axes if axis in mesh.names and mesh.size(axis) > 1]
    inputs = [(name, value) for role, name, value in arguments(entry(module)) if role == "input"]
    shaped = [
        (name, tensor(value).static_shape())
        for name, value in inputs
        if isinstance(value.type, TensorType) and tensor(value).ndim
    ]
    if not own or not shaped or shaped[0][0] in pinned:
        return
    name, (rows, *_) = shaped[0]
    if rows % prod(mesh.size(axis) for axis in own) == 0:
        return
    if not (idle := [axis for axis in own if not _divides(module, axis)]):
        return
    words, count = ", ".join(idle), prod(mesh.size(axis) for axis in idle)
    whole = ", ".join(f"{axis} = B" for axis in idle)
    raise IrcError(
        "mesh-axis-indivisible",
        f"'{name}' has {rows} samples for {count} ranks of {words}, and each would compute all "
        "of them",
        because="the samples of a rank are as many as those of the others",
        help=f"{equal_shares(rows, count)}; or leave the last batch out (drop_last=True); "
        f"pins='\"{name}\" = [{whole}]' lets every rank compute all",
    )


def _divides(module: ModuleOp, axis: str) -> bool:
    """True where ranks of an axis compute different things before parameters move."""
    for op in module.walk():
        if isinstance(op, FlowOp) and not isinstance(op, BoxingOp) and phase_of(op) != "step":
            placed = [r.type.placement for r in op.outputs if isinstance(r.type, TensorType)]
            if any(p is not None and p[axis] != B for p in placed):
                return True
    return False
