"""The driver of plans whose kernels and library ops work on torch's tensors in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

import torch

from irc.plan.load import LoadedPlan
from irc.runtime.actions import Actions
from irc.runtime.collectives import Communicator, NoPeers
from irc.runtime.executor import Executor
from irc.runtime.local_weights import WeightCopy
from irc.runtime.prepared import Store
from irc.runtime.segments import LoadSegments, load_segments

if TYPE_CHECKING:
    from irc.runtime.recorder import Recorder


class TorchDriver:
    """Binds plans to tensors of the host.

    Args:
        tensors: this rank's weights by name (:mod:`irc.runtime.weights` slices whole ones). A
            contiguous one is used in place, another is copied when it has changed: what changes
            one is seen by the next call, and states are written back into it.
        rank: position on the mesh.
        communicator: starts collectives; none is needed on one device.
        load: compiles the kernels; by default the plan's backend does.
        num_threads: for kernels; by default what torch uses.
        copies: contiguous copies of weights by name, which the plans of one model share.
        store: what is prepared of the weights, which the plans of one model share.
        draws: each call draws its seed from torch's generator, so that ``torch.manual_seed``
            repeats it as it repeats eager's; by default the seed counts calls.
        arena: memory that plans which run one after the other work in, large enough for each; by
            default each call leases its own.
        recorder: notes what calls do, each launch by itself; by default nobody does.

    Attributes:
        device: where weights, arenas and outputs lie.
        tensors: the weights as kernels read them, by name.
    """

    calls_entries: ClassVar[bool] = True
    """A plan that is kernels alone may be called by its entry, with addresses and no more."""

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        rank: int = 0,
        communicator: Communicator | None = None,
        load: LoadSegments = load_segments,
        num_threads: int | None = None,
        copies: dict[str, WeightCopy] | None = None,
        store: Store | None = None,
        draws: bool = False,
        arena: torch.Tensor | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.device = torch.device("cpu")
        self.tensors = tensors
        self.rank, self.communicator = rank, communicator
        self.load = load if recorder is None else recorder.loading(load)
        self.num_threads, self.recorder = num_threads, recorder
        self.copies = copies
        self.store = Store() if store is None else store
        self.draws, self.arena = draws, arena

    def bind(
        self,
        loaded: LoadedPlan,
        /,
        *,
        owns: bool = False,
        prepared: Mapping[int, torch.Tensor] | None = None,
    ) -> Executor:
        """Return what runs a plan; see :class:`~irc.runtime.executor.Executor`.

        Raises:
            IrcError: ``world-size``, ``input-mismatch``, ``backend-unknown``.
        """
        with self.scope():
            return Executor(loaded, self, owns=owns, prepared=prepared)

    def scope(self) -> AbstractContextManager[object]:
        """Let torch make new tensors where the plans run, wherever the user has it make them."""
        is_host = torch.get_default_device().type == "cpu"
        return nullcontext() if is_host else torch.device("cpu")

    def calling(self, states: frozenset[str]) -> AbstractContextManager[object]:
        """Return what stands around a call of a plan with these states: nothing on the host."""
        return _AT_ONCE

    def actions(self, plan: LoadedPlan) -> Actions:
        """Return how the actions of a plan are carried out."""
        plain = Actions(plan.plan, self.rank, self.communicator or NoPeers())
        return plain if self.recorder is None else self.recorder.actions(plain)


_AT_ONCE = nullcontext()
