"""What is said of nodes that do not fit their operands, or need a size that is a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx

from irc.errors import IrcError, printable
from irc.frontends.onnx.node import Value, size_names
from irc.frontends.onnx.read import DOMAINS

if TYPE_CHECKING:
    from irc.frontends.onnx.importer import Importer


def no_converter(proto: onnx.NodeProto, where: str = "") -> IrcError:
    """Return the error that irc has no form of an op."""
    domain = "" if proto.domain in DOMAINS else f" of domain '{proto.domain}'"
    return IrcError(
        "op-unsupported",
        f"no converter for op '{proto.op_type}'{domain}",
        where,
        help="export the model without it, or give it a function body in the model",
    )


def unbound(owner: Importer, names: frozenset[str], message: str) -> IrcError:
    """Return the error that sizes are needed as numbers, with the option that gives them."""
    known, own = owner.sizes.names(names), owner.sizes.own(names)
    owner.sizes.need(names, message, owner.b.loc)
    computed = [name for name in known if name not in own]
    return IrcError(
        "size-unbound",
        f"{message}: {', '.join(known)}",
        owner.b.loc,
        because=[f"the model computes {', '.join(computed)}"] if computed else (),
        help=("give one or more of them numbers: " if computed else "give it a number: ")
        + " ".join(f"--size {printable(name)}=1" for name in own),
    )


def misfit(
    owner: Importer, proto: onnx.NodeProto, operands: Sequence[Value | None], error: Exception
) -> IrcError:
    """Return the error that a node does not fit its operands, or does so only for some sizes."""
    names = frozenset[str]().union(*(size_names(v.shape) for v in operands if v is not None))
    if names:
        return unbound(
            owner,
            names,
            f"{proto.op_type} does not fit its operands ({error}) unless these sizes agree",
        )
    shapes = ", ".join(
        "?" if v is None else f"[{', '.join(map(str, v.shape))}] {v.dtype}" for v in operands
    )
    return IrcError(
        "onnx-invalid", f"{proto.op_type} does not fit its operands: {error}", owner.b.loc,
        because=f"its operands are {shapes}",
    )  # fmt: skip
