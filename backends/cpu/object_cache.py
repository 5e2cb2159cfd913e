"""What LLVM's object code is kept under, in the store that all backends share."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable

import llvmlite
import llvmlite.binding as llvm

from irc.backends.cpu.features import Features
from irc.cluster.object_store import MOST_BYTES, discard, limit, read, write

__all__ = ["MOST_BYTES", "discard", "key_of", "limit", "read", "write"]

PIPELINE = "rotate-1"
"""What is done to a module before code generation; another name for each change of it."""


def key_of(texts: Iterable[str], features: Features, triple: str) -> str:
    """Return the name under which the code of some kernels is kept."""
    digest = hashlib.sha256()
    facts = (
        PIPELINE, llvmlite.__version__, ".".join(map(str, llvm.llvm_version_info)), triple,
        features.cpu, features.flags, platform.machine(),
    )  # fmt: skip
    for part in (*facts, *texts):
        data = part.encode()
        # Lengths, so that no two lists of texts are one text.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
