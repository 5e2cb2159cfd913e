"""A plan bound to a driver of tensors: what runs its calls.

All decisions are made before the first call: kernels compiled, tensors over the arena built, one
closure per action. A call binds the inputs, allocates the outputs, and runs the closures.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from irc.errors import IrcError
from irc.plan.in_notebook import shown_plan
from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels, touched
from irc.runtime.actions import Run
from irc.runtime.addresses import address_of, no_memory
from irc.runtime.arguments import Input, Outputs
from irc.runtime.code import runnable
from irc.runtime.frame import WORD, Frame, new_frame, table_with
from irc.runtime.local_weights import LocalWeights
from irc.runtime.prepared import Prepared
from irc.runtime.segments import Segment, segment_calls
from irc.runtime.watch import naming_lost_ranks

if TYPE_CHECKING:
    from irc.runtime.torch_driver import TorchDriver


@dataclass
class Lease:
    """What one call works with, and no other at the same time.

    Attributes:
        frame: its memory.
        steps: run the actions on it.
        entry: whose ``run`` runs the plan's kernels on it, given the addresses of inputs and
            outputs; set where the plan :meth:`Executor.is_kernels_alone`.
    """

    frame: Frame
    steps: list[Run]
    entry: Any = None


class Executor:
    """Runs a plan on one rank; call it with the inputs, whole, in the order of the plan.

    Args:
        loaded: the plan.
        driver: whose weights and memory it works with.
        owns: nobody else holds the weights or writes to them: those that calls read only what is
            prepared of are let go as soon as that is made.
        prepared: where what is prepared is to lie, zeros, by buffer; by default new memory.
    """

    def __init__(
        self,
        loaded: LoadedPlan,
        driver: TorchDriver,
        *,
        owns: bool = False,
        prepared: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        loaded = runnable(loaded)
        plan = loaded.plan
        if driver.communicator is None and plan.device_mesh.num_ranks > 1:
            raise IrcError(
                "world-size",
                f"the plan is for {plan.device_mesh.num_ranks} ranks ({plan.mesh}), here is one",
                help="run it with: irc run PLAN, or torchrun",
            )
        self.plan = plan
        self._drawn = replace(loaded, texts={})
        self.rank = driver.rank
        self._driver = driver
        self._actions = driver.actions(loaded)
        weights = LocalWeights(plan, driver.tensors, driver.copies)
        self._copies = weights if weights.are_copied else None
        prepared_weights = None
        if plan.prepared:
            prepared_weights = Prepared(loaded, weights.by_buffer, driver.store, prepared)
        self._prepared = prepared_weights
        self._weights = weights.by_buffer | (
            {} if prepared_weights is None else prepared_weights.by_buffer
        )
        calls = segment_calls(plan)
        threads = driver.num_threads or torch.get_num_threads()
        self._segments: Sequence[Segment] = driver.load(loaded, calls, threads)
        if driver.store.is_watched:
            weights.watch(self._segments)
            if prepared_weights is not None:
                prepared_weights.watch(self._segments)
        device = driver.device.type
        self._inputs = [Input(plan, index, driver.rank, device) for index in plan.inputs]
        self._bases = [spec.base for spec in self._inputs]
        self._outputs = Outputs(plan)
        self._seeds = [self._weights[i] for i in plan.weights if plan.buffers[i].role == "seed"]
        self._states = frozenset(plan.buffers[index].name for index in plan.states())
        updated = [self._weights[index] for index in plan.updated()]
        # Of sums of gradients nothing is made elsewhere.
        told = [i for i in plan.updated() if plan.buffers[i].role != "accumulator"]
        self._updated = [w for i in told if not (w := self._weights[i]).is_inference()]
        self._updated_memory = {weight.untyped_storage().data_ptr() for weight in updated}
        self.leases: deque[Lease] = deque()
        # Ranks must start collectives in one order, so calls of several threads take turns.
        distributed = plan.device_mesh.num_ranks > 1
        made_shapes = [shape for _, shape, _ in self._outputs.fresh]
        only_kernels = all(isinstance(action, Kernels) for action in plan.actions)
        self._only_kernels = only_kernels
        self._is_one_segment = (
            driver.calls_entries
            and len(plan.actions) == 1
            and only_kernels
            and not (self._copies or updated or distributed)
            # Only what is empty may have no address: an entry refuses that of any other.
            and all(0 not in shape for shape in (*(s.shape for s in self._inputs), *made_shapes))
        )
        self._turn = threading.Lock() if distributed else None
        self._owns = owns

    def _repr_html_(self) -> str:
        """Return the plan as a notebook shows it."""
        return shown_plan(self._drawn)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run once and return the outputs, whole.

        Raises:
            IrcError: ``input-mismatch``.
        """
        if len(inputs) != len(self._inputs):
            raise IrcError(
                "input-mismatch", f"the plan takes {len(self._inputs)} inputs, not {len(inputs)}"
            )
        local_inputs = [spec(tensor) for spec, tensor in zip(self._inputs, inputs, strict=True)]
        if self._turn is None:
            return self.run(local_inputs)
        with self._turn, naming_lost_ranks():
            return self.run(local_inputs)

    def run(
        self, inputs: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Run once on inputs that are known to fit: contiguous, this rank's, not looked at again.

        Args:
            inputs: held until the end: kernels know only the addresses.
            into: memory of the outputs, in the shapes of :attr:`made`; by default new memory.
        """
        with self._driver.calling(self._states):
            return self._run(inputs, into)

    def _run(
        self, inputs: Sequence[torch.Tensor], into: Sequence[torch.Tensor] | None
    ) -> tuple[torch.Tensor, ...]:
        lease = self._take()
        if self._updated_memory:
            inputs = [self._apart(tensor) for tensor in inputs]
        table = lease.frame.table
        for spec, tensor in zip(self._inputs, inputs, strict=True):
            table[spec.base] = address_of(tensor, spec.title)
        fresh: list[torch.Tensor] = []
        for place, (base, shape, dtype) in enumerate(self._outputs.fresh):
            output = torch.empty(shape, dtype=dtype) if into is None else into[place]
            fresh.append(output)
            table[base] = output.data_ptr()
        self._finish(lease, inputs, fresh)
        return self._outputs.show(fresh)

    def bound(
        self, inputs: Sequence[torch.Tensor | None], into: Sequence[torch.Tensor]
    ) -> Callable[..., None]:
        """Return :meth:`run` on memory that stays where it is, of which no state is a part.

        What is returned takes the inputs that are not known yet, in order, and looks neither at
        others nor at whether weights have changed since :meth:`refresh`.

        Args:
            inputs: None for each that a call is given.
            into: memory of the outputs.
        """
        known = zip(self._inputs, inputs, strict=True)
        fixed = {s.base: address_of(t, s.title) for s, t in known if t is not None}
        outputs = zip(self._outputs.fresh, into, strict=True)
        fixed |= {o[0]: tensor.data_ptr() for o, tensor in outputs}
        image: list[Any] = []  # of the table, but for the arena, which is the lease's own
        open_places = [place for place, tensor in enumerate(inputs) if tensor is None]
        open_specs = [self._inputs[place] for place in open_places]
        every: list[Any] = list(inputs)
        calling, states = self._driver.calling, self._states

        def run(*more: torch.Tensor) -> None:
            with calling(states):
                run_here(*more)

        def run_here(*more: torch.Tensor) -> None:
            lease = self.leases.pop() if self.leases else self.new_lease()
            if self._updated_memory:
                more = tuple(self._apart(tensor) for tensor in more)
            table = lease.frame.table
            if not image:
                image.append(table_with(table, fixed))
            ctypes.memmove(lease.frame.address + WORD, *image[0])
            for place, spec, tensor in zip(open_places, open_specs, more, strict=True):
                table[spec.base] = address_of(tensor, spec.title)
                every[place] = tensor
            self._finish(lease, every, into)

        return run

    def refresh(self) -> None:
        """Take weights as they are now, for calls that do not look (:meth:`bound`)."""
        with self._driver.calling(self._states):
            self.leases.append(self._take())

    def _take(self) -> Lease:
        """Return memory of a call, with weights as they are now."""
        try:
            lease = self.leases.pop()
        except IndexError:
            lease = self.new_lease()
        if self._copies is not None:
            self._copies.refresh()
        if self._prepared is not None and self._prepared.is_stale():
            self._prepared.make(partial(self._prepare, lease.frame))
            if self._owns:
                self.release(self.unread(), lease)
        return lease

    def _finish(
        self, lease: Lease, inputs: Sequence[torch.Tensor], fresh: Sequence[torch.Tensor]
    ) -> None:
        """Run the actions, the addresses of arguments and results being in the table."""
        if self._only_kernels:
            for step in lease.steps:
                step()
        elif torch.is_grad_enabled():
            with torch.no_grad():
                self._steps(lease, inputs, fresh)
        else:
            self._steps(lease, inputs, fresh)
        if self._copies is not None:
            self._copies.write_back()
        if self._updated:
            # As torch's own ops do: what is made of these weights elsewhere is out of date.
            torch.autograd.graph.increment_version(self._updated)
        # Only after success: what failed may still be written to by a collective in flight.
        self.leases.append(lease)

    def _steps(
        self, lease: Lease, inputs: Sequence[torch.Tensor], fresh: Sequence[torch.Tensor]
    ) -> None:
        """Run the actions, of which some are torch's: no gradients are recorded."""
        lease.frame.bind(self._owners(inputs, fresh))
        for seed in self._seeds if self._driver.draws else ():
            seed.random_()
        for step in lease.steps:
            step()
        for seed in () if self._driver.draws else self._seeds:
            seed.add_(1)

    def _owners(
        self, inputs: Sequence[torch.Tensor], fresh: Sequence[torch.Tensor]
    ) -> dict[int, torch.Tensor]:
        return dict(zip((*self.plan.inputs, *self._outputs.roots), (*inputs, *fresh), strict=True))

    def new_lease(self) -> Lease:
        """Return memory of another call, and what runs the actions on it."""
        with self._driver.scope():
            frame = new_frame(self.plan, self._weights, arena=self._driver.arena)
            prepared = sum(isinstance(action, Kernels) for action in self.plan.prepared)
            segments = iter(self._segments[prepared:])
            steps = self._actions.on(self.plan.actions, frame, segments)
        return Lease(frame, steps, self._entry(frame) if self._is_one_segment else None)

    def _entry(self, frame: Frame) -> Any:
        """Return what runs the one segment of the plan, where its backend offers that."""
        entry = getattr(self._segments[-1], "entry", None)
        return entry and entry(frame.address, (*self._bases, *self._outputs.bases))

    def is_kernels_alone(self) -> bool:
        """True where leases have an entry, and a call is nothing else.

        No weight is copied, no state written: what a call has to look at is :attr:`is_stale`.
        """
        if not self._is_one_segment:
            return False
        lease = self.new_lease() if not self.leases else self.leases.pop()
        self.leases.append(lease)
        return lease.entry is not None

    @property
    def show(self) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None:
        """What returns the outputs in their memory; None where they are all of it, in order."""
        return None if self._outputs.are_plain else self._outputs.show

    @property
    def forms(self) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]] | None:
        """Shape, strides and dtype of memory that is the outputs; None where some share memory."""
        forms = self._outputs.forms()
        if forms is None:
            return None
        dtypes = (dtype for _, _, dtype in self._outputs.fresh)
        return [(*form, dtype) for form, dtype in zip(forms, dtypes, strict=True)]

    @property
    def is_stale(self) -> Callable[[], bool] | None:
        """What says that :meth:`run` has to prepare weights; None where there are none."""
        return None if self._prepared is None else self._prepared.is_stale

    def refusal(self, lease: Lease, inputs: Sequence[torch.Tensor]) -> IrcError:
        """Return why a lease's entry has refused inputs: an address or an index is none."""
        pairs = zip(self._inputs, inputs, strict=True)
        for spec, tensor in pairs:
            if not tensor.data_ptr():
                return no_memory(tensor, spec.title)
        return lease.entry.outside()

    def into(self, named: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the memory of the outputs, for :meth:`run`, given that of each by its name."""
        buffers = self.plan.buffers
        shown = {self.plan.root(i): buffers[i].name for i in self.plan.outputs}
        return [
            named[shown[root]].view(shape)
            for root, (_, shape, _) in zip(self._outputs.roots, self._outputs.fresh, strict=True)
        ]

    def part_of(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """Return what this rank reads of a whole input, contiguous.

        Raises:
            IrcError: ``input-mismatch``.
        """
        return next(spec for spec in self._inputs if spec.name == name)(whole)

    @property
    def takes(self) -> list[tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of each input."""
        return [(spec.shape, spec.dtype) for spec in self._inputs]

    @property
    def made(self) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """Shape, strides and dtype of each output."""
        return [
            (tuple(shape), torch.empty(shape, device="meta").stride(), dtype)
            for _, shape, dtype in self._outputs.fresh
        ]

    def _apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return an input, copied where kernels write to its memory as a state."""
        here = tensor.untyped_storage().data_ptr()
        return tensor.clone() if here in self._updated_memory else tensor

    def unread(self) -> frozenset[str]:
        """Return the names of the weights of which calls read nothing but what is prepared."""
        if self._prepared is None:
            return frozenset()
        plan = self.plan
        read = {plan.root(i) for a in plan.actions for i in touched(a, plan.actions)}
        read |= {plan.root(index) for index in (*plan.outputs, *plan.states())}
        held = set(self._prepared.sources) - read
        return frozenset(plan.buffers[index].name for index in held)

    def release(self, names: Collection[str], *leased: Lease) -> None:
        """Let go of weights that are :meth:`unread`; they are not looked at any more.

        What is prepared of them stays as it is.

        Args:
            names: of the weights.
            leased: leases that calls have now.

        Raises:
            IrcError: ``weights-released``, at a later call: another weight that they are prepared
                with has been written to.
        """
        plan = self.plan
        gone = {i for i in plan.weights if plan.buffers[i].name in names}
        if self._prepared is None or not gone:
            return
        if self._prepared.is_stale():
            self._prepared.make(partial(self._prepare, self.new_lease().frame))
        self._prepared.release(gone)
        for index in gone:
            self._weights.pop(index, None)
        for lease in (*list(self.leases), *leased):
            for index in range(len(plan.buffers)):
                if plan.root(index) in gone:
                    lease.frame.tensors[index] = None

    def prepare(self) -> Mapping[int, torch.Tensor]:
        """Prepare the weights now, not at the first call, and return what that gives, by buffer."""
        if self._prepared is None:
            return {}
        if self._prepared.is_stale():
            with self._driver.scope():
                self._prepared.make(partial(self._prepare, new_frame(self.plan, self._weights)))
        return self._prepared.by_buffer

    def forget_prepared(self) -> None:
        """Prepare the weights again at the next call: they were written to unseen."""
        if self._prepared is not None:
            self._prepared.forget()

    def _prepare(self, frame: Frame) -> None:
        """Run the prepared actions in a frame that no call uses now."""
        with torch.no_grad():
            for step in self._actions.on(self.plan.prepared, frame, iter(self._segments)):
                step()
