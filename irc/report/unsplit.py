"""Axes of a mesh that divide nothing, and what a user may pin so that they do."""

from __future__ import annotations

from collections.abc import Sequence

from irc.constraints.layouts import TENSOR
from irc.plan.schema import Buffer, Plan, Start


def idle_axes(plan: Plan) -> tuple[str, ...]:
    """Return the axes of more than one rank along which nothing lies in parts or is exchanged.

    Their ranks hold and compute the same: small models cost less so than the exchange of parts
    would, and a batch that an axis does not divide stays whole.
    """
    mesh = plan.device_mesh
    cuts = {cut.axis for b in plan.buffers for cut in b.placement if cut.kind != "B"}
    used = cuts | {f"{a.attrs['axis']}" for a in plan.actions if isinstance(a, Start)}
    return tuple(name for name in mesh.names if mesh.size(name) > 1 and name not in used)


def pin_for(plan: Plan, axis: str) -> str:
    """Return a constraint that divides something over an idle axis; empty where nothing fits.

    Axes that are called as those of tensor parallelism divide the largest parameter, others the
    samples of the largest input, where their ranks share the sizes equally.
    """
    ranks = plan.device_mesh.size(axis)
    inputs = [plan.buffers[i] for i in plan.inputs]
    weights = [plan.buffers[i] for i in plan.weights if plan.buffers[i].role == "parameter"]
    orders = (weights, inputs) if axis in TENSOR else (inputs, weights)
    for buffers in orders:
        if (largest := _largest(buffers, ranks)) is not None:
            buffer, dim = largest
            return f'"{buffer.name}" = [{axis} = S({dim})]'
    return ""


def _largest(buffers: Sequence[Buffer], ranks: int) -> tuple[Buffer, int] | None:
    """Return the largest tensor that has a dim which so many ranks share, and its first such."""
    fitting = [
        (buffer, dims[0])
        for buffer in buffers
        if buffer.name and '"' not in buffer.name
        if (dims := [d for d, n in enumerate(buffer.shape) if n >= ranks and n % ranks == 0])
    ]
    return max(fitting, key=lambda each: each[0].num_elements, default=None)


def idle_lines(plan: Plan) -> list[str]:
    """Say of each idle axis what would divide something over it, for people."""
    lines: list[str] = []
    for axis in idle_axes(plan):
        pin = pin_for(plan, axis)
        ways = f"; --pins '{pin}' divides that" if pin else ", and no size is a multiple of it"
        lines.append(f"{axis} divides nothing over its {plan.device_mesh.size(axis)} ranks{ways}")
    return lines
