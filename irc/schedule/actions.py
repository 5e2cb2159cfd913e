"""What a schedule is made of: actions of ranks, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from irc.errors import IrcError

COMPUTE: Mapping[str, str] = {
    "F": "forward",
    "B": "backward: the gradients of the stage's input and of its weights",
    "I": "the gradient of the stage's input",
    "W": "the gradient of its weights, after I",
    "S": "the rank's part of the vocabulary: its logits and their sum (after the last F)",
    "T": "the gradients of the rank's part of the vocabulary (after all S)",
}
"""What a rank computes, by kind (torch.distributed.pipelining's letters; S and T are those of
Vocabulary Parallelism, arXiv:2411.05288)."""

TRANSFER: Mapping[str, str] = {
    "SEND_F": "sends a stage's result",
    "RECV_F": "receives the input of a stage",
    "SEND_B": "sends the gradient of a stage's input",
    "RECV_B": "receives the gradient of a stage's result",
    "UNSHARD": "gathers the weights of a stage",
    "RESHARD": "releases what was gathered",
    "REDUCE_GRAD": "adds up the gradients of a stage's weights over the ranks that hold them",
}
"""What a rank moves, in schedules of torch that spell it out."""

OVERLAP = "OVERLAP_F_B"
"""Several actions that a rank runs as one, whose transfers hide behind each other's arithmetic."""


class Action(NamedTuple):
    """One thing that a rank does.

    Attributes:
        stage: of the model.
        kind: a key of :data:`COMPUTE` or :data:`TRANSFER`, or :data:`OVERLAP`.
        micro_batch: -1 where the kind has none (``UNSHARD``, ``RESHARD``, ``REDUCE_GRAD``).
        parts: of an overlap, the actions that run as one; its own stage is then -1.
    """

    stage: int
    kind: str
    micro_batch: int = -1
    parts: tuple[Action, ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind}"
        return f"{self.stage}{self.kind}{'' if self.micro_batch < 0 else self.micro_batch}"

    @property
    def flat(self) -> tuple[Action, ...]:
        """The actions that it consists of."""
        return self.parts or (self,)


def overlap(*parts: Action) -> Action:
    """Return actions run as one."""
    return Action(-1, OVERLAP, -1, parts)


@dataclass(frozen=True)
class Schedule:
    """What each rank of a pipeline does, in order.

    Attributes:
        ranks: the actions of each rank.
        paths: by micro-batch, the stages that it goes through, in order. All micro-batches go
            through all stages, unless a schedule skips some (SkipPipe) or has two directions
            (DualPipe, whose second copy of the model is stages p to 2p - 1).
        vocabulary: which algorithm of Vocabulary Parallelism S and T follow, 1 or 2; 0 for none.
        name: by which a user asked for it.
        blanks: by rank, the positions of a table's empty cells, so that it prints as it was read.
        skips: by micro-batch, the stages of its path that it leaves out; empty where none does.
            Only the form that plans have functions for says it so (`irc.schedule.skips`).
    """

    ranks: tuple[tuple[Action, ...], ...]
    paths: tuple[tuple[int, ...], ...]
    vocabulary: int = 0
    name: str = ""
    blanks: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    skips: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def num_stages(self) -> int:
        """How many stages there are."""
        return 1 + max((stage for path in self.paths for stage in path), default=-1)

    @property
    def num_micro_batches(self) -> int:
        """How many micro-batches there are."""
        return len(self.paths)

    @cached_property
    def rank_of(self) -> Mapping[int, int]:
        """The rank of each stage that some rank computes."""
        return {
            action.stage: rank
            for rank, actions in enumerate(self.ranks)
            for action in computed(actions)
        }

    def leaves_out(self, stage: int, micro_batch: int) -> bool:
        """Return whether a micro-batch skips a stage of its path."""
        return bool(self.skips) and stage in self.skips[micro_batch]

    @cached_property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are computed apart somewhere."""
        return any(action.kind == "I" for actions in self.ranks for action in computed(actions))

    @cached_property
    def _neighbours(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """By micro-batch and stage, the stages before and after on its path; -1 at the ends."""
        return {
            (micro_batch, stage): (
                path[i - 1] if i else -1,
                path[i + 1] if i + 1 < len(path) else -1,
            )
            for micro_batch, path in enumerate(self.paths)
            for i, stage in enumerate(path)
        }

    def before(self, action: Action) -> Iterator[tuple[Action, ...]]:
        """Yield what an action waits for: of each tuple of alternatives, the one there is.

        A gradient comes from the next stage's I, or from its B where that is not split.
        """
        stage, kind, micro_batch, _ = action
        # S and T of a rank are of a stage that their micro-batch may skip.
        earlier, later = self._neighbours.get((micro_batch, stage), (-1, -1))
        match kind:
            case "F":
                if earlier >= 0:
                    yield (Action(earlier, "F", micro_batch),)
            case "B" | "I":
                yield (Action(stage, "F", micro_batch),)
                if later >= 0:
                    yield (Action(later, "I", micro_batch), Action(later, "B", micro_batch))
                elif self.vocabulary:
                    needed = "T" if self.vocabulary == 1 else "S"
                    yield from ((Action(s, needed, micro_batch),) for s in self._vocabulary_stages)
            case "W":
                yield (Action(stage, "I", micro_batch),)
            case "S":
                yield (Action(self.paths[micro_batch][-1], "F", micro_batch),)
            case "T":
                yield from ((Action(s, "S", micro_batch),) for s in self._vocabulary_stages)
            case _:
                return

    def sends_to(self, action: Action) -> int | None:
        """Return the rank of the stage that reads what an action makes; None where none does."""
        stage, kind, micro_batch, _ = action
        earlier, later = self._neighbours.get((micro_batch, stage), (-1, -1))
        other = later if kind == "F" else earlier if kind in ("B", "I") else -1
        return self.rank_of[other] if other >= 0 else None

    @cached_property
    def _vocabulary_stages(self) -> tuple[int, ...]:
        return tuple(
            sorted({a.stage for actions in self.ranks for a in computed(actions) if a.kind == "S"})
        )


def computed(actions: Sequence[Action]) -> Iterator[Action]:
    """Yield what is computed, parts of overlaps one by one."""
    for action in actions:
        for part in action.flat:
            if part.kind in COMPUTE:
                yield part


def straight(num_stages: int, num_micro_batches: int) -> tuple[tuple[int, ...], ...]:
    """Return the paths of micro-batches that all go through all stages."""
    return (tuple(range(num_stages)),) * num_micro_batches


def require_sizes(name: str, ranks: int, micro_batches: int) -> None:
    """Check the sizes of a schedule to generate.

    Raises:
        IrcError: ``schedule-size``.
    """
    for what, size in (("stage", ranks), ("micro-batch", micro_batches)):
        if size < 1:
            raise IrcError(
                "schedule-size", f"schedule '{name}' needs at least one {what}, not {size}"
            )
