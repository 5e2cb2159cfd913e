"""Prices of kernels: the arithmetic at the peak of what is multiplied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from irc.exports import export_plan
from irc.plan.load import load_plan
from irc.report.evidence import Evidence
from irc.report.timing import action_rows, split


class Projection(nn.Module):
    """A product in bfloat16, kept in float32 or not."""

    def __init__(self, *, wider: bool) -> None:
        super().__init__()
        self.w = nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16)
        self.wider = wider

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.w(x)
        return y.float() if self.wider else y


@pytest.mark.parametrize("wider", [False, True])
def test_a_product_in_bfloat16_has_tensor_cores_whatever_its_result(
    tmp_path_factory: pytest.TempPathFactory, wider: bool
) -> None:
    """2 x 4096^3 at 0.75 of 989 TF/s are 0.2 ms; at the rate of float32 they would be 2.4 ms.

    512 tiles of 128 x 256 are 4 waves on 132 multiprocessors, which have room for 528.
    """
    folder = tmp_path_factory.mktemp("plan") / "p"
    with torch.device("meta"):
        module = Projection(wider=wider)
        x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    export_plan(module, (x,), out=folder, mesh="data=2", cluster="8xH100", pins="* = [data = B]")
    plan = load_plan(folder).plan
    (row,) = [row for row in action_rows(plan) if "matmul" in row.what]
    assert row.seconds == pytest.approx(528 / 512 * 2 * 4096**3 / (0.75 * 989e12) + 7e-6, rel=0.01)
    # What the search adds up is what the plan says, but for what was fused.
    cost = Evidence.of(folder).search
    assert split(plan).total_s == pytest.approx(cost["added_up_s"], rel=0.2)
