"""What the ranks of a run keep in memory, and what those that are left go on from.

Each rank keeps all that it holds, copies of what others hold too: of the parts of a lost machine
there are others where no axis of the mesh divides them over all machines. A :class:`KeptState` is
read as a checkpoint is, on any mesh; slices go from the ranks that kept them to those that need
them (:mod:`irc.sharding.exchange`).
"""

from __future__ import annotations

import base64
import json
import pickle
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from irc.errors import IrcError
from irc.runtime.agreement import ranks_named, texts
from irc.runtime.boxes import Box
from irc.runtime.dtypes import dtype_name, dtype_names, dtypes
from irc.runtime.host_memory import SLOTS, Shelf
from irc.runtime.moving import exchange
from irc.runtime.watch import naming_lost_ranks
from irc.sharding.between import Box as Interval
from irc.sharding.exchange import Boxes, exchanged, lacking

GROUPED = "optimizer.param_groups"
ALIGNED_BYTES = 64


class Keeping:
    """Keeps the state of one step of training in the memory of this machine.

    Args:
        shelf: of this rank.
    """

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._start, self._text = "", "[]"  # of a rank that holds no tensor
        self._turn = 0
        # How tensors lay in memory last, and what was written to by slot: most steps are alike.
        self._entries: list[Any] = []
        self._views: dict[str, list[torch.Tensor]] = {}

    def keep(self, state: Mapping[str, Any], step: int, stage: tuple[int, int]) -> None:
        """Copy a state; every rank calls it, and the first time they agree on a name.

        Args:
            state: boxes, tensors and plain values in dictionaries.
            step: how many steps were made.
            stage: the number of this rank's stages of the pipeline, and how many there are.

        Raises:
            IrcError: ``checkpoint-failed``.
        """
        if not self._start:
            self._start = _all(secrets.token_hex(8))[0]
            self._turn = 1 - SLOTS.index(self._shelf.resumed) if self._shelf.resumed else 0
            self._shelf.remove_at_exit()
        tensors: dict[str, Box] = {}
        objects: dict[str, Any] = {}
        for key, value in _flat(state):
            if isinstance(value, torch.Tensor):
                tensors[key] = value if isinstance(value, Box) else Box.of(value)
            else:
                objects[key] = value
        entries, size = _laid_out(tensors)
        if entries != self._entries:
            self._entries, self._text, self._views = entries, json.dumps(entries), {}
        slot = SLOTS[self._turn]
        room = self._shelf.room(slot, size)
        if slot not in self._views:
            self._views[slot] = [
                _view(room, offset, shape, dtypes()[dtype])
                for _, dtype, _, boxes in entries
                for _, shape, offset in boxes
            ]
        parts = (part for box in tensors.values() for part in box.parts.values())
        with torch.no_grad():
            for view, part in zip(self._views[slot], parts, strict=True):
                view.copy_(part)
        told = {"start": self._start, "step": step, "stage": stage, "objects": _pickled(objects)}
        self._shelf.publish(slot, f'{json.dumps(told)[:-1]}, "entries": {self._text}}}')
        self._turn = 1 - self._turn


class KeptState:
    """A state that ranks kept, read by all ranks of a run as :class:`Checkpoint` is.

    Attributes:
        path: what it is called in messages.
        step: how many steps were made.
        ranks: those that have some of it.
        shapes: of its tensors, by their names joined by dots.
        dtypes: of the same.
        objects: the names of what is no tensor.
    """

    def __init__(self, heads: Sequence[Mapping[str, Any] | None], memory: torch.Tensor) -> None:
        own = [head for head in heads if head is not None]
        self.step = int(own[0]["step"])
        self.path = Path(f"step {self.step} in memory")
        self.ranks = [rank for rank, head in enumerate(heads) if head is not None]
        self._memory = memory
        self._entries = [{e[0]: e for e in head["entries"]} if head else {} for head in heads]
        every = {e[0]: e for head in own for e in head["entries"]}
        self.shapes = {key: tuple(e[2]) for key, e in every.items()}
        self.dtypes = {key: dtypes()[e[1]] for key, e in every.items()}
        self._values: dict[str, Any] = {}
        self.objects: list[str] = []

    def know(self, pickles: Iterable[str]) -> None:
        """Learn of what is no tensor."""
        for each in pickles:
            if each:
                self._values.update(pickle.loads(base64.b64decode(each)))
        self.objects = list(self._values)

    def held(self, key: str) -> Boxes:
        """Return which boxes of a tensor each rank kept."""
        return tuple(
            tuple(_interval(start, shape) for start, shape, _ in entries[key][3])
            if key in entries
            else ()
            for entries in self._entries
        )

    def missing(self) -> str:
        """Return what no rank has of it, in words; empty where all is there."""
        for key, shape in self.shapes.items():
            if (box := lacking(shape, self.held(key))) is not None:
                where = ", ".join(f"{low}:{high}" for low, high in box)
                return f"'{key}'[{where}]"
        return ""

    def read(self, boxes: Mapping[str, Box]) -> None:
        """Fill boxes by name; every rank calls it, with its own."""
        rank = _rank()
        own = {
            key: [(s, tuple(p.shape)) for s, p in box.parts.items()] for key, box in boxes.items()
        }
        wanted = [json.loads(text) for text in _all(json.dumps(own))]
        for key in sorted({key for each in wanted for key in each}):
            needed: Boxes = tuple(
                tuple(_interval(*each) for each in rank_wants.get(key, ())) for rank_wants in wanted
            )
            dtype = self.dtypes[key]
            every = exchanged(self.held(key), needed, dtype_name(dtype))
            kept = [
                _view(self._memory, offset, shape, dtype)
                for _, shape, offset in self._entries[rank].get(key, ((), (), (), ()))[3]
            ]
            parts = list(boxes[key].parts.values()) if key in boxes else []
            whole = [torch.empty(part.shape, dtype=dtype) for part in parts]
            with naming_lost_ranks():
                exchange(every, rank, kept, whole)
            for part, read in zip(parts, whole, strict=True):
                part.copy_(read)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what is no tensor, by name."""
        return {name: self._values[name] for name in names if name in self._values}

    def groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimiser, as torch has them."""
        return [dict(group) for group in self._values.get(GROUPED, [])]

    def section(self, name: str) -> Any:
        """Return all that is under one name, whole; None where there is nothing."""
        return self._values.get(name)


