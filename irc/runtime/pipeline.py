"""Running a plan of several programs: each rank its own functions, in the order of a schedule.

Registers are allocated once. A function reads and writes them where they lie; what crosses to
another part is sent from its register and received into one, while other functions run. Nothing is
decided at run time: the tape of a rank (:mod:`irc.schedule.tapes`) says what comes next.
"""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.plan.parts import MICRO_BATCH_KINDS, PartsPlan
from irc.runtime.dtypes import dtypes
from irc.runtime.executor import Executor
from irc.runtime.executors import executor_of
from irc.runtime.frame import new_arena
from irc.runtime.parts import Parts
from irc.runtime.peers import Peers, TorchPeers, shared_sums
from irc.runtime.prepared import Store
from irc.runtime.torch_optimizer import STEP
from irc.runtime.watch import naming_lost_ranks
from irc.schedule.tapes import Event, Place
from irc.training.accumulators import ACCUMULATED
from irc.training.batch_sums import SHARE, SHARES, SUMS

Run: TypeAlias = Callable[[], object]

LR, SEED, NORM = "lr", "seed", "norm"


class PipelineExecutor:
    """Runs the steps of a plan of several programs on one rank.

    Args:
        plan: the plan.
        parts: this rank's weights, states and accumulators, by name.
        rank: of this process; every process of the run makes one, at the same time.
        peers: how it talks to the other ranks; by default through torch.distributed.
    """

    def __init__(
        self, plan: PartsPlan, parts: Parts, rank: int, peers: Peers | None = None
    ) -> None:
        self.plan, self.rank, self._held = plan, rank, parts
        self._peers: Peers = peers or TorchPeers(plan, rank)
        self.place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
        self.local = plan.ranks[self.place].index(rank)
        self._stages = plan.parts_at(self.place)
        store = Store()
        self._arena = new_arena(self.arena_bytes)
        self._functions: dict[tuple[int, str], Executor] = {}
        for part in dict.fromkeys(self._stages.values()):
            for kind, loaded in plan.parts[part].items():
                self._functions[part, kind] = executor_of(
                    loaded,
                    parts.local,
                    rank=self.local,
                    communicator=self._peers.communicator,
                    store=store,
                    arena=self._arena,
                )
        self._tape = plan.tapes[self.place]
        self._registers = self._allocate()
        self._shared = shared_sums(plan, parts.local)
        self._clips = any(NORM in part for part in plan.parts)
        self._inputs: dict[tuple[int, int, str], torch.Tensor] = {}
        count = plan.num_micro_batches
        self._losses = torch.zeros(count, dtype=self._loss_dtype())
        self._rate = torch.zeros((), dtype=torch.float64)
        self._norm = torch.zeros((), dtype=self._norm_dtype())
        self._seeds = [torch.zeros((), dtype=torch.int64) for _ in range(count)]
        self._steps = [self._step(event) for event in self._tape.events]
        self._sums = [t for name, t in parts.local.items() if name.startswith(ACCUMULATED)]

    @property
    def register_bytes(self) -> int:
        """Bytes of all slots of this rank."""
        return sum(t.numel() * t.element_size() for t in self._registers.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes that the functions of this rank work in, one at a time."""
        own = (self.plan.parts[part] for part in dict.fromkeys(self._stages.values()))
        return max(loaded.plan.arena_bytes for part in own for loaded in part.values())

    def __call__(self, inputs: Sequence[torch.Tensor], lr: float, seed: int = 0) -> torch.Tensor:
        """Run one step and return its loss, the mean of those of the micro-batches.

        Args:
            inputs: of the whole batch, in the order of the plan, the same on every rank.
            lr: the learning rate.
            seed: of this step's random numbers.

        Raises:
            IrcError: ``input-mismatch``, ``rank-lost``.
        """
        plan = self.plan
        if len(inputs) != len(plan.facts.inputs) - 1:
            raise IrcError(
                "input-mismatch",
                f"the plan takes {len(plan.facts.inputs) - 1} inputs, not {len(inputs)}",
            )
        self._rate.fill_(lr)
        count = plan.num_micro_batches
        for number, value in enumerate(self._seeds):
            value.fill_(seed * count + number)
        named = dict(zip(plan.facts.inputs, inputs, strict=False))
        self._cut(named)
        with torch.no_grad(), naming_lost_ranks():
            self._share_sums(named)
            for total in self._sums:
                total.zero_()
            for step in self._steps:
                step()
            self._share_gradients()
            self._update()
            return self._loss()

    def _allocate(self) -> dict[Place, torch.Tensor]:
        known = dtypes()
        made: dict[Place, torch.Tensor] = {}
        for stage, part in self._stages.items():
            for name, buffer in self.plan.registers(part).items():
                for slot in range(self._tape.slots.get((stage, name), 0)):
                    place = Place(stage, name, slot)
                    made[place] = torch.zeros(buffer.shape, dtype=known[buffer.dtype])
        return made

    def _loss_dtype(self) -> torch.dtype:
        return _dtype(self.plan.parts[-1]["F"], self.plan.facts.loss)

    def _norm_dtype(self) -> torch.dtype:
        norms = [_dtype(part[NORM], NORM) for part in self.plan.parts if NORM in part]
        return norms[0] if norms else torch.float32

    def _cut(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's part of each micro-batch of the inputs.

        Raises:
            IrcError: ``input-mismatch``.
        """
        for (part, kind), executor in self._functions.items():
            if kind not in MICRO_BATCH_KINDS:
                continue
            for name in self._batch_inputs(executor):
                for number in range(self.plan.num_micro_batches):
                    own = self._micro_batch(inputs[name], name, number)
                    self._inputs[part, number, name] = executor.part_of(name, own)

    def _batch_inputs(self, executor: Executor) -> list[str]:
        buffers = [executor.plan.buffers[i] for i in executor.plan.inputs]
        return [
            b.name
            for b in buffers
            if b.role == "input" and b.name != SEED and not b.name.startswith(SHARE)
        ]

    def _share_sums(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Give each micro-batch its share of what losses divide by, of the whole batch."""
        count = self.plan.num_micro_batches
        for part in dict.fromkeys(self._stages.values()):
            if (sums := self._functions.get((part, SUMS))) is None:
                continue
            names = [sums.plan.buffers[i].name for i in sums.plan.inputs]
            each = [
                sums(*(self._micro_batch(inputs[name], name, number) for name in names))
                for number in range(count)
            ]
            totals = {
                f"sum.{i}": sum(own[1:], own[0].clone())
                for i, own in enumerate(zip(*each, strict=True))
            }
            shares = self._functions[part, SHARES]
            held = {**inputs, **totals}
            names = [shares.plan.buffers[i].name for i in shares.plan.inputs]
            for i, share in enumerate(shares(*(held[name] for name in names))):
                for number in range(count):
                    self._inputs[part, number, f"{SHARE}{i}"] = share

    def _micro_batch(self, whole: torch.Tensor, name: str, number: int) -> torch.Tensor:
        if name not in self.plan.facts.cut:
            return whole
        count = self.plan.num_micro_batches
        if not whole.ndim or len(whole) % count:
            raise IrcError(
                "input-mismatch",
                f"input '{name}' is {list(whole.shape)}, which {count} micro-batches do not share "
                "equally along the first dim",
                help=f"give a multiple of {count} samples",
            )
        size = len(whole) // count
        return whole[number * size : (number + 1) * size]

    def _step(self, event: Event) -> Run:
        """Return what does one event of the tape."""
        if event.what != "run":
            assert event.place is not None
            return self._peers.transfer(event, self._registers[event.place])
        number, part = event.action.micro_batch, self._stages[event.action.stage]
        executor = self._functions[part, event.action.kind]
        held = {name: self._registers[place] for name, place in event.reads.items()}
        held[SEED] = self._seeds[number]
        names = [executor.plan.buffers[i].name for i in executor.plan.inputs]
        given: list[Any] = [held.get(name) for name in names]
        fresh = [(i, (part, number, n)) for i, n in enumerate(names) if n not in held]
        makes = {name: self._registers[place] for name, place in event.makes.items()}
        if event.action.kind == "F" and part == len(self.plan.parts) - 1:
            makes[self.plan.facts.loss] = self._losses[number]
        into, inputs, run = executor.into(makes), self._inputs, executor.run

        def call() -> None:
            for i, key in fresh:
                given[i] = inputs[key]
            run(given, into)

        return call

    def _share_gradients(self) -> None:
        """Add up the gradients of weights that several parts have."""
        for name, places in self._shared:
            self._peers.add(self._held.local[name], places)

    def _update(self) -> None:
        parts = dict.fromkeys(self._stages.values())
        # Of two copies of a part, the first counts.
        counted = [part for part in parts if self.plan.place_of(part) == self.place]
        norms = [self._functions[p, NORM] for p in counted if (p, NORM) in self._functions]
        if self._clips:
            total = torch.zeros_like(self._norm)
            for executor in norms:
                total += executor.run(())[0]  # pyright: ignore[reportGeneralTypeIssues]
            self._peers.add(total, tuple(range(len(self.plan.ranks))))
            self._norm.copy_(total)
        held = {LR: self._rate, NORM: self._norm}
        count = self._held.local.get(STEP)
        before = None if count is None else count.clone()
        for part in parts:
            if (executor := self._functions.get((part, "step"))) is not None:
                # The parts of a rank count one step together.
                if count is not None and before is not None:
                    count.copy_(before)
                names = [executor.plan.buffers[i].name for i in executor.plan.inputs]
                executor.run([held[name] for name in names])

    def _loss(self) -> torch.Tensor:
        """Return the loss on every rank; those that do not compute it receive it."""
        return self._peers.loss(self._losses.sum() / len(self._losses))


def _dtype(loaded: LoadedPlan, output: str) -> torch.dtype:
    plan = loaded.plan
    buffer = next(plan.buffers[i] for i in plan.outputs if plan.buffers[i].name == output)
    return dtypes()[buffer.dtype]
