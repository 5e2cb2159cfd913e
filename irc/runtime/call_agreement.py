"""The calls that ranks make together have to be the same one: digests of them are compared.

Each rank takes its part of the whole inputs. One that is given others, or makes another call,
computes a part of something else, and a sum over ranks mixes both without a word. So each call
begins with one gather of a few bytes: a checksum of the inputs, and whether weights were written
to. It is sent while the call goes on, and waited for where the call comes to its first collective,
before which nothing is written (:func:`collects_first`): what it costs is the checksum, which reads
the inputs once (about 4 GB/s), and the start of a message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from irc.errors import IrcError
from irc.frontends.torch.caches import is_cache
from irc.plan.schema import Copy, Kernels, Library, Plan, Start
from irc.runtime.agreement import add_tensor, checksum, kind_of, ranks_named, texts
from irc.runtime.direct import all_gather
from irc.runtime.watch import naming_lost_ranks

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype)
SIZE = hashlib.sha256().digest_size
MOST_NOTES = 6


@dataclass(frozen=True)
class Call:
    """What a rank calls.

    Attributes:
        what: the function, in words: ranks that call different ones differ.
        args: positional arguments.
        kwargs: keyword arguments.
        more: what else has to be equal, by what it is.
        names: gives the names of the leaves of the arguments, for messages.
        own: which leaves are a rank's own part of the samples; the others are equal on all ranks.
        samples: for each rank which part of the samples it is given; ranks of the same part are
            given the same. Empty where all are given all.
    """

    what: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    more: Mapping[str, object] = field(default_factory=dict[str, object])
    names: Callable[[], Sequence[str]] = list
    own: Collection[int] = ()
    samples: Sequence[int] = ()

    def leaves(self) -> list[Any]:
        """Return the leaves of the arguments; a cache is one."""
        return pytree.tree_leaves((tuple(self.args), self.ordered()), is_leaf=is_cache)

    def ordered(self) -> dict[str, Any]:
        """Return the keyword arguments by the alphabet: ranks may have written them otherwise."""
        return {name: self.kwargs[name] for name in sorted(self.kwargs)}

    def digest(self) -> bytes:
        """Return a digest of what is equal on all ranks, then one of this rank's own part.

        Tensors count by shape, dtype and bytes, and numbers; caches, of which ranks hold parts, and
        what is no plain value count by their type alone.
        """
        kwargs = self.ordered()
        whole = hashlib.sha256(repr((self.what, list(kwargs), self.more)).encode())
        part = hashlib.sha256()
        leaves: list[object] = pytree.tree_leaves(
            (list(self.args), list(kwargs.values())), is_leaf=is_cache
        )
        for number, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                whole.update(repr(leaf if isinstance(leaf, PLAIN) else type(leaf)).encode())
            elif number in self.own:
                whole.update(kind_of(leaf).encode())
                add_tensor(part, leaf)
            else:
                add_tensor(whole, leaf)
        return whole.digest() + part.digest()

    def described(self) -> list[list[str]]:
        """Return what the digest is of: name, kind and value of each thing."""
        leaves, names = self.leaves(), list(self.names())
        if len(names) != len(leaves):
            names = [f"argument {number}" for number in range(1, len(leaves) + 1)]
        rows = [["what is called", self.what, ""]]
        rows += [[f"{name}", "", repr(value)] for name, value in self.more.items()]
        for name, leaf in zip(names, leaves, strict=True):
            if isinstance(leaf, torch.Tensor):
                rows.append([f"'{name}'", kind_of(leaf), f"{checksum(leaf)}"])
            elif isinstance(leaf, PLAIN):
                rows.append([f"'{name}'", repr(leaf), ""])
            else:
                rows.append([f"'{name}'", type(leaf).__name__, ""])
        return rows

    def is_part(self, number: int) -> bool:
        """True where a thing of :meth:`described` is this rank's own part."""
        return number - 1 - len(self.more) in self.own


def agree_on_call(call: Call, *, ready: int = 0, due: bool = False) -> bool:
    """Compare a call between ranks, before anything of it runs; all call it.

    Args:
        call: what this rank calls.
        ready: which compiled version this rank has for the call, -1 for none.
        due: on this rank there is something else to compare.

    Returns:
        Whether there is on any.

    Raises:
        IrcError: ``input-mismatch`` on every rank; ``rank-lost``.
    """
    return compare_call(call, ready=ready, due=due)()


def compare_call(call: Call, *, ready: int = 0, due: bool = False) -> Callable[[], bool]:
    """Begin to compare a call; what is returned waits, and is called before other collectives.

    Args and results are those of :func:`agree_on_call`.
    """
    own = call.digest() + (ready + 1).to_bytes(2, "little") + bytes([due])
    sent = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    table = torch.empty(dist.get_world_size(), len(own), dtype=torch.uint8, device="cpu")
    with naming_lost_ranks():
        work = all_gather(table.view(-1), sent, group=dist.group.WORLD, async_op=True)

    def finish() -> bool:
        with naming_lost_ranks():
            work.wait()
        rows = [row.tobytes() for row in table.numpy()]
        if rows.count(own) == len(rows):
            return due
        _check(call, rows)
        return any(row[-1] for row in rows)

    return finish


