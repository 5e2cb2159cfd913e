"""A batch that the ranks of an axis do not share equally: refused where each would compute all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from irc.errors import IrcError
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, make_plan
from irc.plan.load import LoadedPlan
from irc.sharding.mesh import parse_mesh
from irc.train import training_of


class Net(nn.Module):
    """Layers of sizes that no axis divides, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(7, 11), nn.Linear(11, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss."""
        return F.cross_entropy(self.down(self.up(x).relu()), y)


def planned(samples: int, mesh: str, pins: str = "") -> LoadedPlan:
    batch = torch.zeros(samples, 7), torch.zeros(samples, dtype=torch.int64)
    program = capture(Net(), batch, {}).program
    options = Options(
        mesh=parse_mesh(mesh),
        cluster="demo-gpus",
        pins=pins,
        training=training_of(program, optimizer="sgd"),
        samples=("data",),
    )
    return make_plan(program, options, keep_ir=False)


@pytest.mark.parametrize("mesh", ["data=2", "data=2,tensor=1"])
def test_ranks_that_would_all_compute_everything(mesh: str) -> None:
    with pytest.raises(IrcError, match=r"'x' has 5 samples for 2 ranks of data") as caught:
        planned(5, mesh)
    assert caught.value.code == "mesh-axis-indivisible"
    assert '"x" = [data = B]' in str(caught.value)


@pytest.mark.parametrize(
    ("samples", "mesh", "pins"),
    [(6, "data=2", ""), (5, "data=2", '"x" = [data = B]'), (5, "tensor=2", "")],
)
def test_batches_that_are_trained_on(samples: int, mesh: str, pins: str) -> None:
    assert planned(samples, mesh, pins).plan.mesh == mesh
