"""``irc check`` of a folder of a plan of several programs."""

from __future__ import annotations

from dataclasses import replace

from irc.interpret.parts_check import CheckedStep, check_parts
from irc.plan.parts_files import load_parts
from irc.plan.training import check_recipe
from irc.runtime.code import asked
from irc.runtime.inputs import given_inputs, specs_of_parts
from irc.runtime.weights import whole_weights


def check_parts_folder(
    folder: str, *, inputs: str | None = None, trust: bool = False
) -> CheckedStep:
    """Run a step of all ranks in this process, and hold each value on its way against eager's.

    Args:
        folder: of the plan.
        inputs: an ``.npz`` file; random ones by default.
        trust: run its code as it is, whoever made it.

    Returns:
        What was compared.

    Raises:
        IrcError: ``check-failed``; what loading and reading raise.
    """
    plan = load_parts(folder, trust=trust)
    check_recipe(plan)
    parts = ({kind: asked(loaded) for kind, loaded in part.items()} for part in plan.parts)
    plan = replace(plan, parts=tuple(parts))
    batch = given_inputs(specs_of_parts(plan), inputs, 0)
    return check_parts(plan, whole_weights(plan), batch[:-1])
