"""Tensors: from protobuf, or from external data inside the model's own folder.

The path of external data comes from the file, so it is walked component by component without
following links (CVE-2022-25882, CVE-2024-27318, CVE-2026-34446 and their relatives): only a regular
file with one name is mapped, and only inside its bounds.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, numpy_helper

from irc.errors import IrcError
from irc.frontends.onnx.read import Source
from irc.runtime.onnx_ops.values import ELEMENTS, strings

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]

DTYPES: Mapping[int, str] = {
    TensorProto.DOUBLE: "f64", TensorProto.FLOAT: "f32", TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16", TensorProto.INT64: "i64", TensorProto.INT32: "i32",
    TensorProto.INT16: "i16", TensorProto.INT8: "i8", TensorProto.UINT8: "u8",
    TensorProto.BOOL: "i1", TensorProto.COMPLEX64: "c64", TensorProto.COMPLEX128: "c128",
}  # fmt: skip
"""ONNX element types that flow has."""

NUMPY: Mapping[str, Any] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "i64": np.dtype(np.int64), "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16), "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_), "c64": np.dtype(np.complex64), "c128": np.dtype(np.complex128),
}  # fmt: skip
NUMPY_NAMES: Mapping[Any, str] = {dtype: name for name, dtype in NUMPY.items()}


def dtype_of(element: int) -> str:
    """Return irc's name of an ONNX element type.

    Raises:
        IrcError: ``op-unsupported`` for types that flow does not have.
    """
    if element in DTYPES:
        return DTYPES[element]
    known = element in TensorProto.DataType.values()
    name = TensorProto.DataType.Name(element).lower() if known else str(element)
    raise IrcError(
        "op-unsupported",
        f"element type '{name}' has no form in irc",
        because=f"tensors are of {', '.join(DTYPES.values())}",
        help="cast to one of these types in the model",
    )


def to_array(tensor: TensorProto, source: Source) -> Array:
    """Return a tensor's values; external data is mapped, not read.

    Raises:
        IrcError: ``op-unsupported`` (element type), ``onnx-invalid`` or ``external-data``.
    """
    dtype = NUMPY[dtype_of(tensor.data_type)]
    shape = tuple(tensor.dims)
    if any(dim < 0 for dim in shape) or prod(shape) > 1 << 40:
        raise _invalid(source, tensor, f"its shape {list(shape)} cannot be")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, source, shape, dtype)
    if tensor.HasField("raw_data"):
        data, wanted = tensor.raw_data, prod(shape) * dtype.itemsize
        if len(data) != wanted:
            reason = f"it holds {len(data)} bytes, but {list(shape)} of {dtype} takes {wanted}"
            raise _invalid(source, tensor, reason)
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)
    try:
        return numpy_helper.to_array(tensor).astype(dtype, copy=False).reshape(shape)
    except (ValueError, TypeError) as error:
        raise _invalid(source, tensor, str(error)) from None


SMALL: Mapping[int, tuple[Any, int]] = {
    TensorProto.UINT4: (np.dtype(ml_dtypes.uint4), 4),
    TensorProto.INT4: (np.dtype(ml_dtypes.int4), 4),
    TensorProto.FLOAT4E2M1: (np.dtype(ml_dtypes.float4_e2m1fn), 4),
    TensorProto.UINT2: (np.dtype(ml_dtypes.uint2), 2),
    TensorProto.INT2: (np.dtype(ml_dtypes.int2), 2),
}
"""Element types of which a byte holds several, and their bits."""


def to_any_array(tensor: TensorProto, source: Source) -> Array:
    """Return a tensor of any element type: as :func:`to_array`, and those that flow lacks.

    Raises:
        IrcError: as :func:`to_array`.
    """
    if tensor.data_type in DTYPES:
        return to_array(tensor, source)
    if tensor.data_type not in ELEMENTS:
        dtype_of(tensor.data_type)
    shape = tuple(tensor.dims)
    if any(dim < 0 for dim in shape) or prod(shape) > 1 << 40:
        raise _invalid(source, tensor, f"its shape {list(shape)} cannot be")
    dtype, bits = SMALL.get(tensor.data_type, (ELEMENTS[tensor.data_type], 0))
    bits = bits or dtype.itemsize * 8
    external = tensor.data_location == TensorProto.EXTERNAL
    if dtype.kind == "O" and not external:
        texts = [text.decode("utf-8", "replace") for text in tensor.string_data]
        if len(texts) != prod(shape):
            raise _invalid(source, tensor, f"it holds {len(texts)} strings")
        return strings(texts, shape)
    if not external and not tensor.HasField("raw_data"):
        try:
            return numpy_helper.to_array(tensor).reshape(shape)
        except (ValueError, TypeError) as error:
            raise _invalid(source, tensor, str(error)) from None
    wanted = -(-prod(shape) * bits // 8)
    data = _external(tensor, source, (wanted,), np.dtype(np.uint8)) if external else (
        np.frombuffer(tensor.raw_data, np.uint8)
    )  # fmt: skip
    if dtype.kind == "O" or data.size != wanted:
        raise _invalid(source, tensor, f"it holds {data.size} bytes, not {wanted}")
    return unpack(data, dtype, bits, prod(shape)).reshape(shape)


def unpack(data: Array, dtype: Any, bits: int, count: int) -> Array:
    """Return ``count`` elements from bytes; of small ones the first is in the lowest bits.

    >>> unpack(np.array([0xF1], np.uint8), np.dtype(ml_dtypes.int4), 4, 2).tolist()
    [1, -1]
    """
    if bits >= 8:
        return data.view(dtype)
    places = np.arange(0, 8, bits, dtype=np.uint8)
    parts = ((data[:, None] >> places) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype in (ml_dtypes.int4, ml_dtypes.int2):
        sign = 1 << (bits - 1)
        return ((parts.astype(np.int8) ^ sign) - sign).astype(dtype)
    return parts.view(dtype) if dtype == ml_dtypes.float4_e2m1fn else parts.astype(dtype)


def to_torch(array: Array) -> torch.Tensor:
    """Return a tensor over the same memory (the bytes of a model are never written to)."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        array = np.asarray(array, order="C")
        if array.dtype == NUMPY["bf16"]:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


