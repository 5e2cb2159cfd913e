"""One rank of ``python -m tests.distributed.vocabulary_program MESH HEAD,SCHEDULE[,DTYPE]``.

A model whose vocabulary is on all ranks trains, is saved, and another one goes on from what was
saved in a schedule without; both are held against eager training on one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch

import irc
from tests.programs.worded import MICRO_BATCHES, OPTIMIZER, eager, head_and_batch

STEPS = 3


def main(mesh: str, *cases: str) -> None:
    """Print how far the numbers of each case are from eager's."""
    errors: dict[str, dict[str, float]] = {}
    for words in cases:
        name, schedule, *dtype = words.split(",")
        kind = torch.float32 if dtype else torch.float64
        model, batch = head_and_batch(name, kind)
        losses, state = eager(model, batch, 2 * STEPS)
        options: dict[str, Any] = {
            "optimizer": OPTIMIZER, "mesh": mesh, "micro_batches": MICRO_BATCHES
        }  # fmt: skip
        step = irc.compile_step(model, schedule=schedule, **options)
        own = [step(*batch).item() for _ in range(STEPS)]
        saved = step.state_dict(everywhere=True)
        other, _ = head_and_batch(name, kind)
        plain = irc.compile_step(other, schedule="1f1b", **options)
        plain(*batch)
        plain.load_state_dict(saved)
        own += [plain(*batch).item() for _ in range(STEPS - 1)]
        # And back: slices are loaded from whole tensors.
        step.load_state_dict(plain.state_dict(everywhere=True))
        own.append(step(*batch).item())
        after: Mapping[str, torch.Tensor] = step.state_dict(everywhere=True)["model"]
        errors[words] = {
            "losses": max(abs(a - b) for a, b in zip(own, losses, strict=True)),
            "parameters": max(float((after[n] - t).abs().max()) for n, t in state.items()),
        }
    print(json.dumps(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
