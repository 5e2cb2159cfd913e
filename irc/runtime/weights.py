"""A rank's weights: from the plan's folder, or from whole tensors in memory; its slices only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from irc.errors import IrcError
from irc.plan import files, json_text
from irc.plan.digests import DIGESTS, check_weights
from irc.plan.files import MANIFEST, REFERENCES, WEIGHTS
from irc.plan.json_text import corrupt
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan
from irc.plan.schema import Buffer, Plan, placement_of
from irc.plan.trust import is_trusted
from irc.plan.weights import Reference, local_slices, parse_references
from irc.runtime.arguments import whole_shape
from irc.runtime.dtypes import dtypes
from irc.runtime.rooms import with_room

STARTED = ("state", "accumulator")
"""Roles of what a plan has no value for: it starts at zero."""


def slice_weights(
    plan: Plan,
    tensors: Mapping[str, torch.Tensor],
    rank: int,
    parts: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Return the parts of whole tensors that a rank holds; a whole one is not copied.

    Args:
        plan: says which.
        tensors: whole, by name.
        rank: whose parts.
        parts: what the rank holds of others already.
    """
    slices: dict[str, torch.Tensor] = {}
    for index in plan.weights:
        buffer = plan.buffers[index]
        if parts is not None and buffer.name in parts:
            slices[buffer.name] = parts[buffer.name]
            continue
        if buffer.name not in tensors:
            raise IrcError("input-mismatch", f"no value for weight '{buffer.name}'")
        whole = tensors[buffer.name]
        whole = whole[: buffer.rows] if buffer.rows else whole
        part = whole[_slices(plan, buffer, rank, tuple(whole.shape))]
        slices[buffer.name] = with_room(part, buffer.shape) if buffer.rows else part
    return slices