def _external(tensor: TensorProto, source: Source, shape: tuple[int, ...], dtype: Any) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    descriptor = open_inside(location, source, tensor.name)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        offset = _number(entries.get("offset", "0"), source, tensor, "offset")
        wanted = prod(shape) * dtype.itemsize
        length = _number(entries.get("length", str(wanted)), source, tensor, "length")
        if length != wanted:
            raise _invalid(
                source, tensor, f"it states {length} bytes of external data, not {wanted}"
            )
        if offset + length > size:
            raise _refused(
                source, tensor.name, location,
                f"bytes {offset} to {offset + length} are past its end ({size} bytes)",
            )  # fmt: skip
        if "checksum" in entries:
            digest = hashlib.file_digest(file, "sha1").hexdigest()
            if digest != entries["checksum"].lower():
                raise _refused(source, tensor.name, location, "its SHA-1 is not the one stated")
        if not wanted:
            return np.zeros(shape, dtype)
        # Copy on write: the tensor may be given away as a writable one, the file stays as it is.
        return np.memmap(file, dtype, "c", offset, shape)


def open_inside(location: str, source: Source, name: str) -> int:
    """Open a path of external data for reading and return the file descriptor.

    Raises:
        IrcError: ``external-data`` where it leaves the folder of the model, ``file-missing``.
    """
    if source.folder is None or source.real_folder is None:
        raise _refused(source, name, location, "the model was given without a folder")
    path = PurePosixPath(location)
    if (
        not path.parts
        or path.is_absolute()
        or ".." in path.parts
        or "\\" in location
        or "\0" in location
    ):
        raise _refused(source, name, location, "it is not a path inside the model's folder")
    target = source.folder.joinpath(*path.parts)
    folder, parts = source.folder.resolve(), path.parts
    if target.is_symlink() and source.real_folder != folder:
        # A content store: the model is a link, so its data may be one into the same folder.
        real = target.resolve()
        if real.parent == source.real_folder:
            folder, parts = source.real_folder, (real.name,)
    try:
        descriptor = _walk(folder, parts)
    except FileNotFoundError:
        raise IrcError(
            "file-missing", f"external data '{target}' does not exist", where=name
        ) from None
    except OSError as error:
        raise _refused(
            source, name, location, f"{error.strerror or error}; links are not followed"
        ) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        kind = (
            "it has more than one name (a hard link)"
            if stat.S_ISREG(status.st_mode)
            else "not a regular file"
        )
        raise _refused(source, name, location, kind)
    return descriptor


def _walk(folder: Path, parts: tuple[str, ...]) -> int:
    # O_NONBLOCK: opening a pipe must not wait for a writer.
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for i, part in enumerate(parts):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_DIRECTORY if i + 1 < len(parts) else 0
        try:
            deeper = os.open(part, flags, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    return here


def _number(text: str, source: Source, tensor: TensorProto, key: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _invalid(source, tensor, f"its {key} {text[:40]!r} is not a number of bytes")
    return int(text)


def _invalid(source: Source, tensor: TensorProto, reason: str) -> IrcError:
    return IrcError(
        "onnx-invalid", f"tensor '{tensor.name}' is damaged: {reason}", where=source.name
    )


def _refused(source: Source, name: str, location: str, reason: str) -> IrcError:
    return IrcError(
        "external-data",
        f"external data '{location}' of tensor '{name}' is refused: {reason}",
        where=source.name,
        help="put the data file, not a link to it, beside the model",
    )
