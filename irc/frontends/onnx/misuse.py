"""What is said of a node on which a converter fails: its values are not what any converter expects.

Schemas do not say everything: how many pads there are, or that a factor is positive. A converter
that meets such a node raises what Python raises. Whose fault it is, onnx's own type inference says
on the same operands: where it refuses the node too, the model is wrong.
"""

from __future__ import annotations

from irc.errors import IrcError, printable
from irc.frontends.onnx.node import Node
from irc.frontends.onnx.result_types import refusal


def misused(node: Node, error: Exception) -> IrcError:
    """Return the error that a node's values make no sense, or that its converter fails on them."""
    kind, words = node.proto.op_type, printable(str(error)).strip().partition("\n")[0][:200]
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    if reason := refusal(node):
        return IrcError(
            "onnx-invalid", f"{kind} cannot be on these operands: {printable(reason)[:300]}",
            node.owner.b.loc,
        )  # fmt: skip
    return IrcError(
        "op-unsupported",
        f"{kind} of these operands and attributes cannot be converted",
        node.owner.b.loc,
        because=f"its converter ends in {said}",
        help="if onnx.reference or onnxruntime runs the model, report it: irc should",
    )
