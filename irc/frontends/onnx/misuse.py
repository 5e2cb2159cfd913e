"""What is said of a node on which a converter fails: its values are not what any converter expects.

Schemas do not say everything: how many pads there are, or that a factor is positive. A converter
that meets such a node raises what Python raises. Whose fault it is, onnx's own type inference says
on the same operands: where it refuses the node too, the model is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx.shape_inference

from irc.errors import InternalError, IrcError, printable
from irc.frontends.onnx.node import Node
from irc.frontends.onnx.prepare import strip
from irc.frontends.onnx.read import Source
from irc.frontends.onnx.result_types import FAILURES, refusal


@contextmanager
def judging(source: Source) -> Iterator[None]:
    """Ask onnx, where compiling a model fails, whether the model is at fault.

    What no kernel is written for runs in libraries, whose operands no converter looks at: that they
    do not fit is seen late, and by whoever meets it first.

    Raises:
        IrcError: ``onnx-invalid`` where the type inference of onnx refuses the model too.
    """
    try:
        yield
    except (IrcError, InternalError, AssertionError):
        raise
    except Exception as error:
        if reason := _model_refusal(source):
            said = printable(f"{type(error).__name__}: {error}").partition("\n")[0][:200]
            raise IrcError(
                "onnx-invalid", f"onnx refuses the model: {printable(reason)[:300]}", source.name,
                because=f"compiling it ended in {said}",
            ) from error  # fmt: skip
        raise


def _model_refusal(source: Source) -> str:
    skeleton, _ = strip(source.model)
    # Only what nodes are given counts here, not the shapes that the file states of their results.
    del skeleton.graph.value_info[:]
    for output in skeleton.graph.output:
        output.ClearField("type")
    try:
        onnx.shape_inference.infer_shapes(
            skeleton, check_type=True, strict_mode=True, data_prop=True
        )
    except FAILURES as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


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
