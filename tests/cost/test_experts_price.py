"""What a mixture is predicted to take is what the pass that cuts it goes by."""

from __future__ import annotations

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp

from irc.cluster.load import find_cluster
from irc.cost.model import ClusterCost
from irc.dialects.flow import ExternOp, id_of
from irc.frontends.torch.capture import capture
from irc.ops.experts import EXPERTS
from irc.pipeline.make import lower, planned
from irc.pipeline.options import Options
from irc.plan.schema import Call
from irc.sharding.mesh import parse_mesh
from irc.simulate.plan import steps
from tests.models.mixture import Mixture, travelling

CLUSTER = "8xH100"


@pytest.mark.parametrize("inner", [2048, 7168])
def test_kernels_of_experts_take_what_the_pass_says(inner: int) -> None:
    """Of eight ranks' rows an eighth comes, in a plan's kernels as in the layer before."""
    with torch.device("meta"):
        model = Mixture(1, 2048, inner, 8).to(torch.bfloat16)
        x = torch.empty(65536, 2048, dtype=torch.bfloat16)
    pins = travelling(model, x, optimizer=None)
    passes = ("no-chunk-experts",)
    mesh = parse_mesh("expert=8")
    options = Options(mesh=mesh, cluster=CLUSTER, pins=pins, passes=passes, brief=True)
    program = capture(model, (x,)).program
    cost = ClusterCost(find_cluster(CLUSTER), options.mesh, alone=True)
    said: dict[str, float] = {}

    def see(name: str, module: ModuleOp) -> None:
        if name == "lower-boxing":
            said.update(
                (id_of(op), cost.local_seconds(op))
                for op in module.walk()
                if isinstance(op, ExternOp) and op.target == EXPERTS
            )

    lower(program, options, see)
    plan, _ = planned(program.module, options, {})
    kernels = [
        step.seconds or 0.0
        for _, step in steps(plan)
        if isinstance(step, Call) and (step.id in said or step.id.startswith("x0_"))
    ]
    (seconds,) = said.values()
    assert sum(kernels) == pytest.approx(seconds, rel=0.03)
