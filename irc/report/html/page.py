"""One page for a plan: its sections in their order, with the one stylesheet, and no way out.

The page loads nothing: a Content-Security-Policy forbids everything but its own stylesheet, which
is allowed by its digest. It has no scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from irc import __version__
from irc.plan.host import is_host, load_host
from irc.plan.parts_files import is_parts, load_parts
from irc.report.evidence import Evidence
from irc.report.html.beside import beside_section
from irc.report.html.element import Element, e, text_of
from irc.report.html.host_plan import host_sections
from irc.report.html.measured import measured_section
from irc.report.html.one_plan import one_sections
from irc.report.html.parts_plan import parts_sections

GENERATOR = "irc report"


def report_page(
    folder: str | Path, *, run: str | Path | None = None, beside: str | Path | None = None
) -> str:
    """Return the page of a plan.

    Args:
        folder: of the plan.
        run: a trace that was measured of it, to be held against the prediction.
        beside: the folder of another plan, whose figures stand beside this one's.

    Raises:
        IrcError: ``plan-missing``, ``plan-version`` or ``plan-corrupt``; ``trace-unreadable`` or
            ``trace-mismatch`` of ``run``.
    """
    title = Path(folder).resolve().name
    if is_host(folder):
        sections = host_sections(load_host(folder), title)
    elif is_parts(folder):
        sections = parts_sections(load_parts(folder), title)
    else:
        sections = one_sections(Evidence.of(folder), title)
    if beside is not None:
        sections.insert(1, beside_section(folder, beside))
    if run is not None:
        sections.insert(1, measured_section(folder, run))
    return page(title, sections)


def page(title: str, sections: Sequence[Element]) -> str:
    """Return a whole page.

    Args:
        title: of the plan.
        sections: the first is the head.
    """
    head, *rest = sections
    links = [("#plan", "Plan"), *((f"#{s.get('id')}", s[0].text or "") for s in rest)]
    nav = e(
        "nav",
        e("ul", (e("li", e("a", text, href=to)) for to, text in links)),
        aria_label="Sections",
    )
    body = e(
        "body",
        e("a", "Skip to the plan", href="#plan", class_="skip"),
        e("div", nav, e("main", head, rest, _foot()), class_="page"),
    )
    html = e("html", e("head", _meta(title)), body, lang="en")
    return f"<!doctype html>\n{text_of(html)}\n"


def _meta(title: str) -> list[Element]:
    sheet = stylesheet()
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    style = e("style")
    style.text = sheet  # not as text of a user: a stylesheet is not escaped
    return [
        e("meta", charset="utf-8"),
        e("meta", http_equiv="Content-Security-Policy", content=policy),
        e("meta", name="viewport", content="width=device-width, initial-scale=1"),
        e("meta", name="color-scheme", content="light dark"),
        e("meta", name="generator", content=GENERATOR),
        e("title", f"{title}: irc report"),
        style,
    ]


@cache
def stylesheet() -> str:
    """Return the stylesheet of the page."""
    return files("irc.report.html").joinpath("page.css").read_text(encoding="utf-8")


def _foot() -> Element:
    return e(
        "footer",
        e(
            "p",
            f"Written by irc {__version__} from the plan's folder alone. Times are predictions.",
        ),
    )
