"""Plans of every kind for pages, and what reads a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from irc.exports import export_plan
from irc.from_files import compile_file
from tests.models.host_models import loop_model

VOID = {"meta", "link", "br", "rect", "line", "path"}


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


def write_plans(folder: Path) -> None:
    """Write a plan of each kind: on one device, on a mesh, in stages, and of a host program."""
    x = torch.ones(8, 16)
    options: dict[str, Any] = {"native": "none", "cluster": "demo-gpus"}
    export_plan(Net(), (x,), out=folder / "one", native="none")
    pins = '"*.weight" = [tensor = S(0)]'
    export_plan(Net(), (x,), out=folder / "plan", mesh="tensor=2", pins=pins, **options)
    export_plan(
        nn.Sequential(Net(), Net()), (x, x), out=folder / "steps", loss=F.mse_loss,
        optimizer="adamw", mesh="pipe=2,data=2", micro_batches=2, **options,
    )  # fmt: skip
    (folder / "loop.onnx").write_bytes(loop_model().SerializeToString())
    compile_file(str(folder / "loop.onnx"), str(folder / "host"), native="none")
