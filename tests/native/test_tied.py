"""Machine code runs with the numbers that it was compiled with, and with no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import irc
from irc.errors import IrcError
from irc.plan.native import MANIFEST, PROGRAM, SIZES, digests
from irc.runtime import load
from irc.runtime.native import processor

pytestmark = pytest.mark.skipif(
    processor.system() != "linux-x86_64", reason="programs are for Linux on x86-64"
)


class Two(nn.Module):
    """Two matmuls with what is between them in the arena."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).sin()).softmax(-1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("plans") / "two"
    irc.export_plan(Two().eval(), (torch.randn(3, 8),), out=out, dynamic={"x": {0: "n"}})
    return out


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each number and text of a JSON value."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path


def changed(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return a copy with another number or text at a path."""
    data = json.loads(json.dumps(value))
    place = data
    for key in path[:-1]:
        place = place[key]
    was = place[path[-1]]
    place[path[-1]] = was + "x" if isinstance(was, str) else (not was if was is True else was + 64)
    return data


@pytest.mark.parametrize("name", [PROGRAM, SIZES])
def test_each_field_is_held_against_the_code(name: str, plan: Path, tmp_path: Path) -> None:
    """Digests are made again and the program is trusted: only the code knows what it takes."""
    copy = Path(shutil.copytree(plan, tmp_path / "copy"))
    target, manifest = copy / "native" / name, copy / "native" / MANIFEST
    whole = json.loads(target.read_bytes())
    listed = json.loads(manifest.read_bytes())
    paths = list(leaves(whole))
    assert len(paths) > 60
    for path in paths[:: max(len(paths) // 60, 1)]:
        target.write_text(json.dumps(changed(whole, path), indent=1))
        content = target.read_bytes()
        listed["files"][name] = {"bytes": len(content), "sha256": [*digests(content)]}
        manifest.write_text(json.dumps(listed))
        with pytest.raises(IrcError) as refused:
            load(copy, trust=True).run([np.zeros((5, 8), np.float32)])
        # Where this processor runs the last of the codes alone, one that asks for more leaves none.
        more = ("processor-unsupported",) if "requires" in path else ()
        assert refused.value.code in ("plan-corrupt", "plan-version", *more), path


def test_what_was_not_changed_runs(plan: Path) -> None:
    (y,) = load(plan, trust=True).run([np.zeros((5, 8), np.float32)])
    assert y.shape == (5, 4)
