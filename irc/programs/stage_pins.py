"""What a user fixes of a pipeline, stage by stage: each is told what is about its own values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from irc.constraints.chunks import parse_chunks
from irc.constraints.fusion import parse_fusion
from irc.constraints.pins import Statement, constraint_text, parse_constraints
from irc.constraints.resolve import resolve
from irc.constraints.uses import Use, applied, parse_uses
from irc.dialects.builder import arguments, entry
from irc.dialects.placement import Mesh
from irc.errors import IrcError


def pins_of_stages(
    pins: str,
    mesh: Mesh,
    modules: Sequence[ModuleOp],
    slices: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return the constraints of each stage.

    Args:
        pins: text, or the name of a file.
        mesh: of a stage.
        modules: of the stages, level flow.
        slices: of a weight that stages have in slices, their names: what is said of the whole holds
            for each.

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
    if chunks := parse_chunks(text, source):
        raise IrcError(
            "pipeline-unsupported",
            f"'{chunks[0]}' is about collectives, and the functions of stages have their own",
            where=chunks[0].where,
            help="leave it out of the constraints of a pipeline",
        )
    by_stage: list[list[str]] = [[] for _ in modules]
    for use in parse_uses(text, source):
        _add_use(use, mesh, modules, by_stage)
    for statement in parse_constraints(text, source):
        refused: list[IrcError] = []
        for own, module in zip(by_stage, modules, strict=True):
            of_slices = list(_of_slices(statement, module, slices or {}))
            try:
                resolve(module, mesh, [statement])
            except IrcError as error:
                refused += [] if of_slices else [error]
            else:
                own.append(statement.text)
            for each in of_slices:
                resolve(module, mesh, [each])
                own.append(each.text)
        if len(refused) == len(modules):
            raise refused[0]
    return ["\n".join(own) for own in by_stage]


def _add_use(
    use: Use, mesh: Mesh, modules: Sequence[ModuleOp], by_stage: Sequence[list[str]]
) -> None:
    """Add to each stage what a constraint by use says of its ops; refuse one that says nothing."""
    refused: list[IrcError] = []
    for own, module in zip(by_stage, modules, strict=True):
        try:
            own += [statement.text for statement in applied(module, mesh, (use,))]
        except IrcError as error:
            refused.append(error)
    if len(refused) == len(modules):
        raise refused[0]


def _of_slices(
    statement: Statement, module: ModuleOp, slices: Mapping[str, Sequence[str]]
) -> Iterator[Statement]:
    """Yield what a statement about a whole weight says of the slices that a stage has."""
    if statement.kind != "argument" or statement.verb == "same":
        return
    here = {name for _, name, _ in arguments(entry(module))}
    for whole, names in slices.items():
        for name in names if statement.matches(whole) else ():
            if name in here:
                yield replace(statement, glob=name)
