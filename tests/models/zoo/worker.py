"""One of the processes that run saved plans one after the other: they start once for all plans."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from irc.plan.load import load_plan
from irc.runtime.arguments import held_parts
from irc.runtime.collectives import TorchCommunicator
from irc.runtime.executors import executor_of
from irc.runtime.processes import agree, end_with_parent, joined, place_of
from irc.runtime.weights import load_weights
from tests.models.zoo.processes import INPUTS, OUTPUTS


def main(folder: Path, names: list[str]) -> None:
    """Run the plans; each rank writes what it has: gradients stay where their parameters are."""
    end_with_parent()
    rank, world = place_of(os.environ)
    torch.set_num_threads(1)
    meshes: dict[str, TorchCommunicator] = {}
    with joined(rank, world), torch.no_grad():
        for name in names:
            loaded = load_plan(folder / name / "plan")
            agree(loaded.hash)
            mesh = loaded.plan.device_mesh
            if str(mesh) not in meshes:
                meshes[str(mesh)] = TorchCommunicator.of(mesh, rank)
            run = executor_of(
                loaded, load_weights(loaded, rank), rank=rank, communicator=meshes[str(mesh)]
            )
            inputs = torch.load(folder / name / INPUTS)
            outputs = run(*held_parts(loaded.plan, inputs, rank))
            torch.save([value.clone() for value in outputs], folder / name / f"{rank}-{OUTPUTS}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
