"""What a plan makes of its weights before the first call, and again when one was written to."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias
from uuid import uuid4

import torch

from irc.errors import IrcError
from irc.plan.load import LoadedPlan
from irc.plan.schema import Kernels, Library, Plan
from irc.runtime.contents import Watch, watch_of
from irc.runtime.frame import new_prepared
from irc.runtime.local_weights import WeightCopy

Versions: TypeAlias = tuple[int, int | tuple[int, ...]]
"""How often weights may have been written to unseen (:attr:`Store.writes`), and how often torch
counted writes to those that a tensor is made of: of one, or of each."""


@dataclass
class Made:
    """One prepared tensor, and the versions of the weights that it was made of."""

    tensor: torch.Tensor
    versions: Versions | None = None


@dataclass
class Store:
    """What the plans of one model share: prepared tensors by what they are, weights on a GPU.

    Attributes:
        tensors: the prepared tensors.
        moved: the weights on a GPU, by name and device.
        writes: how often weights have been or may have been written to without a count of torch
        is_watched: whether calls look for such writes: the weights are those of a module, whose
            owner may write to them in any way.
        lock: held by who makes tensors.
    """

    tensors: dict[str, Made] = field(default_factory=dict[str, Made])
    moved: dict[tuple[str, str], WeightCopy] = field(
        default_factory=dict[tuple[str, str], WeightCopy]
    )
    writes: int = 0
    is_watched: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def may_be_written(self) -> None:
        """Make everything again where it is needed next, whatever torch has counted."""
        with self.lock:
            self.writes += 1
            for each in self.moved.values():
                each.version = None


class Prepared:
    """The prepared buffers of one plan.

    torch counts the writes to a tensor; where the counts of the weights that are read differ from
    those of the last time, everything is made again. Writes through ``.data``, NumPy or another
    process it does not count: those are seen by what the weights hold, where the store is watched.

    Args:
        loaded: the plan.
        weights: this rank's, by buffer.
        store: shared by the plans of one model.
        memory: zeros by buffer, in which it is made; by default new ones.

    Attributes:
        by_buffer: what is prepared.
        sources: the weights that it is made of, as buffers.
    """

    def __init__(
        self,
        loaded: LoadedPlan,
        weights: Mapping[int, torch.Tensor],
        store: Store | None = None,
        memory: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self._store = store or Store()
        keys, read = _origins(loaded, weights)
        fresh = new_prepared(loaded.plan) if memory is None else memory
        order = sorted(frozenset[int]().union(*(read[index] for index in fresh)))
        self._sources = [weights[index] for index in order]
        self._tracked = all(not source.is_inference() for source in self._sources)
        self._seen: list[int] | None = None
        self._writes = self._store.writes
        self.sources = tuple(order)
        self._released = False
        self._watch: Watch | None = None
        with self._store.lock:
            tensors = {
                i: self._store.tensors.setdefault(keys[i], Made(t)) for i, t in fresh.items()
            }
        self._made = [
            (each, _chosen([p for p, weight in enumerate(order) if weight in read[index]]))
            for index, each in tensors.items()
        ]
        self.by_buffer = {index: each.tensor for index, each in tensors.items()}

    def is_stale(self) -> bool:
        """True where a tensor is missing, or made of older weights; a fast check."""
        if self._writes != self._store.writes:
            return True
        # Inference tensors are not counted: what is made of them is made at every call.
        if not self._tracked or [source._version for source in self._sources] != self._seen:
            return True
        return self._watch is not None and self._watch.has_changed()

    def watch(self, segments: Sequence[object]) -> None:
        """Look for writes that torch does not count.

        Args:
            segments: of the plan; their backend reads the memory, if it can.
        """
        if self._tracked:
            self._watch = watch_of(segments, self._sources)

    def forget(self) -> None:
        """Make everything again at the next call."""
        with self._store.lock:
            self._seen = None
            for each, _ in self._made:
                each.versions = None

    def release(self, gone: Collection[int]) -> None:
        """Let go of sources; what is made of them cannot be made again."""
        left = [
            (index, source)
            for index, source in zip(self.sources, self._sources, strict=True)
            # What torch does not count is taken to stay as it is, as was promised.
            if index not in gone and not source.is_inference()
        ]
        self.sources = tuple(index for index, _ in left)
        self._sources = [source for _, source in left]
        self._seen = [source._version for source in self._sources]
        self._released = self._tracked = True
        self._watch = None

    def make(self, run: Callable[[], None]) -> None:
        """Make the tensors, unless another plan has made them of these weights.

        Args:
            run: makes all of them.
        """
        if self._released:
            raise IrcError(
                "weights-released",
                "a weight was written to, and what kernels read was prepared of it and of weights "
                "that have been let go",
                because="irc.freeze was told that weights do not change any more",
                help="compile the module again from its weights",
            )
        with self._store.lock:
            now = [source._version for source in self._sources] if self._tracked else None
            # What other plans have made may be of weights that were written to since.
            is_new = self._watch is not None and self._watch.is_new
            if self._watch is not None and self._watch.looked() and now == self._seen:
                self._store.writes += 1  # what other plans have made is out of date, too
            writes = self._store.writes
            if (
                now is None
                or is_new
                or any(each.versions != (writes, of(now)) for each, of in self._made)
            ):
                run()
                for each, of in self._made:
                    each.versions = None if now is None else (writes, of(now))
            self._seen, self._writes = now, writes


def _chosen(places: Sequence[int]) -> Callable[[Sequence[int]], int | tuple[int, ...]]:
    """Return what picks some of all versions."""
    return itemgetter(*places) if places else lambda _: ()


def _origins(
    loaded: LoadedPlan, weights: Mapping[int, torch.Tensor]
) -> tuple[dict[int, str], dict[int, frozenset[int]]]:
    """Say of each prepared buffer what it is, and which weights it is made of.

    What it is: a digest of kernel texts, library ops, and names and addresses of weights.
    """
    plan = loaded.plan
    # Two programs may call different constants by one name.
    own = f"{uuid4()}:"
    keys = {
        index: f"{own if plan.buffers[index].role == 'constant' else ''}{plan.buffers[index].name}"
        f"@{weights[index].data_ptr():x}"
        for index in plan.weights
    }
    read = {index: frozenset({index}) for index in plan.weights}
    for what, inputs, outputs in _computations(loaded):
        roots = [plan.root(index) for index in inputs]
        sources = [(keys[root], _view(plan, i)) for i, root in zip(inputs, roots, strict=True)]
        for place, output in enumerate(outputs):
            view = _view(plan, output)  # one number in another shape is another tensor
            text = json.dumps([what, sources, place, view], default=str)
            keys[output] = hashlib.sha256(text.encode()).hexdigest()
            read[output] = frozenset[int]().union(*(read[root] for root in roots))
    return keys, read


def _computations(loaded: LoadedPlan) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    plan, texts = loaded.plan, list(loaded.kernel_sources().values())
    computations: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    for action in plan.prepared:
        if isinstance(action, Kernels):
            for call in action.calls:
                count = plan.kernels[call.kernel].num_inputs
                computations.append((texts[call.kernel], call.args[:count], call.args[count:]))
        elif isinstance(action, Library):
            what = json.dumps([action.op, action.attrs], default=str, sort_keys=True)
            computations.append((what, action.inputs, action.outputs))
    return computations


def _view(plan: Plan, index: int) -> tuple[object, ...]:
    buffer = plan.buffers[index]
    offset = buffer.offset if buffer.storage == "alias" else 0
    return (offset, buffer.shape, buffer.dense_strides, buffer.dtype)
