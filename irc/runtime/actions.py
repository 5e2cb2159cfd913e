"""How the actions of a plan are carried out on torch's tensors: each a closure over a frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from irc.ops import names
from irc.plan.schema import Action, Copy, Kernels, Library, Plan, Start, Wait
from irc.runtime import library
from irc.runtime.collectives import Communicator, Finish, Operands
from irc.runtime.frame import Frame
from irc.runtime.index_bounds import bounded
from irc.runtime.into import writer
from irc.runtime.segments import Segment

Run: TypeAlias = Callable[[], object]
"""Carries out one action."""


@dataclass(frozen=True)
class Actions:
    """The actions of a plan on one rank.

    Args:
        plan: what the actions are of.
        rank: position on the mesh.
        communicator: starts collectives.
    """

    plan: Plan
    rank: int
    communicator: Communicator

    def on(self, actions: Sequence[Action], frame: Frame, segments: Iterator[Segment]) -> list[Run]:
        """Return what carries out some actions on a frame, in their order.

        Args:
            actions: of the plan.
            frame: memory of a call.
            segments: of the actions that are kernels, in order.
        """
        pending: dict[int, Finish] = {}
        return [
            self.step(index, action, frame, segments, pending)
            for index, action in enumerate(actions)
        ]

    def step(
        self,
        index: int,
        action: Action,
        frame: Frame,
        segments: Iterator[Segment],
        pending: dict[int, Finish],
    ) -> Run:
        """Return what carries out one action; what it begins is ``pending`` until its wait."""
        t: list[Any] = frame.tensors
        match action:
            case Kernels():
                run, address = next(segments).run, frame.address
                return lambda: run(address)
            case Library():
                return self.library(action, t)
            case Copy(source=source, target=target):
                return lambda: t[target].copy_(t[source])
            case Start():
                source, (target,) = action.source, action.outputs
                send, receive = action.send, action.receive
                marks = action.marks
                start = self.communicator.start

                def begin() -> None:
                    pending[index] = start(
                        action,
                        Operands(
                            t[source],
                            t[target],
                            None if send is None else t[send],
                            None if receive is None else t[receive],
                            *(t[each] for each in marks),
                        ),
                    )

                return begin
            case Wait(start=started):
                # Nobody reads it but who asks what a rank waits in (irc.runtime.pending).
                begun = self.plan.actions[started]
                return lambda waited=begun: pending.pop(started)()

    def library(self, action: Library, t: list[Any]) -> Run:
        """Return what carries out an op of a library, given the tensors of a frame by buffer."""
        plan, inputs, outputs = self.plan, action.inputs, action.outputs
        if action.op in POSITIONAL:
            place = plan.device_mesh.coordinates(self.rank)[action.attrs["axis"]]
            size = plan.device_mesh.size(action.attrs["axis"])
            run = POSITIONAL[action.op]
            return lambda: run(action.attrs, place, size, [t[i] for i in inputs], t[outputs[0]])
        if action.op == names.SCATTER and action.is_in_place:
            cache, index, source = inputs
            attrs, dim = action.attrs, action.attrs["dim"]

            def scatter() -> torch.Tensor:
                return t[cache].scatter_(dim, t[index], t[source])

            return lambda: bounded(action.op, attrs, (t[cache], t[index]), scatter)
        roots = [plan.buffers[plan.root(index)] for index in inputs]
        fixed = [i for i, root in enumerate(roots) if root.storage == "weight"]
        if (write := writer(action.op, action.attrs, fixed)) is not None:
            return lambda: write([t[i] for i in inputs], [t[i] for i in outputs])
        results = [(plan.buffers[i].shape, plan.buffers[i].dtype) for i in outputs]

        # Of results that nobody reads, torch's own shape functions are not always right.
        wanted = [plan.root(index) in plan.read for index in outputs]
        run = library.prepared(action.op, action.attrs, results, fixed)

        def call() -> None:
            values = run([t[i] for i in inputs])
            for index, value, is_read in zip(outputs, values, wanted, strict=True):
                if is_read:
                    t[index].copy_(value)

        return call


def rank_index(
    _attrs: Mapping[str, Any],
    place: int,
    _size: int,
    _inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
) -> None:
    """Write the rank's position on the axis."""
    out.fill_(place)


def local_chunk(
    attrs: Mapping[str, Any],
    place: int,
    size: int,
    inputs: Sequence[torch.Tensor],
    out: torch.Tensor,
) -> None:
    """Copy the rank's chunk along a dim."""
    dim: int = attrs["dim"]
    chunk = inputs[0].shape[dim] // size
    out.copy_(inputs[0].narrow(dim, place * chunk, chunk))


POSITIONAL = {"comm.rank_index": rank_index, "comm.local_chunk": local_chunk}
"""Library ops that depend on where the rank is."""
