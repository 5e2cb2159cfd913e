"""Running a plan of several programs: each rank its own functions, in the order of a schedule.

Registers are allocated once, on the device that the functions run on. A function reads and writes
them where they lie; what crosses to another part is sent from its register and received into one,
while other functions run. Nothing is decided at run time: the tape of a rank
(:mod:`irc.schedule.tapes`) says what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import torch

from irc.errors import IrcError
from irc.plan.parts import MICRO_BATCH_KINDS, PartsPlan, smaller_kind, smaller_suffix
from irc.plan.schema import Buffer
from irc.runtime.arguments import whole_shape
from irc.runtime.dtypes import dtypes
from irc.runtime.executor import Executor
from irc.runtime.executors import driver_of, memory_of
from irc.runtime.frame import new_arena
from irc.runtime.links import Links
from irc.runtime.micro_batches import SEED, BatchSums, MicroBatches, keys_of
from irc.runtime.offload import moves_of
from irc.runtime.outside import Moves, places_outside
from irc.runtime.parts import Parts
from irc.runtime.peers import Peers, TorchPeers, shared_sums
from irc.runtime.recorded_step import RecordedStep
from irc.runtime.recorder import Recorder
from irc.runtime.segments import LoadSegments
from irc.runtime.torch_driver import TorchDriver
from irc.runtime.torch_optimizer import STEP
from irc.runtime.watch import naming_lost_ranks
from irc.schedule.tapes import MOVES, SMALLER, Event, Place
from irc.training.accumulators import ACCUMULATED
from irc.training.batch_sums import SHARES, SUMS
from irc.training.loss_scale import INVERSE, OVERFLOWS, SCALE

Run: TypeAlias = Callable[[], object]

_library: Any = torch
"""torch, for a function that it does not export."""

LR, NORM = "lr", "norm"
READERS = (*MICRO_BATCH_KINDS, SUMS, SHARES)
"""The functions that read inputs of the step."""
SMALLER_READERS = tuple(map(smaller_kind, READERS))
"""The same of micro-batches that are smaller."""


class PipelineExecutor:
    """Runs the steps of a plan of several programs on one rank.

    Args:
        plan: the plan.
        parts: this rank's weights, states and accumulators, by name.
        rank: of this process; every process of the run makes one, at the same time.
        peers: how it talks to the other ranks; by default through torch.distributed.
        divided: names of the inputs of which each rank is given its own part of the samples.
        axes: of the mesh, over which these are divided.
        load: runs the kernels on the host, whatever they are for; by default the plan's backend
            does, where that computes.
        moves: of values that leave their slots; by default to where the plan says.
        links: as slow as those of the plan's cluster; by default messages take what they take.
        recorder: notes what steps do; by default nobody does.
        most: micro-batches that steps work on, of a rank whose peers are not there; by default all.
    """

    def __init__(
        self,
        plan: PartsPlan,
        parts: Parts,
        rank: int,
        peers: Peers | None = None,
        *,
        divided: Collection[str] = (),
        axes: Sequence[str] = (),
        load: LoadSegments | None = None,
        moves: Moves | None = None,
        links: Links | None = None,
        recorder: Recorder | None = None,
        most: int | None = None,
    ) -> None:
        self.plan, self.rank, self._held = plan, rank, parts
        self._most = plan.num_micro_batches if most is None else most
        self._recorded = None if recorder is None else RecordedStep(plan, rank, recorder)
        self._divided, self._axes = divided, axes
        self.place = next(p for p, ranks in enumerate(plan.ranks) if rank in ranks)
        self.local = plan.ranks[self.place].index(rank)
        # Who brings what runs the kernels has it run on the host.
        device = memory_of(plan.backend) if load is None else torch.device("cpu")
        # NCCL, which moves what lies on GPUs, has no tags.
        in_order = device.type != "cpu"
        self._peers: Peers = peers or TorchPeers(plan, rank, in_order=in_order, links=links)
        own: dict[str, Any] = {"rank": self.local, "communicator": self._peers.communicator}
        own["recorder"] = recorder
        self._driver = (
            driver_of(plan.backend, parts.local, **own)
            if load is None
            else TorchDriver(parts.local, load=load, **own)
        )
        with self._driver.scope():
            self._prepare(moves)

    def _prepare(self, moves: Moves | None) -> None:
        """Allocate what steps work in, and decide all that they do."""
        plan, parts = self.plan, self._held
        self._stages = plan.parts_at(self.place)
        # The functions of a rank run one after the other.
        self._driver.arena = new_arena(self.arena_bytes)
        self._functions: dict[tuple[int, str], Executor] = {}
        for part in dict.fromkeys(self._stages.values()):
            for kind, loaded in plan.parts[part].items():
                self._functions[part, kind] = self._driver.bind(loaded)
        self._tape = plan.tapes[self.place]
        self._registers = self._allocate()
        self._moves = moves or moves_of(plan, self._tape, self._registers)
        self._shared = shared_sums(plan, parts.local)
        self._clips = any(NORM in part for part in plan.parts)
        count = plan.num_micro_batches
        self._sizes = [count]
        if (larger := plan.smaller_from) is not None:
            self._sizes = [larger, count - larger]
        kinds = (READERS, SMALLER_READERS)[: len(self._sizes)]
        readers = [[e for (_, k), e in self._functions.items() if k in own] for own in kinds]
        self._inputs = MicroBatches(
            readers,
            plan.facts.cut,
            self._sizes,
            self._divided,
            lambda part: self._peers.gather(part, self._axes),
        )
        self._scales = torch.ones(()), torch.ones(())
        sums = {part: self._batch_sums(part) for part in dict.fromkeys(self._stages.values())}
        self._batch = {part: own for part, own in sums.items() if own is not None}
        self._losses = torch.zeros(count, dtype=self._loss_dtype())
        self._rate = torch.zeros(self._rate_shape(), dtype=torch.float64)
        self._of_all = self._room_of_all()
        self._numbers = torch.arange(count)
        self._seeds = torch.zeros(count, dtype=torch.int64)
        self._steps = list(self._all_steps())
        early = (*READERS, *SMALLER_READERS)
        self._early = [e for (_, kind), e in self._functions.items() if kind in early]
        self._late = [e for (_, kind), e in self._functions.items() if kind not in early]
        self._weights = torch.tensor(plan.weights_of_losses, dtype=self._losses.dtype)
        self._norms, self._updates = self._norm_runs(), self._update_runs()
        self._sums = [t for name, t in parts.local.items() if name.startswith(ACCUMULATED)]

    @property
    def register_bytes(self) -> int:
        """Bytes of all slots of this rank."""
        return sum(t.numel() * t.element_size() for t in self._registers.values())

    @property
    def held(self) -> dict[str, list[torch.Tensor]]:
        """The memory that the functions of this rank share, by what it is for."""
        memory = {"registers": [*self._registers.values()]}
        if self._driver.arena is not None:
            memory["arena"] = [self._driver.arena]
        return memory

    @property
    def outside_bytes(self) -> int:
        """Bytes of all places outside of the device's memory."""
        return sum(places_outside(self._tape, self._registers).values())

    @property
    def arena_bytes(self) -> int:
        """Bytes that the functions of this rank work in, one at a time."""
        own = (self.plan.parts[part] for part in dict.fromkeys(self._stages.values()))
        return max(loaded.plan.arena_bytes for part in own for loaded in part.values())

    def __call__(
        self,
        inputs: Sequence[torch.Tensor],
        lr: torch.Tensor,
        seed: int = 0,
        scales: Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run one step and return its loss, the mean of those of the micro-batches.

        Args:
            inputs: of the whole batch, in the order of the plan, the same on every rank, but for
                those of which each is given its own part.
            lr: the learning rate, float64; of shape [rates] where groups have their own.
            seed: of this step's random numbers.
            scales: of the loss, and one over it, float32; both 1 by default.

        Raises:
            IrcError: ``input-mismatch``, ``rank-lost``.
        """
        plan = self.plan
        if len(inputs) != len(plan.facts.inputs) - 1:
            raise IrcError(
                "input-mismatch",
                f"the plan takes {len(plan.facts.inputs) - 1} inputs, not {len(inputs)}",
            )
        named = dict(zip(plan.facts.inputs, inputs, strict=False))
        self._inputs.take(named)
        with self._driver.scope(), torch.no_grad(), naming_lost_ranks():
            self._rate.copy_(lr)
            for own, each in zip(self._scales, scales or (torch.ones(()),) * 2, strict=True):
                own.copy_(each)
            torch.add(self._numbers, seed * plan.num_micro_batches, out=self._seeds)
            for executor in self._early:
                executor.refresh()
            for sums in self._batch.values():
                sums.run()
            if self._sums:
                _library._foreach_zero_(self._sums)
            for step in self._steps:
                step()
            self._share_gradients()
            self._update()
            return self._loss()

    def _allocate(self) -> dict[Place, torch.Tensor]:
        known = dtypes()
        registers: dict[Place, torch.Tensor] = {}
        for stage, part in self._stages.items():
            for name, buffer in self.plan.registers(part).items():
                for slot in range(self._tape.slots.get((stage, name), 0)):
                    place = Place(stage, name, slot)
                    registers[place] = torch.zeros(buffer.shape, dtype=known[buffer.dtype])
        return registers

    def _loss_dtype(self) -> torch.dtype:
        plan = self.plan.parts[-1][self.plan.loss_kind].plan
        named = {plan.buffers[i].name: plan.buffers[i] for i in plan.outputs}
        return _dtype(named[self.plan.facts.loss])

    def _room_of_all(self) -> dict[str, torch.Tensor]:
        """Return room for what gradients are told of all, each of shape []."""
        plans = [part[NORM].plan for part in self.plan.parts if NORM in part]
        buffers = [plans[0].buffers[i] for i in plans[0].outputs] if plans else []
        self._norm = torch.zeros(len(buffers), dtype=_dtype(buffers[0]) if buffers else None)
        return {b.name: own for b, own in zip(buffers, self._norm, strict=True)}

    @property
    def overflows(self) -> torch.Tensor:
        """How many elements of scaled gradients were infinite or NaN in the last step."""
        return self._of_all[OVERFLOWS]

    def _batch_sums(self, part: int) -> BatchSums | None:
        """Return what gives the micro-batches of a part their shares of sums over the batch."""
        if (part, SUMS) not in self._functions:
            return None
        suffixes = ("", SMALLER)[: len(self._sizes)]
        sums, shares = (
            [self._functions[part, f"{kind}{suffix}"] for suffix in suffixes]
            for kind in (SUMS, SHARES)
        )
        held = {SCALE: self._scales[0]}
        return BatchSums(sums, shares, self._inputs, self._sizes, held)

    def _all_steps(self) -> Iterator[Run]:
        """Yield what does the events of the tape, moves that follow each other at once."""
        recorded = self._recorded
        chosen = [e for e in self._tape.events if e.action.micro_batch < self._most]
        for what, events in groupby(chosen, key=lambda event: event.what):
            if what in MOVES:
                moved = [(event, self._registers[event.place]) for event in events if event.place]
                run = self._moves.step(moved)
                yield run if recorded is None else recorded.moved([e for e, _ in moved], run)
                continue
            for event in events:
                run = self._step(event)
                yield run if recorded is None else recorded.event(event, run)

    def _step(self, event: Event) -> Run:
        """Return what does one event of the tape that is no move."""
        if event.what != "run":
            assert event.place is not None
            return self._peers.transfer(event, self._registers[event.place])
        number, part = event.action.micro_batch, self._stages[event.action.stage]
        kind = self.plan.wiring.kind(event.action.kind, number)
        executor, suffix = self._functions[part, kind], smaller_suffix(kind)
        held = {n.removesuffix(suffix): self._registers[p] for n, p in event.reads.items()}
        held[SEED], held[SCALE] = self._seeds[number], self._scales[0]
        held |= self._batch[part].shares[1 if suffix else 0] if part in self._batch else {}
        names = [executor.plan.buffers[i].name for i in executor.plan.inputs]
        inputs: list[Any] = [held.get(name) for name in names]
        fresh = [key for key in keys_of(executor) if key[0] not in held]
        makes = {n.removesuffix(suffix): self._registers[p] for n, p in event.makes.items()}
        if event.action.kind == self.plan.loss_kind and part == len(self.plan.parts) - 1:
            makes[self.plan.facts.loss] = self._losses[number]
        run, read = executor.bound(inputs, executor.into(makes)), self._inputs.part

        def call() -> None:
            run(*[read(key, number) for key in fresh])

        return call

    def _share_gradients(self) -> None:
        """Add up the gradients of weights that several parts have."""
        for name, places in self._shared:
            self._add(name, self._held.local[name], places)

    def _add(self, name: str, tensor: torch.Tensor, places: tuple[int, ...]) -> None:
        """Add a tensor up over the ranks at some places."""
        if self._recorded is None:
            self._peers.add(tensor, places)
        else:
            self._recorded.added(name, places, lambda: self._peers.add(tensor, places))

    def _norm_runs(self) -> list[Run]:
        """Return what computes the squares of those gradients that count here."""
        executors: list[Executor] = []
        for part in dict.fromkeys(self._stages.values()):
            # Of two copies of a part, the first counts.
            is_first = self.plan.place_of(part) == self.place
            if is_first and (executor := self._functions.get((part, NORM))) is not None:
                executors.append(executor)
        self._squares = self._norm.new_zeros(len(executors), len(self._norm))
        inputs = {INVERSE: self._scales[1]}
        outputs = [dict(zip(self._of_all, own, strict=True)) for own in self._squares]
        return [
            e.bound([inputs[name] for name in _inputs(e)], e.into(own))
            for e, own in zip(executors, outputs, strict=True)
        ]

    def _update_runs(self) -> list[Run]:
        """Return what moves the parameters of each part."""
        held = {LR: self._rate, INVERSE: self._scales[1], **self._of_all}
        steps = [
            (part, executor)
            for part in dict.fromkeys(self._stages.values())
            if (executor := self._functions.get((part, "step"))) is not None
        ]
        runs: list[Run] = []
        for part, executor in steps:
            run = executor.bound([held[name] for name in _inputs(executor)], ())
            runs.append(run if self._recorded is None else self._recorded.update(part, run))
        return runs

    def _rate_shape(self) -> tuple[int, ...]:
        steps = [part["step"].plan for part in self.plan.parts if "step" in part]
        shapes = [
            whole_shape(plan, index)
            for plan in steps
            for index in plan.inputs
            if plan.buffers[index].name == LR
        ]
        return shapes[0] if shapes else ()

    def _update(self) -> None:
        for executor in self._late:
            executor.refresh()
        if self._clips:
            for run in self._norms:
                run()
            torch.sum(self._squares, 0, out=self._norm)
            self._add(NORM, self._norm, tuple(range(len(self.plan.ranks))))
        count = self._held.local.get(STEP) if len(self._updates) > 1 else None
        before = None if count is None else count.clone()
        for run in self._updates:
            # The parts of a rank count one step together.
            if count is not None and before is not None:
                count.copy_(before)
            run()

    def _loss(self) -> torch.Tensor:
        """Return the loss on every rank; those that do not compute it receive it."""
        own = self._losses.mean() if len(self._sizes) == 1 else (self._losses * self._weights).sum()
        if self._recorded is None:
            return self._peers.loss(own)
        return self._recorded.loss(lambda: self._peers.loss(own))


def _inputs(executor: Executor) -> list[str]:
    return [executor.plan.buffers[i].name for i in executor.plan.inputs]


def _dtype(buffer: Buffer) -> torch.dtype:
    return dtypes()[buffer.dtype]
