"""Trains three steps with kernels of Triton on a mesh, in some micro-batches; how far from eager.

A rank prints the largest difference of losses and of parameters.
"""

import json
import sys

import torch
from torch import nn

import irc


def model() -> nn.Module:
    """Return the same model each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))


def main(mesh: str, micro_batches: str) -> None:
    """Train it by a step of irc and eagerly."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 16, generator=generator)
    y = torch.randint(0, 8, (8,), generator=generator)
    loss = nn.functional.cross_entropy
    recipe = {"kind": "adamw", "lr": 1e-2}
    step = irc.compile_step(
        model(),
        loss=loss,
        optimizer=recipe,
        mesh=mesh,
        backend="triton",
        micro_batches=int(micro_batches) or None,
    )
    own = [step(x, y).item() for _ in range(3)]
    eager = model()
    optimizer = torch.optim.AdamW(eager.parameters(), lr=1e-2)
    gaps = []
    for mine in own:
        optimizer.zero_grad()
        value = loss(eager(x), y)
        value.backward()
        optimizer.step()
        gaps.append(abs(mine - value.item()))
    state = step.state_dict()["model"]
    apart = max(float((state[k] - v).abs().max()) for k, v in eager.state_dict().items())
    print("@" + json.dumps([max(gaps), apart]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