def load_weights(
    loaded: LoadedPlan,
    rank: int | None,
    *,
    verify: bool = False,
    held: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Read a rank's slices of the weights that the plan's folder holds or refers to.

    A state or accumulator that it has no value for starts at zero.

    Args:
        loaded: a plan with a folder.
        rank: whose slices; None reads them whole.
        verify: compare them with their digests also where that was done here before.
        held: of a plan that is one function of several, what is here already and is not read
            again, by name.

    Raises:
        IrcError: ``plan-corrupt``: a weight is missing, or is not what the plan takes, or a file is
            not what its digests say; ``signature-invalid``.
    """
    plan, folder = loaded.plan, loaded.folder
    if folder is None:
        raise IrcError("input-mismatch", "a plan that was received has no weights of its own")
    references = references_in(folder)
    _check_files(loaded, references, rank, held, verify=verify)
    opened: dict[Path, Any] = {}
    weights: dict[str, torch.Tensor] = {}
    for index in plan.weights:
        buffer = plan.buffers[index]
        if held is not None and buffer.name in held:
            weights[buffer.name] = held[buffer.name]
            continue
        reference = references.get(buffer.name, Reference(WEIGHTS, buffer.name))
        path = folder / reference.file
        try:
            if buffer.role in STARTED and not _has(path, reference.tensor, opened):
                shape = buffer.shape if rank is not None else whole_shape(plan, index)
                zeros = torch.zeros(shape, dtype=dtypes()[buffer.dtype])
                if buffer.rows and rank is not None:
                    own = _slices(plan, buffer, rank, whole_shape(plan, index))[0]
                    zeros = zeros[: own.stop - own.start]
                weights[buffer.name] = zeros
                continue
            is_own = buffer.name not in references
            if is_own and _was_without_value(path, reference.tensor, opened):
                raise IrcError(
                    "weights-missing",
                    f"the plan has no value for '{buffer.name}'",
                    because="its model was on the meta device when it was compiled, or the file of "
                    "weights is another plan's",
                    help="compile it with its values to run it; the plan is the same",
                )
            part = _read(plan, buffer, reference, path, rank, opened)
            is_padded = buffer.rows and rank is not None
            weights[buffer.name] = with_room(part, buffer.shape) if is_padded else part
        except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
            raise corrupt(f"weight '{buffer.name}' cannot be read: {error}", str(path)) from None
    return weights


def references_in(folder: Path) -> dict[str, Reference]:
    """Return where the weights of a plan lie that its folder does not hold itself, by name.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    if not (folder / REFERENCES).exists():
        return {}
    text = files.read_file(folder, REFERENCES, json_text.MAX_BYTES)
    return parse_references(text, str(folder / REFERENCES))


def whole_weights(plan: PartsPlan) -> dict[str, torch.Tensor]:
    """Read all weights and states of a plan of several programs, whole; sums start at zero.

    What ranks hold in slices is put together.
    """
    weights: dict[str, torch.Tensor] = {}
    for part in plan.parts:
        for loaded in part.values():
            weights |= load_weights(loaded, None, held=weights)
    for name, own in plan.sliced.items():
        if own.names[0] in weights:
            weights[name] = torch.cat([weights.pop(each) for each in own.names], own.dim)
    return weights


def _check_files(
    loaded: LoadedPlan,
    references: Mapping[str, Reference],
    rank: int | None,
    held: Mapping[str, torch.Tensor] | None,
    *,
    verify: bool,
) -> None:
    """Compare the files of a rank's weights with their digests: what of them it reads."""
    plan, folder = loaded.plan, loaded.folder
    assert folder is not None
    wanted: dict[Path, list[Buffer]] = {}
    for index in plan.weights:
        buffer = plan.buffers[index]
        if held is not None and buffer.name in held:
            continue
        reference = references.get(buffer.name, Reference(WEIGHTS, buffer.name))
        wanted.setdefault(folder / reference.file, []).append(buffer)
    several = rank is not None and (plan.device_mesh.num_ranks > 1 or held is not None)
    known = loaded.is_known or is_trusted(folder, MANIFEST, loaded.hash)
    for path, buffers in wanted.items():
        if path.is_file():
            ranges = _ranges(plan, buffers, rank, path) if several else None
            check_weights(path, ranges, known=known, always=verify)


def _ranges(
    plan: Plan, buffers: Sequence[Buffer], rank: int | None, path: Path
) -> list[tuple[int, int]] | None:
    """Return which bytes of a safetensors file a rank reads; None where that is not seen."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json_text.parse_object(file.read(min(size, json_text.MAX_BYTES)), str(path))
        ranges: list[tuple[int, int]] = []
        for buffer in buffers:
            if (entry := header.get(buffer.name)) is None:
                continue  # a state that starts at zero
            low, high = (8 + size + int(each) for each in entry["data_offsets"])
            shape = tuple(map(int, entry["shape"]))
            first, *others = _slices(plan, buffer, rank, shape) or (slice(0, 1),)
            if all(s == slice(0, n) for s, n in zip(others, shape[1:], strict=True)) and shape:
                row = (high - low) // max(shape[0], 1)
                low, high = low + first.start * row, low + first.stop * row
            ranges.append((low, high))
    except (IrcError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # what is wrong with it is said by who reads it
    return ranges


def _has(path: Path, tensor: str, opened: dict[Path, Any]) -> bool:
    if not tensor or not path.is_file():
        return bool(not tensor)
    if path not in opened:
        opened[path] = safe_open(path, framework="pt")
    return tensor in opened[path].keys()  # noqa: SIM118 - the file is no mapping


def _was_without_value(path: Path, tensor: str, opened: dict[Path, Any]) -> bool:
    """Whether a plan was written without a weight: its files are as they were, and lack it."""
    has_digests = (path.parent / DIGESTS).is_file()
    if not path.is_file():
        return not has_digests
    return has_digests and not _has(path, tensor, opened)


def _read(
    plan: Plan,
    buffer: Buffer,
    reference: Reference,
    path: Path,
    rank: int | None,
    opened: dict[Path, Any],
) -> torch.Tensor:
    if not path.is_file():
        raise OSError("no such file")
    if reference.tensor:
        if path not in opened:
            opened[path] = safe_open(path, framework="pt")
        view = opened[path].get_slice(reference.tensor)
        shape: tuple[int, ...] = tuple(view.get_shape())
        # A scalar has no slice to take.
        if not shape:
            part = opened[path].get_tensor(reference.tensor)
        else:
            part = view[_slices(plan, buffer, rank, shape)]
    else:
        shape = reference.shape
        part = _mapped(path, reference)[_slices(plan, buffer, rank, shape)].clone()
    expected = dtypes()[buffer.dtype]
    if part.dtype != expected:
        raise ValueError(f"it is {part.dtype}, the plan takes {expected}")
    return part


def _mapped(path: Path, reference: Reference) -> torch.Tensor:
    if reference.dtype not in dtypes():
        raise ValueError(f"unknown dtype {reference.dtype!r}")
    dtype = dtypes()[reference.dtype]
    size = prod(reference.shape) * dtype.itemsize
    if min((*reference.shape, reference.offset)) < 0 or (
        reference.offset + size > path.stat().st_size
    ):
        raise ValueError(f"bytes {reference.offset}..{reference.offset + size} are not in the file")
    if size == 0:
        return torch.empty(reference.shape, dtype=dtype)
    whole = torch.from_file(
        str(path), shared=False, size=reference.offset + size, dtype=torch.uint8
    )
    part = whole[reference.offset :]
    # An odd offset cannot be viewed as a wider dtype.
    aligned = part if reference.offset % dtype.itemsize == 0 else part.clone()
    return aligned.view(dtype).reshape(reference.shape)


def _slices(
    plan: Plan, buffer: Buffer, rank: int | None, whole: tuple[int, ...]
) -> tuple[slice, ...]:
    """Return a rank's part of a whole tensor, checked against what the plan takes."""
    if len(whole) != len(buffer.shape):
        raise ValueError(f"it has {len(whole)} dims, the plan takes {len(buffer.shape)}")
    if rank is None:
        return tuple(slice(0, size) for size in whole)
    parts = local_slices(placement_of(buffer), plan.device_mesh, rank, whole)
    local = tuple(part.stop - part.start for part in parts)
    if buffer.rows:
        # Its ranks' parts are of several lengths, each the front of as much memory.
        fits = whole[0] == buffer.rows and local[0] <= buffer.shape[0]
        local = buffer.shape if fits and local[1:] == buffer.shape[1:] else local
    if local != buffer.shape:
        raise ValueError(
            f"a rank's part of {list(whole)} is {list(local)}, the plan takes {list(buffer.shape)}"
        )
    return parts
