"""Reading an ONNX file that nobody vouches for: bytes to a checked `ModelProto`, or one error."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from irc.errors import IrcError

OLDEST_OPSET = 1
MAX_BYTES = (1 << 31) - 1
"""What a protobuf message can have."""

DOMAINS = ("", "ai.onnx")

# What a file is more likely to be, by how it begins (offset, bytes, words).
MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"version https://git-lfs", "a git-lfs pointer: fetch the file itself with `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint or an exported .pt2"),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (0, b"BZh", "compressed with bzip2: unpack it first"),
    (0, b"\xfd7zXZ", "compressed with xz: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (0, b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (0, b"GGUF", "a GGUF file of llama.cpp"),
    (0, b"\x80\x02", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "a model in ONNX Runtime's own format (.ort)"),
    (8, b'{"', "a safetensors file: it holds weights, but no graph"),
)


@dataclass(frozen=True)
class Source:
    """A decoded model, its short name for messages, and where its external data may lie.

    ``stored`` holds initializers that are not in the graph: large ones are never copied. ``inputs``
    replaces the types of the graph's inputs (those of one call in place of free sizes), and
    ``constants`` gives some inputs values, so that they are inputs no more.
    """

    model: onnx.ModelProto
    name: str
    folder: Path | None
    real_folder: Path | None
    stored: tuple[onnx.TensorProto, ...] = ()
    inputs: tuple[onnx.ValueInfoProto, ...] = ()
    constants: tuple[onnx.TensorProto, ...] = ()


def read_model(model: str | os.PathLike[str] | bytes | onnx.ModelProto | Source) -> Source:
    """Decode a model from a path, bytes, or take it as it is.

    Raises:
        IrcError: ``file-missing``, ``not-onnx`` or ``onnx-version``.
    """
    if isinstance(model, Source):
        return model
    if isinstance(model, onnx.ModelProto):
        source = Source(model, "model", None, None)
    elif isinstance(model, bytes | bytearray):
        source = Source(decode(bytes(model), "model"), "model", None, None)
    else:
        path = Path(model)
        decoded = decode(_contents(path), path.name)
        # A model in a content store is a symbolic link, and its data lies beside its target.
        source = Source(decoded, path.name, path.parent, path.resolve().parent)
    check_versions(source)
    return source


def decode(data: bytes, name: str) -> onnx.ModelProto:
    """Decode the bytes of a model.

    Raises:
        IrcError: ``not-onnx``, saying what the bytes look like.
    """
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise _not_onnx(name, data, str(error)) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise _not_onnx(name, data, "it holds no graph")
    if not model.graph.output:
        raise _not_onnx(name, data, "its graph has no output")
    return model


def looks_like(data: bytes) -> str:
    """Say what the bytes look like, from how they begin.

    >>> looks_like(b"GGUF....")
    'a GGUF file of llama.cpp'
    """
    if not data:
        return "empty: 0 bytes"
    for offset, magic, words in MAGIC:
        if data[offset:].startswith(magic):
            return words
    head = data[:512].lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "a web page, perhaps that of a failed download"
    if head.startswith((b"{", b"[")):
        return "JSON"
    if all(9 <= byte < 127 for byte in data[:512]):
        return "plain text"
    return "truncated, or other binary data"


def check_versions(source: Source) -> None:
    """Refuse versions and domains that the installed onnx does not know.

    Raises:
        IrcError: ``onnx-version``.
    """
    model = source.model
    if model.ir_version > onnx.IR_VERSION:
        raise IrcError(
            "onnx-version",
            f"the model has IR version {model.ir_version}; this onnx reads up to {onnx.IR_VERSION}",
            where=source.name,
            help="update onnx, or export the model for an older version",
        )
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in DOMAINS and not OLDEST_OPSET <= opset.version <= newest:
            raise IrcError(
                "onnx-version",
                f"the model uses opset {opset.version}; irc reads {OLDEST_OPSET} to {newest}",
                where=source.name,
                help="convert it with onnx.version_converter.convert_version(model, 17)",
            )
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain in DOMAINS else opset.domain
        if versions.setdefault(domain, opset.version) != opset.version:
            raise IrcError(
                "onnx-version",
                f"the model uses opsets {versions[domain]} and {opset.version} of one domain",
                where=source.name,
                help="opset_import must name each domain once",
            )
    needed = any(node.domain in DOMAINS for node in model.graph.node) or model.functions
    if needed and not any(opset.domain in DOMAINS for opset in model.opset_import):
        raise IrcError(
            "onnx-version",
            "the model does not say which opset of ONNX it uses",
            where=source.name,
            help="export it again; opset_import must name the default domain",
        )


def _contents(path: Path) -> bytes:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            raise IrcError("file-missing", f"'{path}' is a folder; give the .onnx file in it")
        # A pipe or device could be endless, or never answer.
        if not stat.S_ISREG(kind):
            raise IrcError("file-missing", f"'{path}' is not a regular file")
        if path.stat().st_size > MAX_BYTES:
            # Protobuf could not decode it, and reading it takes the memory all the same.
            raise IrcError(
                "not-onnx",
                f"'{path.name}' has {path.stat().st_size} bytes; an ONNX file has at most 2 GiB",
                help="save its weights beside it: onnx.save(..., save_as_external_data=True)",
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise IrcError("file-missing", f"cannot read '{path}': {reason}") from None


def _not_onnx(name: str, data: bytes, reason: str) -> IrcError:
    return IrcError(
        "not-onnx",
        f"'{name}' is not an ONNX model; it looks like {looks_like(data)}"
        if not reason.startswith("it")
        else f"'{name}' is not an ONNX model: {reason}" + ("" if data else " (0 bytes)"),
        because=() if reason.startswith("it") else f"protobuf says: {reason}",
        help="give a file that an exporter wrote, such as torch.onnx.export",
    )
