"""The page of a plan in a browser: seen by everybody, reached by keys, printed whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from irc.plan.any_plan import read_plan
from irc.report.html.notebook import plan_html
from irc.report.html.page import report_page
from irc.report.html.write import write_report
from tests.report.browser import chromium, in_browser, looked_at, printed_pages

pytestmark = in_browser
WHOLE = "irc.report.html.parts_plan.MOST_OPENED"
"""Below it functions of stages are opened, above it they are drawn whole, with numbers on them."""


@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_it_without_complaint(kinds: Path, width: int, tmp_path: Path) -> None:
    page = write_report(kinds / "steps", tmp_path / "steps.html")
    picture = tmp_path / "page.png"
    done = chromium(
        page, tmp_path, "--enable-logging=stderr", f"--window-size={width},1200",
        f"--screenshot={picture}",
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 10_000


HARNESS = """<p id=said></p>
<iframe id=page src="opened.html" style="width:{width}px;border:0"></iframe>
<script>onload = () => {{
  const root = page.contentDocument.documentElement;
  said.textContent = `${{root.scrollWidth}} in ${{root.clientWidth}}`;
}}</script>"""


def test_no_page_is_wider_than_a_telephone(kinds: Path, tmp_path: Path) -> None:
    text = report_page(kinds / "steps").replace("<details>", "<details open>")
    # As the schedule of many micro-batches has it.
    text = text.replace('<pre tabindex="0"><code>', f'<pre tabindex="0"><code>{"0F0 " * 99}')
    # Only so that the page around it may ask for its width.
    (tmp_path / "opened.html").write_text(re.sub(r"<meta http-equiv[^>]*>", "", text))
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.format(width=400))
    done = chromium(
        harness, tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=3000",
        "--dump-dom",
    )  # fmt: skip
    wide = re.search(r"(\d+) in (\d+)</p>", done.stdout)
    assert wide is not None and int(wide[2]) > 300
    assert wide[1] == wide[2]


@pytest.mark.parametrize("media", ["", "dark", "print"])
@pytest.mark.parametrize("kind", ["plan", "steps", "host"])
def test_all_text_can_be_read_and_all_parts_reached(
    kinds: Path, kind: str, media: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WHOLE, 10)
    said = looked_at(report_page(kinds / kind), tmp_path, media=media)
    assert said["texts"] > 60 and not said["faint"]
    assert not said["scrolled"]  # without a way for the keyboard
    if media == "print":
        assert not said["hidden"]
    else:
        assert said["stops"] > 10 and not said["unreached"] and not said["unmarked"]
        assert said["hidden"]


def test_what_is_faint_unmarked_or_out_of_reach_is_noticed(kinds: Path, tmp_path: Path) -> None:
    text = report_page(kinds / "host").replace("--soft: #545c66", "--soft: #949ca6")
    text = text.replace(":focus-visible { outline: 2px", ":focus-visible { outline: 1px")
    text = text.replace('<a href="#host"', '<a tabindex="-1" href="#host"')
    said = looked_at(text, tmp_path)
    assert len(said["faint"]) > 10 and len(said["unmarked"]) > 10
    assert [each.split()[-1] for each in said["unreached"]] == ["program"]


@pytest.mark.parametrize("ground", ["background:#fff;color:#222", "background:#111;color:#ddd"])
def test_a_notebook_of_any_colour_shows_plans(kinds: Path, ground: str, tmp_path: Path) -> None:
    shown = plan_html(read_plan(kinds / "steps"))
    said = looked_at(f"<!doctype html><body style='{ground}'>{shown}</body>", tmp_path)
    assert said["texts"] > 40 and not said["faint"]
    assert not said["unreached"] and not said["scrolled"]


def test_print_has_what_is_closed_on_the_screen(kinds: Path, tmp_path: Path) -> None:
    page = write_report(kinds / "plan", tmp_path / "plan.html")
    pages = printed_pages(page, tmp_path)
    # Of a changed stylesheet the policy, which knows its digest, would let nothing hold.
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text(encoding="utf-8"))
    page.write_text(text.replace("details::details-content", "x"), encoding="utf-8")
    assert 1 < printed_pages(page, tmp_path) < pages
