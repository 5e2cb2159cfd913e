"""ImageDecoder: formats whose bytes are the pixels, or deflate of them (PNG, BMP, PNM, TIFF).

JPEG, JPEG 2000 and WebP need a codec, which irc does not have.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from irc.errors import IrcError
from irc.runtime.onnx_ops.call import Call, Kernels
from irc.runtime.onnx_ops.values import Array

MAX_PIXELS = 1 << 28
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel for each colour type of PNG (ISO/IEC 15948, 11.2.2)."""


def _sized(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_PIXELS:
        raise _refused(f"of {width} x {height} pixels")


def _refused(what: str) -> IrcError:
    return IrcError(
        "op-unsupported",
        f"ImageDecoder meets an image {what}",
        help="it reads PNG, BMP, PNM and TIFF of 8 bits a sample; decode others outside the model",
    )


def _png(data: bytes) -> Array:
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    _sized(width, height)
    if depth != 8 or interlaced or colour not in CHANNELS:
        raise _refused(f"in PNG of {depth} bits a sample{', interlaced' if interlaced else ''}")
    at, packed, palette = 8, b"", b""
    while at + 8 <= len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        packed += body if kind == b"IDAT" else b""
        palette = body if kind == b"PLTE" else palette
        at += size + 12
    step = CHANNELS[colour]
    wanted = height * (1 + width * step)
    raw = zlib.decompressobj().decompress(packed, wanted)
    if len(raw) != wanted:
        raise _refused("in PNG that ends early")
    lines = np.frombuffer(raw, np.uint8).reshape(height, 1 + width * step)
    pixels = _unfiltered(lines, step).reshape(height, width, step)
    if colour == 3:
        return np.frombuffer(palette, np.uint8).reshape(-1, 3)[pixels[..., 0]]
    return pixels


def _unfiltered(lines: Array, step: int) -> Array:
    """Undo PNG's filters: each byte is a difference from its left, upper and upper left one."""
    pixels = np.zeros((lines.shape[0], lines.shape[1] - 1), np.uint8)
    above = np.zeros(lines.shape[1] - 1, np.int64)
    for y, line in enumerate(lines):
        row, how = line[1:].astype(np.int64), int(line[0])
        if how == 2:
            row = row + above
        elif how:
            for x in range(len(row)):
                left = row[x - step] if x >= step else 0
                corner = above[x - step] if x >= step else 0
                row[x] = (row[x] + _predicted(how, left, above[x], corner)) & 0xFF
        above = row & 0xFF
        pixels[y] = above
    return pixels


def _predicted(how: int, left: int, up: int, corner: int) -> int:
    if how == 1:
        return left
    if how == 3:
        return (left + up) // 2
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))


def _bmp(data: bytes) -> Array:
    start, _, width, height, _, bits, packed = struct.unpack("<IIiiHHI", data[10:34])
    _sized(width, abs(height))
    if bits not in (24, 32) or packed:
        raise _refused(f"in BMP of {bits} bits a pixel")
    stride = -(-width * bits // 32) * 4
    rows = np.frombuffer(data, np.uint8, stride * abs(height), start).reshape(abs(height), stride)
    pixels = rows[:, : width * bits // 8].reshape(abs(height), width, bits // 8)[..., 2::-1]
    return pixels[::-1] if height > 0 else pixels


def _pnm(data: bytes) -> Array:
    fields: list[int] = []
    at = 2
    while len(fields) < 3:
        while data[at : at + 1].isspace():
            at += 1
        if data[at : at + 1] == b"#":
            at = data.index(b"\n", at)
            continue
        end = at
        while data[end : end + 1].isdigit() and end - at < 10:
            end += 1
        fields.append(int(data[at:end]))
        at = end
    width, height, largest = fields
    _sized(width, height)
    if largest != 255:
        raise _refused(f"in PNM of {largest} levels")
    step = 3 if data[:2] == b"P6" else 1
    return np.frombuffer(data, np.uint8, width * height * step, at + 1).reshape(height, width, step)


def _tiff(data: bytes) -> Array:
    order = "<" if data[:2] == b"II" else ">"
    (at,) = struct.unpack(order + "I", data[4:8])
    (count,) = struct.unpack(order + "H", data[at : at + 2])
    tags: dict[int, tuple[Any, ...]] = {}
    for i in range(count):
        entry = data[at + 2 + 12 * i : at + 14 + 12 * i]
        tag, kind, number = struct.unpack(order + "HHI", entry[:8])
        form = {1: "B", 3: "H", 4: "I"}.get(kind)
        if form is None or number > 1 << 20:
            continue
        size = struct.calcsize(form) * number
        (place,) = struct.unpack(order + "I", entry[8:])
        body = entry[8 : 8 + size] if size <= 4 else data[place : place + size]
        tags[tag] = struct.unpack(f"{order}{number}{form}", body)
    (width,), (height,) = tags[256], tags[257]
    _sized(width, height)
    if tags.get(259, (1,)) != (1,) or set(tags.get(258, (1,))) != {8}:
        raise _refused("in TIFF that is packed, or not of 8 bits a sample")
    step = tags.get(277, (1,))[0]
    strips = zip(tags[273], tags[279], strict=True)
    raw = b"".join(data[start : start + size] for start, size in strips)
    return np.frombuffer(raw, np.uint8, width * height * step).reshape(height, width, step)


FORMATS: Mapping[bytes, Callable[[bytes], Array]] = {
    b"\x89PNG\r\n\x1a\n": _png, b"BM": _bmp, b"P5": _pnm, b"P6": _pnm,
    b"II*\0": _tiff, b"MM\0*": _tiff,
}  # fmt: skip
"""Decoders by how the bytes begin."""

NAMES: Mapping[bytes, str] = {
    b"\xff\xd8\xff": "JPEG", b"\0\0\0\x0cjP": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000",
    b"RIFF": "WebP", b"GIF8": "GIF",
}  # fmt: skip


def decoded(data: bytes) -> Array:
    """Return the pixels of an image, (height, width, samples).

    Raises:
        IrcError: ``op-unsupported`` for other formats.
    """
    for magic, decode in FORMATS.items():
        if data.startswith(magic):
            try:
                return decode(data)
            except (struct.error, KeyError, IndexError, ValueError, zlib.error) as error:
                raise _refused(f"that is damaged: {error}") from None
    name = next(
        (name for magic, name in NAMES.items() if data.startswith(magic)), "no known format"
    )
    raise _refused(f"in {name}")


def _decode(call: Call) -> Array:
    pixels = decoded(call[0].astype(np.uint8).tobytes())
    colour = np.repeat(pixels[..., :1], 3, -1) if pixels.shape[-1] < 3 else pixels[..., :3]
    match call.attr("pixel_format", "RGB"):
        case "Grayscale":
            # ITU-R 601-2 luma, in the integers that image libraries use.
            weights = np.array([19595, 38470, 7471])
            return ((colour @ weights + 0x8000) >> 16).astype(np.uint8)[..., None]
        case "BGR":
            return np.ascontiguousarray(colour[..., ::-1])
        case _:
            return np.ascontiguousarray(colour)


KERNELS: Kernels = {"ImageDecoder": _decode}
