"""Ring attention on real processes: keys or queries travel through gloo while ranks compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from irc.exports import export_plan
from irc.interpret.check import check_plan
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.report.evidence import Evidence
from irc.report.overlap import explain_overlap
from irc.runtime.launch import run_plan
from irc.sharding.ring_told import rings_of
from irc.sharding.ring_ways import ZIGZAG, ZIGZAG_TOKENS

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


class Attention(nn.Module):
    """Causal self-attention of three heads, which no axis of four divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position makes of those before it."""
        projections = [f(x).unflatten(-1, (3, 8)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(*projections, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("ranks", "way", "num_permutes"),
    # Halves of q, k and v are swapped before and of the result after; then four go three hops.
    [(4, ZIGZAG, 4 + 4 * 3), pytest.param(2, ZIGZAG_TOKENS, 4 + 2 + 4, marks=pytest.mark.slow)],
)
def test_a_ring_of_processes_gives_eagers_numbers(
    tmp_path: Path, ranks: int, way: str, num_permutes: int
) -> None:
    """The search takes a ring and zigzag order by itself; queries travel if asked for."""
    passes = [] if way == ZIGZAG else ["no-plan-rings", f"plan-rings{{way={way}}}"]
    out = tmp_path / "plan"
    export_plan(Attention().eval(), (torch.randn(1, 256, 24),), out=out, mesh=f"seq={ranks}",
                cluster="demo-gpus", passes=passes)  # fmt: skip
    plan = load_plan(out).plan
    permutes = [a for a in plan.actions if isinstance(a, Start) and a.op == "comm.permute"]
    assert len(permutes) == num_permutes
    (ring,) = rings_of(Evidence.of(out).last)
    assert ring.way == way
    assert len(set(ring.work.flops)) == len(set(ring.work.sent_bytes)) == 1
    assert f"each {ring.work.flops[0]:.4g}" in explain_overlap(str(out))
    report = run_plan(out)
    assert report.comparison is not None
    assert report.comparison.relative < 2e-6
    assert report.ok
    assert "every stage agrees with eager" in str(check_plan(str(out)))