def kept_state(shelf: Shelf) -> tuple[KeptState | None, str]:
    """Return the last state that the ranks of this run have all of; every rank calls it.

    Returns:
        It, None where there is none; and in words what is missing of a later one.
    """
    own = {slot: json.loads(head) for slot, head in shelf.heads().items()}
    told = {slot: {**head, "objects": ""} for slot, head in own.items()}
    every = [json.loads(text).values() for text in _all(json.dumps(told))]
    marks = {(head["step"], head["start"]) for heads in every for head in heads}
    lost, lost_step = "", -1
    for mark in sorted(marks, reverse=True):
        heads = [next((h for h in each if _mark(h) == mark), None) for each in every]
        slot = next((s for s, head in own.items() if _mark(head) == mark), None)
        memory = torch.empty(0, dtype=torch.uint8) if slot is None else shelf.read(slot)
        state = KeptState(heads, memory)
        if missing := _stages_missing(heads) or state.missing():
            if not lost:
                lost_step = state.step
                lost = (
                    f"of step {state.step}, which {ranks_named(state.ranks)} kept, no rank that is "
                    f"left has {missing}"
                )
            continue
        shelf.resumed = slot or ""
        state.know(_all("" if slot is None else own[slot]["objects"]))
        return state, lost if lost_step > state.step else ""
    return None, lost


def _mark(head: Mapping[str, Any]) -> tuple[int, str]:
    return head["step"], head["start"]


def _stages_missing(heads: Sequence[Mapping[str, Any] | None]) -> str:
    own = [head["stage"] for head in heads if head is not None]
    missing = set(range(own[0][1])) - {place for place, _ in own}
    return f"the parameters of stage {min(missing)}" if missing else ""


def _flat(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a model and an optimiser by name, and the rest as it is."""
    for section, value in state.items():
        if section in ("model", "optimizer"):
            yield from _leaves(section, value)
        else:
            yield section, value


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in cast("Mapping[Any, Any]", value).items():
            yield from _leaves(f"{name}.{key}", each)
    else:
        yield name, value


def _laid_out(tensors: Mapping[str, Box]) -> tuple[list[Any], int]:
    """Return name, dtype, shape and boxes (start, shape, offset) of tensors, and the bytes."""
    entries: list[Any] = []
    offset, names = 0, dtype_names()
    for key, box in tensors.items():
        boxes: list[Any] = []
        for start, part in box.parts.items():
            boxes.append((start, tuple(part.shape), offset))
            offset += -(-part.numel() * part.element_size() // ALIGNED_BYTES) * ALIGNED_BYTES
        dtype = names.get(box.dtype) or dtype_name(box.dtype)
        entries.append((key, dtype, tuple(box.shape), boxes))
    return entries, max(offset, ALIGNED_BYTES)


def _view(
    memory: torch.Tensor, offset: int, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    size = torch.Size(shape).numel() * dtype.itemsize
    return memory[offset : offset + size].view(dtype).view(tuple(shape))


def _interval(start: Sequence[int], shape: Sequence[int]) -> Interval:
    return tuple((first, first + size) for first, size in zip(start, shape, strict=True))


def _pickled(objects: Mapping[str, Any]) -> str:
    try:
        return base64.b64encode(pickle.dumps(dict(objects))).decode()
    except Exception as error:  # what a state_dict has is the user's
        raise IrcError(
            "checkpoint-failed",
            f"the state of {', '.join(map(repr, objects))} cannot be kept: {error}",
            because="what is no tensor is pickled",
        ) from error


def _all(own: str) -> list[str]:
    """Return a text of every rank; all ranks call it."""
    return texts(own) if dist.is_initialized() and dist.get_world_size() > 1 else [own]


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
