"""Run passes, and check what each of them leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import VerifyException

from irc.dialects.dominance import verify_module
from irc.dialects.levels import levels_of
from irc.dialects.text import context
from irc.errors import InternalError, IrcError
from irc.pipeline.foreign import apply_foreign
from irc.pipeline.levels import levels_after, require_level
from irc.pipeline.options import VerifyEach
from irc.plugin import package_of

if TYPE_CHECKING:
    import torch


OnStage: TypeAlias = Callable[[str, ModuleOp], None]


def run_passes(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    *,
    verify_each: VerifyEach = None,
    on_stage: OnStage | None = None,
) -> None:
    """Run passes in place.

    Args:
        module: the program; changed.
        passes: what runs, in order.
        verify_each: ``ir`` verifies after each pass; ``exec`` also runs the program before and
            after on the same random inputs and compares.
        on_stage: called after each pass with its name and the module.

    Raises:
        IrcError: from a pass; ``pass-level`` for a pass on a program of another level;
            ``pass-failed`` for a plug-in's that raises, or leaves an invalid program;
            ``check-failed`` where ``exec`` finds other numbers.
        InternalError: a pass of irc broke the IR.
    """
    ctx, levels = context(), levels_of(module) if passes else ()
    for each in passes:
        require_level(each, levels)
        before = _execution(module) if verify_each == "exec" else None
        if (package := package_of(type(each))) == "irc":
            each.apply(ctx, module)
        else:
            apply_foreign(each, package, ctx, module)
        levels = levels_after(each, levels, module)
        if verify_each is not None and package == "irc":
            _verify(module, each)
        if before is not None:
            before.compare(module, each.name)
        if on_stage is not None:
            on_stage(each.name, module)


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
