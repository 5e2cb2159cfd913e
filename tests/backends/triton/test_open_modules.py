"""Modules compiled once for all sizes by the Triton backend, in Triton's interpreter."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import irc
from tests.backends.open_modules import WIDTH, edges, modules
from tests.backends.triton.interpreting import run_interpreted

pytest.importorskip("triton")


def _compiled(name: str) -> dict[str, Any]:
    """Return errors, and what was written and compiled after the first call."""
    from irc.backends.triton.segment import _launcher
    from tests.calls.test_dynamic import statistics

    module, calls = modules()[name]
    fast, errors, files = irc.compile(module, backend="triton", dynamic=True), [], []
    for call in calls:
        with torch.no_grad():
            errors.append(float((fast(*call) - module(*call)).abs().max()))
        files.append(_launcher.cache_info().misses)
    (work,) = statistics(fast).open_sizes
    return {
        "error": max(errors), "files": files[-1] - files[0], "shared": work.shared,
        "emitted": work.emitted, "reasons": work.reasons, "bound": work.bound,
    }  # fmt: skip


def _edges() -> dict[str, Any]:
    module, calls = edges()["block"]
    fast, worst = irc.compile(module, backend="triton", dynamic=True), 0.0
    for call in calls:
        with torch.no_grad():
            mine, true = fast(*call), module(*call)
        assert mine.shape == true.shape
        worst = max([worst, *(mine - true).abs().flatten().tolist()])
    return {"error": worst}


def _exported() -> dict[str, Any]:
    """Write a plan with named sizes, read it again, and run it at others."""
    module, calls = modules()["block"]
    with tempfile.TemporaryDirectory() as folder:
        plan, worst = Path(folder) / "plan", 0.0
        dynamic = {"x": {0: "batch", 1: "tokens"}}
        irc.export_plan(module, calls[0], out=plan, backend="triton", dynamic=dynamic)
        fast = irc.load(plan)
        for call in calls[:3]:
            with torch.no_grad():
                mine = fast(*call)
                mine = mine[0] if isinstance(mine, tuple) else mine
                worst = max(worst, float((mine - module(*call)).abs().max()))
        return {"error": worst, "text": (plan / "sizes.json").read_text()}


CASES = {
    "scores": partial(_compiled, "scores"),
    "block": partial(_compiled, "block"),
    "edges": _edges,
    "exported": _exported,
}


def run(name: str) -> dict[str, Any]:
    printed = run_interpreted(
        ["-W", "ignore", "-m", "tests.backends.triton.test_open_modules", name]
    )
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("name", ["scores", pytest.param("block", marks=pytest.mark.slow)])
def test_one_compilation_serves_every_size(name: str) -> None:
    figures = run(name)
    assert figures["error"] < 2e-5
    assert (figures["files"], figures["emitted"], figures["reasons"]) == (0, 0, [])
    assert figures["bound"] == len(modules()[name][1])
    assert figures["shared"] > 0


@pytest.mark.slow
def test_sizes_of_1_and_0() -> None:
    assert run("edges")["error"] < 2e-5


@pytest.mark.slow
def test_a_plan_with_named_sizes() -> None:
    figures = run("exported")
    assert figures["error"] < 2e-5
    assert '"batch"' in figures["text"] and str(WIDTH) in figures["text"]


if __name__ == "__main__":
    print(json.dumps(CASES[sys.argv[1]]()))
