"""What holds a plan is drawn by a notebook: the reports of plans do that."""

from __future__ import annotations

from importlib import import_module


def shown_plan(plan: object) -> str:
    """Return a plan of any kind as a notebook shows it: a piece of HTML; never raises."""
    # By name: what reports of plans imports this.
    return import_module("irc.report.html.notebook").shown_plan(plan)


class InNotebook:
    """A plan, which a notebook shows as its mesh, its placements, its time and its memory."""

    def _repr_html_(self) -> str:
        """Return the plan as a piece of HTML; never raises."""
        return shown_plan(self)
