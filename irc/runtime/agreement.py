"""What the processes of a run hold has to be the same: digests of it are compared.

Each rank takes its part of the whole weights. One that has others computes a part of something
else, and a sum over ranks mixes both without a word.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from irc.errors import IrcError
from irc.runtime.held import is_held
from irc.runtime.watch import naming_lost_ranks

VARIABLE = "IRC_CHECK_RANKS"
"""``off`` on every rank: only the first call of a kind, and weights when they are taken."""


def is_checked() -> bool:
    """True unless the user has switched off that each call is compared."""
    return os.environ.get(VARIABLE, "on") != "off"


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return a digest of named tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        add_tensor(digest, tensors[name])
    return digest.digest()


def add_tensor(digest: Any, tensor: torch.Tensor) -> None:
    """Add a tensor's shape, dtype and bytes to a digest; of one in parts, the first two."""
    digest.update(kind_of(tensor).encode())
    digest.update(checksum(tensor).to_bytes(4, "little"))


def kind_of(tensor: torch.Tensor) -> str:
    """Say what a tensor is, but for its values."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def checksum(tensor: torch.Tensor) -> int:
    """Return a checksum of a tensor's bytes; 0 of one that has none here."""
    if is_held(tensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    # A cyclic redundancy check sees what moved, which a sum does not, and is faster than a hash.
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


def gathered(own: bytes) -> list[bytes]:
    """Return the bytes of every rank, as many of each; all ranks call it.

    Raises:
        IrcError: ``rank-lost``.
    """
    sent = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    rows = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    with naming_lost_ranks():
        dist.all_gather(rows, sent)  # pyright: ignore[reportUnknownMemberType]
    return [row.numpy().tobytes() for row in rows]


def texts(own: str) -> list[str]:
    """Return the text of every rank, of any length; all ranks call it."""
    data = own.encode()
    sizes = gathered(len(data).to_bytes(8, "little"))
    longest = max(1, *(int.from_bytes(row, "little") for row in sizes))
    return [row.rstrip(b"\0").decode() for row in gathered(data.ljust(longest, b"\0"))]


def fail_together(failed: IrcError | None) -> None:
    """Raise on all ranks the error of the first that has one; every rank calls it.

    A rank that ended alone would leave the others in their next collective.

    Args:
        failed: what this rank would raise.

    Raises:
        IrcError: that of the first rank, with its code and its advice; ``rank-lost``.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        if failed is not None:
            raise failed
        return
    if not any(any(row) for row in gathered(bytes([failed is not None]))):
        return  # one small message, as some ask in each step
    own = "" if failed is None else json.dumps(failed.args)  # ASCII, whatever a path has
    for each in texts(own):
        if each:
            raise IrcError(*json.loads(each)) from failed


def others(rows: Iterable[bytes]) -> list[int]:
    """Return the ranks whose bytes are not those of rank 0."""
    each = list(rows)
    return [rank for rank, row in enumerate(each) if row != each[0]]


def ranks_named(ranks: Sequence[int]) -> str:
    """Name ranks, not too many.

    >>> ranks_named([1]), ranks_named([1, 2]), ranks_named(range(40))
    ('rank 1', 'ranks 1, 2', 'ranks 0, 1, 2, 3, 4, 5, 6, 7, and 32 more')
    """
    shown = ", ".join(map(str, ranks[:8]))
    more = f", and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def agree_on_weights(tensors: Mapping[str, torch.Tensor]) -> None:
    """Compare whole weights between ranks; all call it.

    Raises:
        IrcError: ``state-mismatch`` on every rank, naming a weight and the ranks.
    """
    if not others(gathered(tensors_digest(tensors))):
        return
    # They differ, so it may take longer to say where.
    for name in sorted(tensors):
        digest = tensors_digest({name: tensors[name]})
        if different := others(gathered(digest)):
            raise IrcError(
                "state-mismatch",
                f"'{name}' has other values on {ranks_named(different)} than on rank 0",
                because="each rank takes its part of the whole weights, which would be mixed",
                help="set the same seed before the module is made, or load one checkpoint on every "
                "rank",
            )
