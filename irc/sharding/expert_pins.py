"""Layers of experts that are named to be cut into pieces: that they are there, and were cut."""

from __future__ import annotations

from collections.abc import Collection

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.comm import CHUNK
from irc.dialects.flow import ExternOp, id_of, loc_of
from irc.errors import IrcError, did_you_mean
from irc.sharding.chunks import told_of
from irc.sharding.expert_layers import expert_layer

PASS = "chunk-experts"


def check_known_layers(module: ModuleOp, names: Collection[str]) -> None:
    """Check that layers of experts are there, or were cut before.

    Args:
        module: level spmd.
        names: ids of the experts.

    Raises:
        IrcError: ``option-value`` naming one that is not.
    """
    layers = {id_of(op) for op in module.walk() if expert_layer(op) is not None}
    unknown = sorted(set(names) - layers - told_of(module).keys())
    if unknown:
        raise IrcError(
            "option-value",
            f"{PASS}: only: the program has no layer of experts '{unknown[0]}' whose tokens travel",
            help=did_you_mean(unknown[0], layers)
            or (f"it has {', '.join(sorted(layers))}" if layers else "leave it out"),
        )


def check_cut_layers(module: ModuleOp, names: Collection[str], degree: int) -> None:
    """Check that layers were cut as somebody asked for; those that are not there count not.

    Args:
        module: level spmd, behind the pass.
        names: ids of the experts.
        degree: that was asked for; 0: none, where nothing is cut by price.

    Raises:
        IrcError: ``option-value`` naming one that was not, and why.
    """
    whole = {id_of(op): op for op in module.walk() if isinstance(op, ExternOp)}
    told = told_of(module)
    for name in sorted(names):
        if name in told and degree not in (0, told[name]):
            raise IrcError(
                "option-value",
                f"{PASS}: only: '{name}' is in {told[name]} pieces, not {degree}",
                because="it was cut before",
                help=f"leave out what cut it: no-{PASS}",
            )
        op = whole.get(name)
        layer = None if op is None or CHUNK in op.attributes else expert_layer(op)
        if layer is None:
            continue
        because, advice = (
            f"a rank has {layer.tokens} tokens"
            + (f" of {layer.inner} ranks" if layer.inner > 1 else "")
            + f": they are not cut into {degree} equal pieces",
            f"choose a degree that divides them, or leave '{name}' out of `only`",
        )
        if not degree:
            because = "processes of one host take its cores for their transport: nothing is cut by"
            because += " price"
            advice = f'name a degree, as in {PASS}{{degree=2 only="{name}"}}'
        raise IrcError(
            "option-value",
            f"{PASS}: only: '{name}' stays whole",
            where=loc_of(layer.op),
            because=because,
            help=advice,
        )
