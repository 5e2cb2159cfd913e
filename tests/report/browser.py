"""Pages in Chromium, where there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOOK = Path(__file__).with_name("look.js")

in_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")


def chromium(page: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Open a page; ``folder`` holds the browser's profile.

    Raises:
        CalledProcessError: where it fails.
    """
    command = ["chromium", *FLAGS, f"--user-data-dir={folder / 'profile'}", *words, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)


def looked_at(text: str, folder: Path, *, media: str = "") -> dict[str, Any]:
    """Return what look.js says of a page.

    Args:
        text: of the page; its policy is left out, since it would not let the script run.
        folder: where there is room.
        media: ``dark`` or ``print``: rules that are for it hold.
    """
    sheets = {"dark": "screen and (prefers-color-scheme: dark)", "print": "print"}
    if media:
        assert f"@media {sheets[media]}" in text
        text = text.replace(f"@media {sheets[media]}", "@media all")
    text = re.sub(r"<meta http-equiv[^>]*>", "", text)
    script = f"<script>{LOOK.read_text()}</script></body>"
    page = folder / "looked_at.html"
    page.write_text(text.replace("</body>", script), encoding="utf-8")
    done = chromium(page, folder, "--virtual-time-budget=5000", "--dump-dom")
    said = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said is not None, done.stdout[-2000:]
    return json.loads(html.unescape(said[1]))


def printed_pages(page: Path, folder: Path) -> int:
    """Return how many sheets a page takes in print."""
    target = folder / "printed.pdf"
    chromium(page, folder, f"--print-to-pdf={target}")
    return len(re.findall(rb"/Type\s*/Page\b", target.read_bytes()))
