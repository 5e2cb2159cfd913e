"""A plan of several programs as one string of bytes, to be sent to those that run it."""

from __future__ import annotations

from dataclasses import dataclass

from irc.plan import json_text
from irc.plan.json_text import corrupt
from irc.plan.load import pack, unpack
from irc.plan.parts import PartsPlan
from irc.plan.parts_facts import parse_facts
from irc.plan.parts_verify import checked_parts


def pack_parts(plan: PartsPlan) -> bytes:
    """Write a whole plan, without weights, into one string of bytes, to be sent."""
    pieces = [plan.text.encode(), plan.schedule_text.encode()]
    names: list[list[str]] = []
    for part in plan.parts:
        names.append(list(part))
        pieces += [pack(loaded) for loaded in part.values()]
    header = json_text.dump({"kinds": names, "sizes": [len(p) for p in pieces]}).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(pieces)


@dataclass(frozen=True)
class _Header:
    kinds: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]


def unpack_parts(data: bytes) -> PartsPlan:
    """Read what :func:`pack_parts` wrote.

    Raises:
        IrcError: ``plan-corrupt`` or ``plan-version``.
    """
    size = int.from_bytes(data[:8], "little")
    where = "a plan that was sent"
    header: _Header = json_text.decode(
        _Header, json_text.parse_object(data[8 : 8 + size], where), where
    )
    pieces: list[bytes] = []
    start = 8 + size
    for length in header.sizes:
        pieces.append(data[start : start + length])
        start += length
    if start != len(data) or len(pieces) != 2 + sum(map(len, header.kinds)):
        raise corrupt("a plan that was sent is cut off")
    facts = parse_facts(pieces[0], where)
    rest = iter(pieces[2:])
    parts = tuple({kind: unpack(next(rest)) for kind in kinds} for kinds in header.kinds)
    return checked_parts(facts, pieces[1].decode(), parts)
