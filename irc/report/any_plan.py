"""A plan of any kind: its folder read, explained, and as text that a notebook draws."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from irc.plan.any_plan import read_plan
from irc.plan.host import HostPlan
from irc.plan.parts import PartsPlan


class PlanText(str):
    """What is said of a plan in a folder: text, and in a notebook a picture of the plan."""

    folder: Path

    def __new__(cls, text: str, folder: str | Path = "") -> Self:
        """Return the text.

        Args:
            text: what is said.
            folder: of the plan.
        """
        plan_text = super().__new__(cls, text)
        plan_text.folder = Path(folder).absolute()
        return plan_text

    def _repr_html_(self) -> str:
        """Return the plan as a notebook shows it."""
        from irc.report.html.notebook import in_notebook, plan_html

        return in_notebook(lambda: plan_html(read_plan(self.folder)), self)


def explain_folder(folder: str | Path, *, as_json: bool = False) -> PlanText:
    """Say of a plan of any kind what ``irc explain plan`` says.

    Args:
        folder: of the plan.
        as_json: as ``irc explain plan --json`` says it.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``.
    """
    match read_plan(folder):
        case HostPlan() as plan:
            from irc.report.host import explain_host  # torch, which the others do without

            text = explain_host(plan, str(folder), as_json=as_json)
        case PartsPlan() as plan:
            from irc.report.parts import explain_parts

            text = explain_parts(plan, as_json=as_json)
        case _:
            from irc.report.explain import explain_plan

            text = explain_plan(folder, as_json=as_json)
    return PlanText(text, folder)
