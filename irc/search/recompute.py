"""Policy ``auto`` of recompute: the cheapest policies whose plan fits into the devices.

Each of none, selective and full is planned for all blocks alike, in this order, until one fits;
then every block goes back to a policy that computes less again, as far as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp

from irc.constraints.pins import Statement
from irc.constraints.resolve import resolve
from irc.cost.model import ClusterCost
from irc.search.graph import Wishes
from irc.search.on_mesh import search
from irc.search.solved import TooSmall
from irc.training.recompute import apply_policies

TRIED = ("none", "selective", "full")
"""From what computes least again to what saves least."""


@dataclass(frozen=True)
class Choice:
    """Policies that fit, and the time of their plan.

    Attributes:
        policies: by the name of the forward function.
        seconds: of the best plan that fits.
    """

    policies: Mapping[str, str]
    seconds: float


def cheapest(
    module: ModuleOp,
    cost: ClusterCost,
    statements: tuple[Statement, ...],
    *,
    memory_bytes: int | None = None,
) -> Mapping[str, str]:
    """Return the policy of each body; where nothing fits, that which saves least.

    Args:
        module: after ``differentiate``; not changed.
        cost: the cost model, on a mesh.
        statements: the user's pins, for the search.
        memory_bytes: of a device; None: those of the cluster's, less a margin.
    """
    best: Choice | None = None
    for policy in TRIED:
        choice = _tried(module, cost, statements, memory_bytes, policy, {})
        if choice is not None and (best is None or choice.seconds < best.seconds):
            best = choice
        if best is not None and policy in best.policies.values():
            break
    if best is None:
        copy = module.clone()
        return {d.function: TRIED[-1] for d in apply_policies(copy, TRIED[-1])}
    for policies in _milder(best):
        choice = _tried(module, cost, statements, memory_bytes, "none", policies)
        if choice is not None and choice.seconds < best.seconds:
            best = choice
    return best.policies


def _milder(best: Choice) -> Iterator[dict[str, str]]:
    """Yield policies in which one body computes less again."""
    for name, policy in best.policies.items():
        for other in TRIED[: TRIED.index(policy)]:
            yield {**best.policies, name: other}


def _tried(
    module: ModuleOp,
    cost: ClusterCost,
    statements: tuple[Statement, ...],
    memory_bytes: int | None,
    policy: str,
    own: Mapping[str, str],
) -> Choice | None:
    copy = module.clone()
    decisions = apply_policies(copy, policy, own)
    wishes = Wishes("replicated", resolve(copy, cost.mesh, statements), memory_bytes)
    try:
        plan = search(copy, cost, wishes)
    except TooSmall:
        return None
    return Choice({d.function: d.policy for d in decisions}, plan.solution.seconds)
