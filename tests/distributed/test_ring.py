"""Ring attention on real processes: keys and values travel through gloo while ranks compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from irc.exports import export_plan
from irc.interpret.check import check_plan
from irc.ops.infer import Attrs, Signature
from irc.ops.strategies import STRATEGIES, Strategy, ring
from irc.plan.load import load_plan
from irc.plan.schema import Start
from irc.runtime.launch import run_plan

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


class Attention(nn.Module):
    """Causal self-attention of three heads, which no axis of four divides."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return what each position makes of those before it."""
        made = [f(x).unflatten(-1, (3, 8)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(*made, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


def ring_only(attrs: Attrs, operands: list[Signature], results: list[Signature]) -> list[Strategy]:
    return ring(operands[:3], operands[3:], 1)


def test_a_ring_of_four_processes_gives_eagers_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRATEGIES, "flow.attention", ring_only)
    out = tmp_path / "plan"
    export_plan(Attention().eval(), (torch.randn(1, 256, 24),), out=out, mesh="seq=4",
                cluster="demo-gpus")  # fmt: skip
    plan = load_plan(out).plan
    permutes = [a for a in plan.actions if isinstance(a, Start) and a.op == "comm.permute"]
    # Three hops of keys and of values; on this machine's gloo they are sent and received at once.
    assert len(permutes) == 2 * 3
    assert {tuple(start.attrs["targets"]) for start in permutes} == {(1, 2, 3, 0)}
    report = run_plan(out)
    assert report.comparison is not None
    assert report.comparison.relative < 2e-6
    assert report.ok
    assert "every stage agrees with eager" in check_plan(str(out))
