"""Plans of models on the meta device: planned as those with values are, and not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError

TRAINING: dict[str, dict[str, Any]] = {
    "forward": {},
    "step": {"optimizer": "adamw"},
    "micro-batches": {"optimizer": "sgd", "micro_batches": 2},
}


class Net(nn.Module):
    """A block with a buffer, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 40), nn.LayerNorm(40), nn.Linear(40, 6)
        self.scale = nn.Buffer(torch.full((6,), 2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return a loss."""
        return F.cross_entropy(self.down(self.norm(F.gelu(self.up(x)))) * self.scale, y)


def batch() -> tuple[Tensor, Tensor]:
    return torch.zeros(8, 16), torch.zeros(8, dtype=torch.long)


@pytest.mark.parametrize("mesh", ["", "data=2", "data=2,tensor=2"])
@pytest.mark.parametrize("what", TRAINING)
def test_the_plan_is_that_of_the_model_with_values(tmp_path: Path, what: str, mesh: str) -> None:
    options = {**TRAINING[what], "mesh": mesh, "native": "none"}
    with torch.device("meta"):
        empty = Net()
    said = [
        irc.export_plan(model, batch(), out=tmp_path / name, **options)
        for name, model in (("meta", empty), ("real", Net()))
    ]
    assert said[0] == said[1]
    files = [
        {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*")
         if p.suffix == ".json" and "weights" not in p.name}
        for name in ("meta", "real")
    ]  # fmt: skip
    assert files[0] == files[1]


def test_it_says_that_it_has_no_values(tmp_path: Path) -> None:
    """A plan whose file is lost is a damaged one."""
    with torch.device("meta"):
        empty = Net()
    irc.export_plan(empty, batch(), out=tmp_path / "meta", native="none")
    with pytest.raises(IrcError) as caught:
        irc.load(tmp_path / "meta")
    assert caught.value.code == "weights-missing"
    irc.export_plan(Net(), batch(), out=tmp_path / "real", native="none")
    (tmp_path / "real" / "weights.safetensors").unlink()
    with pytest.raises(IrcError) as caught:
        irc.load(tmp_path / "real")
    assert caught.value.code == "plan-corrupt"
