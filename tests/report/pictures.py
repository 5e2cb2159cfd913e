"""Makes the pictures of reports that the guide shows: plans, their pages, and what Chromium draws.

Run with ``python -m tests.report.pictures [NAME ..]``; it takes about a minute.
``llama-405b`` is of a plan that is searched, which takes more: give its folder, as of ``irc plan
config.json --train adamw --cluster 2048x8xH100 --global-batch 1024 --sequence 8192 -o DIR``, in
``llama-405b=DIR``. Weights are random: a report shows none of them.
"""

# pyright: basic

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

GUIDE = Path(__file__).parents[2] / "examples" / "guide"
MOST_BYTES = 150 << 10
SIZE = (1180, 860)
GPT = """
import torch
from irc.commands.demo_gpt import GPT, GPTConfig

CONFIG = GPTConfig(layers=12, hidden=768, heads=12, block=512, vocab=50304, tied=False)
TOKENS = torch.randint(50304, (16, 512))

def call():
    return GPT(CONFIG), (TOKENS,)

def step():
    return GPT(CONFIG), (TOKENS, TOKENS)
"""
RESNET = """
import torch
from transformers import ResNetConfig, ResNetForImageClassification

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = ResNetForImageClassification(ResNetConfig()).eval()  # of 50 layers

    def forward(self, pixels):
        return self.net(pixels).logits

def call():
    return Net().eval(), (torch.randn(1, 3, 224, 224),)
"""
MODELS = {"gpt.py": GPT, "resnet.py": RESNET}
COMPILED = {
    "gpt": ("gpt.py:call", "--mesh", "data=2,tensor=4", "--cluster", "8xH100"),
    "pipeline": (
        "gpt.py:step", "--mesh", "pipe=4", "--cluster", "8xH100", "--train", "adamw",
        "--micro-batches", "8",
    ),
    "resnet-50": ("resnet.py:call",),
    "ocr": (
        "ocr.onnx", "--size", "DynamicDimension.0=1", "--size", "DynamicDimension.1=320",
        "--size", "DynamicDimension.2=480",
    ),
}  # fmt: skip
"""What `irc compile` is told, by the name of the picture."""

FILES = {"gpt": "report.png"}
"""The names of files that are not called after their picture."""


def irc(folder: Path, *words: str) -> None:
    """Run a command of this tree in a folder."""
    subprocess.run([sys.executable, "-m", "irc.cli", *words], cwd=folder, check=True)


def drawn(page: Path, picture: Path) -> None:
    """Draw the top of a page.

    Raises:
        RuntimeError: without Chromium; where the picture is larger than the tree should hold.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise RuntimeError("pictures are drawn by chromium, which is not installed")
    screenshot = page.with_suffix(".png")
    subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={screenshot}", page.as_uri(),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    if screenshot.stat().st_size > MOST_BYTES:
        raise RuntimeError(
            f"{screenshot} has {screenshot.stat().st_size} bytes, more than {MOST_BYTES}"
        )
    shutil.copy(screenshot, picture)


def main(names: list[str]) -> None:
    """Make the pictures of these names; of all that need no plan of somebody else's by default."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for file, text in MODELS.items():
            (folder / file).write_text(text)
        for each in names or COMPILED:
            name, _, plan = each.partition("=")
            if name == "ocr":
                models = importlib.util.find_spec("rapidocr").submodule_search_locations[0]
                shutil.copy(Path(models, "models", "PP-OCRv6_det_small.onnx"), folder / "ocr.onnx")
            if not plan:
                plan = name
                irc(folder, "compile", *COMPILED[name], "-o", name)
            irc(folder, "report", plan, "-o", f"{name}.html")
            drawn(folder / f"{name}.html", GUIDE / FILES.get(name, f"report-{name}.png"))


if __name__ == "__main__":
    main(sys.argv[1:])
