"""What a user fixes of a pipeline, stage by stage: each is told what is about its own values."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from irc.constraints.fusion import parse_fusion
from irc.constraints.pins import constraint_text, parse_constraints
from irc.constraints.resolve import resolve
from irc.dialects.placement import Mesh
from irc.errors import IrcError


def pins_of_stages(pins: str, mesh: Mesh, modules: Sequence[ModuleOp]) -> list[str]:
    """Return the constraints of each stage.

    Args:
        pins: text, or the name of a file.
        mesh: of a stage.
        modules: of the stages, level flow.

    Raises:
        IrcError: for a statement that no stage can keep, what it raises there;
            ``pipeline-unsupported`` for one about kernels, which functions have of their own.
    """
    text, source = constraint_text(pins)
    if kernels := parse_fusion(text, source):
        raise IrcError(
            "pipeline-unsupported",
            f"'{kernels[0]}' is about kernels, and the functions of stages have their own",
            help="leave it out of the constraints of a pipeline",
        )
    found: list[list[str]] = [[] for _ in modules]
    for statement in parse_constraints(text, source):
        refused: list[IrcError] = []
        for own, module in zip(found, modules, strict=True):
            try:
                resolve(module, mesh, [statement])
            except IrcError as error:
                refused.append(error)
            else:
                own.append(statement.text)
        if len(refused) == len(modules):
            raise refused[0]
    return ["\n".join(own) for own in found]
