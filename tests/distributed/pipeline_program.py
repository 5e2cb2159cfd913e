"""One rank of pipelines: ``python -m tests.distributed.pipeline_program MESH CASE,SCHEDULE``.

``CASE:10:7,SCHEDULE`` trains on batches of these sizes, which micro-batches do not share equally;
``CASE,SCHEDULE,untagged`` has messages without tags, as NCCL has them.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import irc
from irc.runtime import pipeline
from irc.runtime.peers import TorchPeers
from tests.programs.models import CASES, MICRO_BATCHES, OPTIMIZER, furthest, model_and_batch
from tests.programs.models import trained_eagerly as eager
from tests.programs.uneven_batches import batch_of
from tests.programs.uneven_batches import trained_eagerly as eager_on

STEPS = 3
PINS = {
    "data": "cut* = [data = S(0)]; gradient.cut* = [data = S(0)]",
    "tensor": "*.up.weight = [tensor = S(0)]",
}


def main(mesh: str, *cases: str) -> None:
    """Train each case, and print how far its numbers are from eager training on one process."""
    figures: dict[str, dict[str, float | bool]] = {}
    for words in cases:
        what, schedule, *pins = words.split(",")
        name, *sizes = what.split(":")
        model, batch = model_and_batch(name)
        # A step is given batches of these sizes, or one batch again and again.
        uneven = [batch_of(name, int(size), seed) for seed, size in enumerate(sizes)]
        pipeline.TorchPeers = partial(TorchPeers, in_order="untagged" in pins)
        step = irc.compile_step(
            model,
            optimizer=OPTIMIZER,
            mesh=mesh,
            micro_batches=MICRO_BATCHES,
            schedule=schedule,
            pins="\n".join(PINS[pin] for pin in pins if pin in PINS),
        )
        losses = [step(*each).item() for each in uneven or [batch] * STEPS]
        state = step.state_dict()["model"]
        if CASES[name].draws:
            other, _ = model_and_batch(name)
            one = irc.compile_step(other, optimizer=OPTIMIZER, micro_batches=MICRO_BATCHES)
            expected = [one(*batch).item() for _ in range(STEPS)]
            after = one.state_dict()["model"]
        else:
            expected, after = eager_on(name, uneven) if uneven else eager(name, STEPS)
        figures[words] = {
            "losses": max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
            "parameters": furthest(state, after),
            "on_meta": all(p.is_meta for p in model.parameters()),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
