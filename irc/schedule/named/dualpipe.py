"""DualPipe and DualPipeV: micro-batches from both ends (DeepSeek-AI, arXiv:2412.19437, 3.2).

A forward and a backward of different micro-batches run as one, so that the messages of each (of
experts above all) hide behind the arithmetic of the other.
"""

from __future__ import annotations

from irc.errors import IrcError
from irc.schedule.actions import Action, Schedule, overlap, require_sizes, straight
from irc.schedule.named.stages import two_stages_each, v_stages


def dualpipe(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Run two copies of the model, stage k of the second one on rank ``p - 1 - k``.

    Half of the micro-batches go through each: stages p to 2p - 1 are the second copy's. p and m are
    even, ``m >= 2 p``. A rank holds ``p + 1`` activations; the bubble is
    ``(p / 2 - 1) (F&B + B - 3 W)`` where F = W and B = 2 F, and never more.
    """
    require_sizes("dualpipe", ranks, micro_batches)
    two_stages_each("dualpipe", chunks)
    _require_filled("dualpipe", ranks, micro_batches, 2 * ranks)
    if ranks % 2:
        raise IrcError(
            "schedule-size", f"schedule 'dualpipe' needs an even number of ranks, not {ranks}",
            help="dualpipe-v takes any number",
        )  # fmt: skip
    half = micro_batches // 2
    there, back = tuple(range(ranks)), tuple(range(ranks, 2 * ranks))
    orders: list[tuple[Action, ...]] = []
    for rank in range(ranks):
        near = min(rank, ranks - 1 - rank)
        own, other = rank, 2 * ranks - 1 - rank
        first = (own, 0) if rank < ranks // 2 else (other, half)
        second = (other, half) if rank < ranks // 2 else (own, 0)
        order = _Order((first, second), (half, half))
        orders.append(order.of(near=near, half=ranks // 2, main=half - ranks + near + 1))
    return Schedule(tuple(orders), (there,) * half + (back,) * half)


def dualpipe_v(ranks: int, micro_batches: int, chunks: int = 0) -> Schedule:
    """Cut DualPipe in half: one copy, whose two stages a rank lie as a V.

    ``m >= 2 p``; a rank holds ``p + 1 / 2`` activations or a little less.
    """
    require_sizes("dualpipe-v", ranks, micro_batches)
    two_stages_each("dualpipe-v", chunks)
    _require_filled("dualpipe-v", ranks, micro_batches, 2 * ranks, even=False)
    orders: list[tuple[Action, ...]] = []
    for rank in range(ranks):
        first, second = v_stages(rank, ranks)
        order = _Order(((first, 0), (second, 0)), (micro_batches, micro_batches))
        main = micro_batches - 2 * ranks + rank + 1
        orders.append(order.of(near=rank, half=ranks, main=main))
    return Schedule(tuple(orders), straight(2 * ranks, micro_batches))


def _require_filled(
    name: str, ranks: int, micro_batches: int, least: int, *, even: bool = True
) -> None:
    if micro_batches >= least and not (even and micro_batches % 2):
        return
    nearest = max(least, micro_batches + micro_batches % 2)
    what = f"at least {least}{', an even number' if even else ''}"
    raise IrcError(
        "schedule-size",
        f"schedule '{name}' on {ranks} ranks cannot use {micro_batches} micro-batches",
        because=f"it takes {what}",
        help=f"use {nearest} micro-batches",
    )


class _Order:
    """The order of a rank, in the eight steps of DeepSeek's description.

    Args:
        halves: the rank's two stages, in the order in which it begins with them, each with the
            first of its micro-batches.
        counts: how many micro-batches each stage has.
    """

    def __init__(self, halves: tuple[tuple[int, int], ...], counts: tuple[int, int]) -> None:
        self.halves, self.counts = halves, counts
        self.next = {(kind, half): 0 for kind in "FB" for half in (0, 1)}
        self.waiting: list[Action] = []
        self.actions: list[Action] = []

    def _take(self, kind: str, half: int) -> Action | None:
        number = self.next[kind, half]
        if number == self.counts[half]:
            return None
        self.next[kind, half] += 1
        stage, begin = self.halves[half]
        return Action(stage, kind, begin + number)

    def _forward(self, half: int) -> None:
        if action := self._take("F", half):
            self.actions.append(action)

    def _backward(self, half: int, *, split: bool = False) -> None:
        action = self._take("B", half)
        if action is None:
            return
        if split:
            self.waiting.append(action._replace(kind="W"))
            action = action._replace(kind="I")
        self.actions.append(action)

    def _weights(self) -> None:
        if self.waiting:
            self.actions.append(self.waiting.pop(0))

    def _both(self, forward: int, backward: int) -> None:
        ahead, behind = self._take("F", forward), self._take("B", backward)
        if ahead and behind:
            self.actions.append(overlap(ahead, behind))
        else:
            self.actions += [each for each in (ahead, behind) if each]

    def of(self, *, near: int, half: int, main: int) -> tuple[Action, ...]:
        """Return the order.

        Args:
            near: ranks between this one and the nearer end.
            half: half of the ranks of DualPipe.
            main: how often the main step runs.
        """
        inner = half - near - 1
        for _ in range(2 * inner):
            self._forward(0)
        for _ in range(near + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(inner):
            self._backward(1, split=True)
            self._weights()
            self._forward(1)
        for step in range(main):
            if step == 0 and inner == 0:
                # The middle ranks have nothing to hide the first pair behind.
                self._forward(0)
                self._backward(1)
            else:
                self._both(0, 1)
            self._both(1, 0)
        for _ in range(inner):
            self._backward(1)
            self._both(1, 0)
        # The second half of what is left leaves its weights for the slots at the end.
        for step in range(0, 2 * (near + 1), 2):
            self._backward(1, split=step >= near + 1)
            self._backward(0, split=step + 1 >= near + 1)
        for _ in range(inner):
            self._weights()
            self._backward(0, split=True)
        while self.waiting:
            self._weights()
        return tuple(self.actions)
