"""How much of its communication a training step waits for."""

from __future__ import annotations

import pytest
import torch

from irc.frontends.torch.capture import capture
from irc.pipeline.make import lower, planned
from irc.pipeline.options import Options
from irc.report.timing import split
from irc.sharding.mesh import parse_mesh
from irc.train import add_training
from tests.models.gpt import GPT, GPTConfig


def exposed(layout: str, passes: tuple[str, ...] = ()) -> float:
    """Return the part of a GPT's communication on eight A100 that compute waits for."""
    with torch.device("meta"):
        model = GPT(GPTConfig(layers=8, hidden=1024, heads=16, vocab=4096, block=512))
        tokens = torch.zeros(32, 512, dtype=torch.int64)
    program = capture(model, (tokens, tokens)).program
    add_training(program, optimizer="adamw")
    options = Options(mesh=parse_mesh("data=8"), cluster="8xA100", layout=layout, passes=passes)
    lower(program, options)
    plan, _ = planned(program.module, options, {}, known={})
    times = split(plan)
    return times.exposed_s / times.communication_s


@pytest.mark.parametrize(
    ("layout", "most", "without"), [("ddp", 0.1, "hoist-collectives"), ("fsdp", 0.15, "order")]
)
def test_compute_hides_what_a_data_parallel_step_sends(
    layout: str, most: float, without: str
) -> None:
    assert exposed(layout) < most
    assert exposed(layout, (f"no-{without}",)) > 2 * most
