"""Loops of models that detach or turn gradients off, by each process: ``MESH/LAYOUT NAME``.

It prints as JSON, by model, the largest error of a loss or gradient beside an eager twin.
"""

# pyright: basic
from __future__ import annotations

import copy
import json
import sys

import torch

import irc
from tests.distributed.loop_program import CLUSTER, full
from tests.training.test_detached import MODELS, Encoded, Written


def furthest(make: type[Encoded], mesh: str, layout: str) -> float:
    """Return the largest error of three steps."""
    torch.manual_seed(0)
    theirs = make().double()
    mine = irc.compile(copy.deepcopy(theirs), mesh=mesh, layout=layout, cluster=CLUSTER)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (mine, theirs)]
    errors: list[float] = []
    for number in range(3):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number)).double()
        losses = [each(x) for each in (mine, theirs)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
        errors.append(float((losses[0] - losses[1]).detach().abs()))
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            wanted = torch.zeros_like(q) if q.grad is None else q.grad
            own = torch.zeros_like(q) if p.grad is None else full(p.grad)
            errors.append(float((own - wanted).abs().max()))
        for optimizer in optimizers:
            optimizer.step()
    return max(errors)


if __name__ == "__main__":
    mesh, _, layout = sys.argv[1].partition("/")
    errors = {each.__name__: furthest(each, mesh, layout) for each in MODELS if each is not Written}
    print(json.dumps(errors))
