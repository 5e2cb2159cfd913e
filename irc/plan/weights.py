"""Weights beside a plan: writing them, referring to files that have them, and slices of ranks.

The format is safetensors (a JSON header, then bytes): nothing in it can execute. Writing it takes a
page of code and no copy of the weights in memory; reading slices is the library's.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from irc.dialects.placement import Mesh, Placement
from irc.errors import IrcError
from irc.plan import json_text

SAFETENSORS_DTYPES: Mapping[str, str] = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "bool": "BOOL", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""The library's dtype for each of torch's."""


@dataclass(frozen=True)
class Reference:
    """Where a weight lies: a tensor of a safetensors file, or bytes of a file.

    Attributes:
        file: a path; a relative one starts at the plan's folder.
        tensor: the tensor's name in a safetensors file; empty for raw bytes.
        offset: of raw bytes, where they start.
        dtype: of raw bytes, irc's name.
        shape: of raw bytes, the sizes.
    """

    file: str
    tensor: str = ""
    offset: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()


def references_text(references: Mapping[str, Reference]) -> str:
    """Print weights.json."""
    return json_text.dump({name: json_text.encode(references[name]) for name in sorted(references)})


def parse_references(text: bytes, where: str) -> dict[str, Reference]:
    """Read weights.json.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    return json_text.decode(Mapping[str, Reference], json_text.parse(text, where), where)


def with_values(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out torch tensors on the meta device, of which a plan has shapes alone."""
    return {name: tensor for name, tensor in tensors.items() if not tensor.is_meta}


def write_safetensors(
    path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write torch tensors; their bytes go straight from memory to the file.

    Args:
        path: of the file.
        tensors: by name.
        metadata: what the header says beside them.

    Raises:
        IrcError: ``op-unsupported`` for a dtype that the format lacks.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    dense = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    # Wide dtypes first keeps every tensor aligned for whoever maps the file.
    order = sorted(dense, key=lambda name: (-dense[name].element_size(), name))
    end = 0
    for name in order:
        tensor = dense[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in SAFETENSORS_DTYPES:
            raise IrcError("op-unsupported", f"weight '{name}' has dtype {dtype}")
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            tensor = dense[name]
            size = tensor.numel() * tensor.element_size()
            if size:
                file.write((ctypes.c_char * size).from_address(tensor.data_ptr()))


def local_slices(
    placement: Placement, mesh: Mesh, rank: int, shape: tuple[int, ...]
) -> tuple[slice, ...]:
    """Return which part of a whole tensor a rank holds: ceil-sized chunks, axis after axis.

    >>> mesh = Mesh.parse("data=2,tensor=2")
    >>> from irc.dialects.placement import Split, B
    >>> local_slices(Placement.of(data=Split(0), tensor=Split(0)), mesh, 1, (8, 3))
    (slice(2, 4, None), slice(0, 3, None))
    """
    place = mesh.coordinates(rank)
    slices: list[slice] = []
    for dim, size in enumerate(shape):
        low, high = 0, size
        for axis in placement.split_axes(dim):
            chunk = -(-(high - low) // mesh.size(axis))
            low, high = (
                min(low + place[axis] * chunk, high),
                min(low + (place[axis] + 1) * chunk, high),
            )
        slices.append(slice(low, high))
    return tuple(slices)
