"""What the processes of a run are given has to be the same: digests of it are compared.

Each rank takes its part of the whole inputs and of the whole weights. One that is given others
computes a part of something else, and a sum over ranks mixes both without a word. So each call
begins with one gather of a few bytes: a checksum of the inputs, and whether weights were written
to. It reads the inputs once (about 4 GB/s) and takes as long as one small collective.
"""

# pyright: basic
from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.caches import is_cache
from irc.runtime.held import is_held
from irc.runtime.watch import naming_lost_ranks

VARIABLE = "IRC_CHECK_RANKS"
"""``off`` on every rank: only the first call of a kind, and weights when they are taken."""

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)


def is_checked() -> bool:
    """True unless the user has switched off that each call is compared."""
    return os.environ.get(VARIABLE, "on") != "off"


def call_digest(args: Sequence[Any], kwargs: Mapping[str, Any], *more: object) -> bytes:
    """Return a digest of the arguments of a call: shapes, dtypes and bytes of tensors, and numbers.

    Caches, of which ranks hold parts, and what is no plain value count by their type alone.
    """
    named = [kwargs[name] for name in sorted(kwargs)]
    leaves = pytree.tree_leaves((list(args), named), is_leaf=is_cache)
    found = hashlib.sha256(repr((sorted(kwargs), more)).encode())
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            _add(found, leaf)
        else:
            found.update(repr(leaf if isinstance(leaf, PLAIN) else type(leaf)).encode())
    return found.digest()


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Return a digest of named tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        _add(found, tensors[name])
    return found.digest()


def _add(found: Any, tensor: torch.Tensor) -> None:
    found.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    if is_held(tensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    # A cyclic redundancy check sees what moved, which a sum does not, and is faster than a hash.
    found.update(zlib.crc32(flat.view(torch.uint8).numpy().data).to_bytes(4, "little"))


def gathered(own: bytes) -> list[bytes]:
    """Return the bytes of every rank, as many of each; all ranks call it.

    Raises:
        IrcError: ``rank-lost``.
    """
    sent = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    rows = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    with naming_lost_ranks():
        dist.all_gather(rows, sent)
    return [row.numpy().tobytes() for row in rows]


def others(rows: Iterable[bytes]) -> list[int]:
    """Return the ranks whose bytes are not those of rank 0."""
    each = list(rows)
    return [rank for rank, row in enumerate(each) if row != each[0]]


def agree_on_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], *more: object, ready: int = 0, due: bool = False
) -> bool:
    """Compare a call between ranks, before anything of it runs; all call it.

    Args:
        args: of the call.
        kwargs: of the call.
        more: further numbers that have to be equal.
        ready: which compiled version this rank has for the call, -1 for none.
        due: on this rank there is something else to compare.

    Returns:
        Whether there is on any.

    Raises:
        IrcError: ``input-mismatch`` on every rank.
    """
    digest = call_digest(args, kwargs, *more)
    rows = gathered(digest + (ready + 1).to_bytes(2, "little") + bytes([due]))
    size = len(digest)
    if different := others(row[:size] for row in rows):
        raise IrcError(
            "input-mismatch",
            f"{_named(different)} given other inputs than rank 0",
            because="each rank is given the whole batch, and takes its part of it",
            help="give every rank the same tensors: no DistributedSampler, one seed",
        )
    if different := others(row[size : size + 2] for row in rows):
        raise IrcError(
            "input-mismatch",
            f"{_named(different)} in another state than rank 0: only some have to compile",
            because="a training flag, an attribute or a weight of the module is another there",
            help="change the module in the same way on every rank",
        )
    return any(row[-1] for row in rows)


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
                f"'{name}' has other values on {_ranks(different)} than on rank 0",
                because="each rank takes its part of the whole weights, which would be mixed",
                help="set the same seed before the module is made, or load one checkpoint on every "
                "rank",
            )


def _named(ranks: Sequence[int]) -> str:
    return f"{_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
