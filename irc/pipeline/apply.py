"""Apply passes one after the other, and check what each of them leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from irc.dialects.dominance import verify_module
from irc.dialects.levels import levels_of
from irc.dialects.text import context
from irc.errors import InternalError, IrcError
from irc.logs import PROGRESS
from irc.pipeline.foreign import apply_foreign
from irc.pipeline.levels import levels_after, require_level
from irc.pipeline.options import VerifyEach
from irc.plugin import package_of

if TYPE_CHECKING:
    import torch


OnStage: TypeAlias = Callable[[str, ModuleOp], None]


def apply_passes(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    verify_each: VerifyEach = None,
    on_stage: OnStage | None = None,
    on_failure: Callable[[Exception, int], None] | None = None,
) -> None:
    """Apply passes in place; see :func:`irc.pipeline.run.run_passes`.

    Args:
        module: the program; changed.
        passes: in order.
        verify_each: as ``run_passes`` has it.
        on_stage: called after each pass with its name and the module.
        on_failure: called with what a pass has raised and its number, before that goes on.
    """
    ctx, levels = context(), levels_of(module) if passes else ()
    for number, each in enumerate(passes):
        require_level(each, levels)
        PROGRESS.info("%s, pass %d of %d", each.name, number + 1, len(passes))
        try:
            _apply(each, ctx, module, verify_each)
        except Exception as error:
            if on_failure is not None:
                on_failure(error, number)
            raise
        levels = levels_after(each, levels, module)
        if on_stage is not None:
            on_stage(each.name, module)


def _apply(each: ModulePass, ctx: Context, module: ModuleOp, verify_each: VerifyEach) -> None:
    before = _execution(module) if verify_each == "exec" else None
    if (package := package_of(type(each))) == "irc":
        each.apply(ctx, module)
        if verify_each is not None:
            _verify(module, each)
    else:
        apply_foreign(each, package, ctx, module)
    if before is not None:
        before.compare(module, each.name)


def _verify(module: ModuleOp, after: ModulePass) -> None:
    try:
        verify_module(module)
    except (VerifyException, ValueError) as error:
        raise InternalError(f"pass {after.name} broke the program: {error}") from error


def _execution(module: ModuleOp) -> Execution:
    from irc.interpret.levels import execute, random_inputs

    inputs = random_inputs(module)
    return Execution(inputs, execute(module, inputs))


@dataclass
class Execution:
    """A program's inputs and outputs before a pass, to hold against those after it."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]

    def compare(self, module: ModuleOp, name: str) -> None:
        """Run the program as it is now and compare.

        Raises:
            IrcError: ``check-failed`` naming the pass and the output.
        """
        from irc.interpret.levels import difference, execute

        for index, (was, now) in enumerate(
            zip(self.outputs, execute(module, self.inputs), strict=True)
        ):
            error = difference(now, was)
            if error > 1e-9:
                raise IrcError(
                    "check-failed",
                    f"pass {name} changed output {index}: relative error {error:.1e} in float64",
                    help=f"report it with the program before the pass: irc opt -p {name}",
                )
