"""The files of a plan: which names are allowed, their digests, and the manifest.

The manifest lists every file that ranks must agree on, with its size and SHA-256; the digest of the
manifest is the plan's hash. Weights are outside: each rank reads its own slices of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from irc.plan import json_text
from irc.plan.json_text import corrupt
from irc.plan.version import FORMAT, check_format

MANIFEST = "manifest.json"
PLAN = "plan.json"
WEIGHTS = "weights.safetensors"
REFERENCES = "weights.json"
SIGNATURE = "signature.json"
ALLOWED = re.compile(
    r"plan\.json"
    r"|ir/[0-9]{2}-[a-z0-9-]{1,64}\.mlir"
    r"|kernels/[A-Za-z0-9_.-]{1,128}\.[a-z0-9_]{1,16}"
    r"|launch/[a-z0-9_-]{1,64}\.(sh|sbatch|json|yaml)"
    r"|sizes\.json|sizes/(capture|kernels|like|shared)\.mlir"
    r"|report/[a-z0-9_-]{1,64}\.(json|txt|html)"
    r"|training/[a-z0-9_-]{1,64}\.(json|mlir)"
)
MAX_FILE_BYTES = 1 << 30
MAX_FILES = 100_000


@dataclass(frozen=True)
class FileEntry:
    """One file of the manifest."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What the plan consists of, free of weight values, paths of a machine and times.

    Attributes:
        files: entry by name, in sorted order.
        mesh: the mesh, for a reader who does not want to open plan.json.
        irc: the version that wrote the plan.
        torch: the version of torch at hand then, or empty.
    """

    files: Mapping[str, FileEntry]
    mesh: str
    irc: str
    torch: str = ""
    format: int = FORMAT


def make_manifest(files: Mapping[str, bytes], mesh: str, torch_version: str = "") -> Manifest:
    """Describe files."""
    entries: dict[str, FileEntry] = {}
    for name in sorted(files):
        check_name(name)
        entries[name] = FileEntry(hashlib.sha256(files[name]).hexdigest(), len(files[name]))
    # By name: the package's own module leads, through its lazy names, to torch.
    version: str = import_module("irc").__version__
    return Manifest(entries, mesh, version, torch_version)


def manifest_text(manifest: Manifest) -> str:
    """Print a manifest; equal manifests print equally."""
    return json_text.dump({"format": manifest.format, **json_text.encode(manifest)})


def plan_hash(text: str | bytes) -> str:
    """Return the hash of the plan that has this manifest."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def parse_manifest(text: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    data = json_text.parse_object(text, where)
    check_format(data.get("format"), where)
    manifest: Manifest = json_text.decode(Manifest, data, where)
    if len(manifest.files) > MAX_FILES:
        raise corrupt(f"{len(manifest.files)} files; at most {MAX_FILES} are read", where)
    for name in manifest.files:
        check_name(name)
    if PLAN not in manifest.files:
        raise corrupt(f"lists no {PLAN}", where)
    return manifest


def check_name(name: str) -> None:
    """Refuse a name that is not one of a plan's files, so that none leads out of the folder.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    if not ALLOWED.fullmatch(name):
        raise corrupt(f"{name[:80]!r} is not the name of a file of a plan")


def check_digest(name: str, content: bytes, entry: FileEntry) -> None:
    """Compare a file with the manifest.

    Raises:
        IrcError: ``plan-corrupt``, naming the file.
    """
    if len(content) != entry.bytes:
        raise corrupt(f"{name} has {len(content)} bytes; the manifest says {entry.bytes}")
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise corrupt(f"the content of {name} is not what the manifest says")


def read_file(folder: Path, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read a regular file of the folder; links are not followed.

    Raises:
        IrcError: ``plan-corrupt``: missing, no regular file, too large.
    """
    path = folder / name
    where = str(path)
    try:
        if path.parent.is_symlink() and path.parent != folder:
            raise corrupt("its folder is a link; a plan is one folder", where)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise corrupt(f"cannot be read: {error.strerror}", where) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise corrupt("not a regular file", where)
        if status.st_size > limit:
            raise corrupt(f"{status.st_size} bytes; at most {limit} are read", where)
        try:
            return file.read()
        except OSError as error:
            raise corrupt(f"cannot be read: {error.strerror}", where) from None
