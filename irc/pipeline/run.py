"""Run passes; one that fails leaves what makes it fail again."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from irc.pipeline.apply import OnStage, apply_passes
from irc.pipeline.options import VerifyEach
from irc.pipeline.reproducer import entry_of

__all__ = ["OnStage", "run_passes"]


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
    left = entry_of(module, passes, verify_each)
    apply_passes(module, passes, verify_each=verify_each, on_stage=on_stage, on_failure=left)
