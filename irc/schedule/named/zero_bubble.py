"""ZB-H1 and ZB-H2: gradients of weights fill the bubbles (Qi et al., arXiv:2401.10241, section 2).

A backward is two things: I, the gradient of a stage's input, for which the stage before waits, and
W, the gradient of its weights, for which nobody waits before the optimiser.
"""

from __future__ import annotations

from irc.schedule.actions import Action, Schedule, require_sizes, straight
from irc.schedule.named.stages import one_stage_each


def zb_h1(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Run 1F1B's order, with W on stage s behind by s micro-batches.

    Bubble ``(p - 1) (F + I - W)``, a third of 1F1B's where the three take the same time; the
    activations are 1F1B's: ``p - s`` micro-batches, of which W's part lives s longer.
    """
    return _handcrafted("zb-h1", ranks, micro_batches, chunks, depth=1)


def zb_h2(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Fill the pipe with ``2 (p - 1 - s)`` forwards, and run W behind by 2 s micro-batches.

    Bubble ``(p - 1) (F + I - 2 W)``: none where the three take the same time, if ranks begin the
    next step without waiting for each other; rank s holds ``2 (p - s) - 1`` micro-batches.
    """
    return _handcrafted("zb-h2", ranks, micro_batches, chunks, depth=2)


def _handcrafted(name: str, ranks: int, micro_batches: int, chunks: int, depth: int) -> Schedule:
    require_sizes(name, ranks, micro_batches)
    one_stage_each(name, chunks)
    orders = tuple(
        order(rank, micro_batches, fill=depth * (ranks - 1 - rank), lag=depth * rank)
        for rank in range(ranks)
    )
    return Schedule(orders, straight(ranks, micro_batches))


def order(stage: int, micro_batches: int, *, fill: int, lag: int) -> tuple[Action, ...]:
    """Return a rank's order: ``fill`` forwards first, then F and I in turn, W ``lag`` behind."""
    fill = min(fill, micro_batches)
    actions = [Action(stage, "F", m) for m in range(fill)]
    for m in range(micro_batches):
        if fill + m < micro_batches:
            actions.append(Action(stage, "F", fill + m))
        actions.append(Action(stage, "I", m))
        if m >= lag:
            actions.append(Action(stage, "W", m - lag))
    late = range(max(0, micro_batches - lag), micro_batches)
    return (*actions, *(Action(stage, "W", m) for m in late))
