"""Collectives that are named to be cut into pieces: that they are there, and were cut."""

from __future__ import annotations

from collections.abc import Collection
from typing import Never

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.attributes import to_python
from irc.dialects.comm import CHUNK, AllGatherOp, CollectiveOp, ReduceScatterOp, WaitOp
from irc.dialects.flow import id_of, loc_of
from irc.errors import IrcError, did_you_mean
from irc.sharding.chunks import group_of, told_of

PASS = "chunk-collectives"


def known_names(module: ModuleOp) -> frozenset[str]:
    """Return the ids of the collectives' waits of a module, and of what was cut before."""
    waits = {id_of(op) for op in module.walk() if isinstance(op, WaitOp)}
    return frozenset(waits | told_of(module).keys())


def check_known(module: ModuleOp, names: Collection[str]) -> None:
    """Check that collectives are there, or were cut before.

    Args:
        module: level spmd.
        names: ids of their waits.

    Raises:
        IrcError: ``option-value`` naming those that are not.
    """
    if set(names) - (known := known_names(module)):
        groups = filter(None, map(group_of, module.walk()))
        refuse_unknown(names, known, {id_of(group.wait) for group in groups})


def refuse_unknown(names: Collection[str], known: Collection[str], like: Collection[str]) -> None:
    """Refuse ids that no collective has.

    Args:
        names: that were asked for.
        known: of all collectives.
        like: of those that may be cut, among which one may have been meant.

    Raises:
        IrcError: ``option-value`` naming those that are unknown.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        listed = ", ".join(f"'{name}'" for name in unknown)
        raise IrcError(
            "option-value",
            f"{PASS}: only: the program has no collective {listed}",
            help=did_you_mean(unknown[0], like)
            or "`irc explain plan PLAN --overlap` lists the ids of a plan",
        )


def check_cut(module: ModuleOp, names: Collection[str], degree: int) -> None:
    """Check that collectives were cut as somebody asked for; those that are not there count not.

    Args:
        module: level spmd, behind the pass.
        names: ids of their waits.
        degree: that was asked for; 0: none, where nothing is cut by price.

    Raises:
        IrcError: ``option-value`` naming one that was not, and why.
    """
    waits = {id_of(op): op for op in module.walk() if isinstance(op, WaitOp)}
    told = told_of(module)
    for name in sorted(names):
        if name in told and degree in (0, told[name]):
            continue
        if name in told:
            raise IrcError(
                "option-value",
                f"{PASS}: only: '{name}' is in {told[name]} pieces, not {degree}",
                because="it was cut before",
                help=f"leave out what cut it: no-{PASS}",
            )
        if name in waits:
            because, advice = _why_whole(waits[name], degree)
            raise IrcError(
                "option-value",
                f"{PASS}: only: '{name}' stays whole",
                where=loc_of(waits[name]),
                because=because,
                help=advice,
            )


def refuse_whole(wait: WaitOp, degree: int) -> Never:
    """Refuse a constraint on a collective that stays whole.

    Raises:
        IrcError: ``chunk-whole``, with the reason.
    """
    because, _ = _why_whole(wait, degree)
    raise IrcError(
        "chunk-whole",
        f"chunk: '{id_of(wait)}' stays whole, and constraints say {degree} pieces",
        where=loc_of(wait),
        because=because,
        help="choose a degree that divides one, or leave the module out",
    )


def _why_whole(wait: WaitOp, degree: int) -> tuple[str, str]:
    """Return why a collective was not cut, and what helps."""
    start, leave_out = wait.pending.owner, "leave it out of `only`"
    assert isinstance(start, CollectiveOp)
    if not isinstance(start, AllGatherOp | ReduceScatterOp):
        return f"it is a {start.name}; all-gathers and reduce-scatters are cut", leave_out
    if CHUNK in start.attributes:
        return f"it is piece {to_python(start.attributes[CHUNK])}", leave_out
    if start.bucket is not None:
        return "it begins as one with others of its bucket", leave_out
    if not degree:
        return (
            "processes of one host take its cores for their transport: nothing is cut by price",
            f'name a degree, as in {PASS}{{degree=2 only="{id_of(wait)}"}}',
        )
    return (
        f"no dim that a matmul beside it keeps is cut into {degree} equal pieces",
        f"choose a degree that divides one, or {leave_out}",
    )