def _check(call: Call, rows: Sequence[bytes]) -> None:
    """Refuse calls that are not one.

    Raises:
        IrcError: ``input-mismatch``.
    """
    whole = [row[:SIZE] for row in rows]
    first: dict[int, bytes] = {}
    samples = call.samples or [0] * len(rows)
    parts = [row[SIZE : 2 * SIZE] for row in rows]
    alike = all(
        first.setdefault(number, part) == part for number, part in zip(samples, parts, strict=True)
    )
    if len(set(whole)) > 1 or not alike:
        raise _different(call, whole, samples)
    versions = [row[2 * SIZE : -1] for row in rows]
    if different := _others(versions):
        raise IrcError(
            "input-mismatch",
            f"{_were(different)} in another state than {_usual(versions)}: only some have to "
            "compile",
            because="a training flag, an attribute or a weight of the module is another there",
            help="change the module in the same way on every rank",
        )


def _different(call: Call, whole: Sequence[bytes], samples: Sequence[int]) -> IrcError:
    """Say which ranks call something else, and what of it is another; all ranks call it."""
    every = [json.loads(text) for text in texts(json.dumps(call.described()))]
    notes: list[str] = []
    different = set(_others(whole))
    for number in range(max(map(len, every))):
        things: list[Any] = [rows[number] if number < len(rows) else None for rows in every]
        kinds = [thing and (thing[0], thing[1]) for thing in things]
        if apart := _others(kinds):
            notes.append(_of_kinds(things, apart))
        elif call.is_part(number):
            for part in dict.fromkeys(samples):
                ranks = [rank for rank, own in enumerate(samples) if own == part]
                apart = [ranks[i] for i in _others([things[rank][2] for rank in ranks])]
                if apart:
                    usual = next(rank for rank in ranks if rank not in apart)
                    notes.append(
                        f"{things[usual][0]} has other values on {ranks_named(apart)} than on rank "
                        f"{usual}, which shares its samples"
                    )
                    different.update(apart)
        elif apart := _others([thing[2] for thing in things]):
            value = "other values" if things[0][1] else "another value"
            notes.append(f"{things[0][0]} has {value} on {ranks_named(apart)}")
        different.update(apart)
    more = [f"and {len(notes) - MOST_NOTES} more differ"] if len(notes) > MOST_NOTES else []
    usual = next((rank for rank in range(len(every)) if rank not in different), None)
    local = bool(call.own)
    return IrcError(
        "input-mismatch",
        "no two ranks were given the same inputs" if usual is None
        else f"{_were(sorted(different))} given other inputs than rank {usual}",
        because=[
            *notes[:MOST_NOTES], *more,
            "ranks that share samples are given the same ones, all ranks as many" if local
            else "each rank is given the whole batch, and takes its part of it",
        ],
        help="see which ranks share samples: print(step.feeding()); irc.data_sampler gives each its"
        " own" if local
        else "give every rank the same tensors (no DistributedSampler, one seed), or say that each "
        "feeds its own part: batch='local'",
    )  # fmt: skip


def _of_kinds(things: Sequence[Any], apart: Sequence[int]) -> str:
    usual = next(rank for rank in range(len(things)) if rank not in apart)
    other = next(rank for rank in apart)
    if things[usual] is None or things[other] is None:
        here, there = (ranks_named([r]) for r in ((other, usual) if things[usual] is None else
                                                  (usual, other)))  # fmt: skip
        name = (things[other] or things[usual])[0]
        return f"{name} is given on {here}, and not on {there}"
    name = things[usual][0]
    if things[other][0] != name:
        return f"{things[other][0]} is given on {ranks_named(apart)} where others give {name}"
    here, there = (
        f"{things[other][1]} on {ranks_named(apart)}",
        f"{things[usual][1]} on rank {usual}",
    )
    return f"{name} is {here}, and {there}"


def _others(values: Sequence[Any]) -> list[int]:
    """Return the ranks whose value is not the one that most have, of equally many the first."""
    usual = max(values, key=lambda value: (values.count(value), -values.index(value)))
    return [rank for rank, value in enumerate(values) if value != usual]


def _usual(values: Sequence[Any]) -> str:
    apart = _others(values)
    return f"rank {next(rank for rank in range(len(values)) if rank not in apart)}"


def _were(ranks: Sequence[int]) -> str:
    return f"{ranks_named(ranks)} {'was' if len(ranks) == 1 else 'were'}"


def collects_first(plan: Plan) -> bool:
    """True where a plan begins a collective before it writes what outlives the call.

    A comparison that is under way may then be waited for there.
    """
    lasting = {i for i, b in enumerate(plan.buffers) if b.storage == "weight"}
    for action in plan.actions:
        match action:
            case Start():
                return True
            case Kernels():
                written = {i for c in action.calls
                           for i in c.args[plan.kernels[c.kernel].num_inputs :]}  # fmt: skip
            case Library():
                written = set(action.outputs)
            case Copy():
                written = {action.target}
            case _:
                continue
        if any(plan.root(index) in lasting for index in written):
            return False
    return False
