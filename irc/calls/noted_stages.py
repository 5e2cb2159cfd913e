"""What :func:`irc.explain` and ``IRC_LOGS`` say of a step of training in stages.

Stages are planned in processes of their own, and on a mesh by one rank for all: what is said of
their kernels is read from the plan, where each has the line that it comes from.
"""

from __future__ import annotations

from irc.calls.noted import Watch, noted_graph
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.plan.parts import SMALLER, PartsPlan
from irc.record import Pipeline, Stage

FUNCTIONS = {
    "F": "forward pass",
    "B": "backward pass",
    "I": "gradients of inputs",
    "W": "gradients of weights",
    "S": "slice of the vocabulary",
    "T": "gradients of a slice of the vocabulary",
    "step": "optimiser",
    "norm": "norm of gradients",
    "sums": "sums over the batch",
    "shares": "shares of sums over the batch",
}
"""The functions of a stage, in words."""


def note_stages(plan: PartsPlan, options: Options, seconds: float) -> None:
    """Note a step in stages: its schedule, and each function of each stage.

    Args:
        plan: of the step.
        options: with a record, or without.
        seconds: that planning took; 0 on a rank that was sent the plan.

    Raises:
        IrcError: ``left-to-torch`` with ``strict`` where a function leaves an op to torch.
    """
    if options.record is not None:
        options.record.note(_pipeline(plan, seconds))
    for number, part in enumerate(plan.parts):
        where = f"stage {number}, " if len(plan.parts) > 1 else ""
        for kind, loaded in part.items():
            noted_graph(Watch(), f"{where}{words_of(kind)}", loaded.plan, (), options)


def words_of(kind: str) -> str:
    """Return what a function of a stage is called.

    >>> words_of("B"), words_of(f"F{SMALLER}")
    ('backward pass', 'forward pass of smaller micro-batches')
    """
    plain = kind.removesuffix(SMALLER)
    return f"{FUNCTIONS[plain]}{' of smaller micro-batches' if plain != kind else ''}"


def _pipeline(plan: PartsPlan, seconds: float) -> Pipeline:
    stages = tuple(
        Stage(plan.place_of(number), _parameters(part["F"]) if "F" in part else ())
        for number, part in enumerate(plan.parts)
    )
    return Pipeline(plan.schedule.name, plan.num_micro_batches, stages, seconds)


def _parameters(loaded: LoadedPlan) -> tuple[str, ...]:
    buffers = (loaded.plan.buffers[index] for index in loaded.plan.weights)
    return tuple(buffer.name for buffer in buffers if buffer.role == "parameter")
