"""The page of a plan: of every kind, well formed, escaped, and with the plan's own numbers."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import irc
from irc.cli import main
from irc.exports import compile_file, export_plan
from irc.report.table import seconds
from tests.models.host_models import loop_model

VOID = {"meta", "link", "br", "rect", "line", "path"}
SECTIONS = {
    "plan": ["plan", "placements", "timeline", "memory", "kernels", "collectives"],
    "steps": [
        "plan",
        "stages",
        "timeline",
        "placements",
        "memory",
        "over-time",
        "channels",
        "kernels",
        "collectives",
    ],
    "host": ["plan", "regions", "host", "kernels"],
}


class Page(HTMLParser):
    """Reads a page: the ids of its parts, its elements that load something, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag not in VOID or tag in ("rect", "line", "path"):
            self.open.append(tag)
        if tag in ("section", "header"):
            self.ids.append(str(known.get("id")))
        if tag in ("script", "img", "iframe", "link", "object") or "src" in known:
            self.loads.append(tag)
        assert not any(name.startswith("on") or name == "style" for name in known)
        self.links += [known["href"] or ""] if "href" in known else []

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID or tag in ("rect", "line", "path"):
            assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text += data


class Net(nn.Module):
    """Two layers, one of which has a name that looks like markup."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("<b>up & on</b>", nn.Linear(16, 64))
        self.down = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.get_submodule("<b>up & on</b>")(x)))


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a plan of each kind."""
    folder, x = tmp_path_factory.mktemp("plans"), torch.ones(8, 16)
    options: dict[str, Any] = {"native": "none", "cluster": "demo-gpus"}
    pins = '"*.weight" = [tensor = S(0)]'
    export_plan(Net(), (x,), out=folder / "plan", mesh="tensor=2", pins=pins, **options)
    export_plan(
        nn.Sequential(Net(), Net()), (x, x), out=folder / "steps", loss=F.mse_loss,
        optimizer="adamw", mesh="pipe=2,data=2", micro_batches=2, **options,
    )  # fmt: skip
    (folder / "loop.onnx").write_bytes(loop_model().SerializeToString())
    compile_file(str(folder / "loop.onnx"), str(folder / "host"), native="none")
    return folder


def written(plans: Path, kind: str, *words: str) -> str:
    page = plans / f"{kind}.html"
    assert main(["report", str(plans / kind), "-o", str(page), *words]) == 0
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", [*SECTIONS])
def test_every_kind_of_plan_has_a_page(plans: Path, kind: str) -> None:
    text = written(plans, kind)
    page = Page(text)
    assert page.ids == SECTIONS[kind]
    assert not page.loads
    assert set(page.links) == {f"#{name}" for name in page.ids}
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text
    assert len(text) < 300_000
    assert "<b>" not in text and "nan" not in page.text


def test_functions_of_a_large_step_are_drawn_whole(
    plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = written(plans, "steps")
    monkeypatch.setattr("irc.report.html.parts_plan.MOST_OPENED", 10)
    monkeypatch.delattr("irc.report.html.parts_plan.step_trace")
    whole = written(plans, "steps")
    said = "drawn whole, without the kernels in them"
    assert said in whole and said not in opened
    for rank in ("rank 0", "rank 2"):
        assert f">{rank}</text>" in whole and f">{rank}</text>" in opened
    assert "<title>0F " in whole and "<title>1B " in whole
    assert Page(whole).ids == SECTIONS["steps"]


def test_names_of_the_model_stay_names(plans: Path) -> None:
    assert "<b>up & on</b>" in Page(written(plans, "plan")).text


def test_numbers_are_those_of_explain(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("plan", "steps"):
        page = Page(written(plans, kind))
        capsys.readouterr()
        assert main(["explain", "plan", str(plans / kind), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        total = facts["time"]["total_s"] if kind == "plan" else facts["predicted_s"]
        assert seconds(total) in page.text
        assert facts["hash"][:16] in page.text


def test_another_plan_and_a_measured_run_stand_beside(
    plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(plans / "predicted.json")
    assert main(["simulate", str(plans / "steps"), "--trace", trace]) == 0
    page = Page(written(plans, "steps", "--beside", str(plans / "plan"), "--run", trace))
    assert page.ids[:3] == ["plan", "measured", "beside"]
    assert "the prediction is 100.0 % of what was measured" in page.text
    assert main(["report", str(plans / "plan"), "--run", trace, "--force"]) == 2
    assert "trace-mismatch" in capsys.readouterr().err


def test_wrong_places(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = plans / "other.html"
    other.write_text("mine")
    for words, code in (
        ([str(plans / "none")], "plan-missing"),
        ([str(plans / "plan"), "-o", str(plans)], "output-write"),
        ([str(plans / "plan"), "-o", str(plans / "none" / "x.html")], "file-missing"),
        ([str(plans / "plan"), "-o", str(other)], "output-exists"),
        ([str(plans / "plan"), "--beside", str(plans / "none")], "plan-missing"),
        ([str(plans / "plan"), "--run", str(plans / "none")], ""),
        ([str(plans / "host"), "--run", str(plans / "none")], "option-value"),
    ):
        assert main(["report", *words]) == 2
        assert f"error[{code}" in capsys.readouterr().err
    assert other.read_text() == "mine"
    assert main(["report", str(plans / "plan"), "-o", str(other), "--force"]) == 0


def test_python_has_it(plans: Path) -> None:
    path = irc.write_report(plans / "plan", plans / "by_python.html")
    assert path.read_text(encoding="utf-8") == written(plans, "plan")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_it_without_complaint(plans: Path, width: int, tmp_path: Path) -> None:
    written(plans, "steps")
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--enable-logging=stderr", f"--user-data-dir={tmp_path}",
            f"--window-size={width},1200", f"--screenshot={tmp_path / 'page.png'}",
            (plans / "steps.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert (tmp_path / "page.png").stat().st_size > 10_000


HARNESS = """<p id=said></p>
<iframe id=page src="opened.html" style="width:{width}px;border:0"></iframe>
<script>onload = () => {{
  const root = page.contentDocument.documentElement;
  said.textContent = `${{root.scrollWidth}} in ${{root.clientWidth}}`;
}}</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_no_page_is_wider_than_a_telephone(plans: Path, tmp_path: Path) -> None:
    text = written(plans, "steps").replace("<details>", "<details open>")
    # As the schedule of many micro-batches has it.
    text = text.replace('<pre tabindex="0"><code>', f'<pre tabindex="0"><code>{"0F0 " * 99}')
    # Only so that the page around it may ask for its width.
    (tmp_path / "opened.html").write_text(re.sub(r"<meta http-equiv[^>]*>", "", text))
    (tmp_path / "harness.html").write_text(HARNESS.format(width=400))
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--allow-file-access-from-files", "--virtual-time-budget=3000",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
            (tmp_path / "harness.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    wide = re.search(r"(\d+) in (\d+)</p>", done.stdout)
    assert wide is not None and int(wide[2]) > 300
    assert wide[1] == wide[2]
