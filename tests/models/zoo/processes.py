"""Models of the zoo on four gloo processes: compiled in float32, started with torchrun."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from irc.dialects.builder import entry, results
from irc.dialects.placement import Mesh, Split
from irc.frontends.torch.capture import capture
from irc.pipeline import Options, make_plan
from irc.plan.save import save_plan
from irc.program import Program
from irc.runtime.launch import torchrun_command, worker_environment
from irc.sharding.shards import combine
from irc.train import training_program
from tests.models.zoo.measure import (
    CLUSTER,
    MESHES,
    Reference,
    error,
    of_role,
    training_error,
)
from tests.models.zoo.model import Model

RANKS = 4
ROUGH = 1e-4
"""Relative error that float32 leaves."""
LEAST_PART = 1e-3
"""Gradients that cancel to zero are rounded to about 1e-7 of the largest in float32."""

ROOT = Path(__file__).resolve().parents[3]
NAMES, INPUTS, OUTPUTS = "names.pt", "inputs.pt", "outputs.pt"


@dataclass(frozen=True)
class Errors:
    """Of one model on one mesh, from torch in float64."""

    forward: float
    training: float

    @property
    def worst(self) -> float:
        """The larger."""
        return max(self.forward, self.training)

    def __str__(self) -> str:
        return f"forward {self.forward:.1e} gradient {self.training:.1e}"


def save_plans(model: Model, folder: Path, meshes: Sequence[str] = MESHES) -> None:
    """Write a model's plans, forward and training step, for each mesh."""
    module = model.build()
    plain = capture(module, (), model.inputs)
    lossy = capture(module, (), model.with_loss)
    arguments = plain.flatten((), model.inputs), lossy.flatten((), model.with_loss)
    training = training_program(lossy.program, trainable=module, optimizer=None, loss="loss")
    for number, mesh in enumerate(meshes):
        for kind, program, inputs in zip(
            ("forward", "training"), (plain.program, training), arguments, strict=True
        ):
            place = folder / f"{model.name}-{number}-{kind}"
            _save(program, inputs, mesh, place)


def _save(program: Program, inputs: Sequence[Tensor], mesh: str, place: Path) -> None:
    copy = Program(program.module.clone(), program.tensors, program.source)
    options = Options(mesh=Mesh.parse(mesh), cluster=CLUSTER)
    plan = make_plan(copy, options, keep_ir=False)
    save_plan(place / "plan", plan, tensors=program.tensors)
    func = entry(copy.module)
    assert func.res_attrs is not None
    placed = [attrs.data["sbp"].data for attrs in func.res_attrs]  # type: ignore[attr-defined]
    torch.save(list(zip(results(func), placed, strict=True)), place / NAMES)
    torch.save(list(inputs), place / INPUTS)


def run_saved(folder: Path) -> Iterator[tuple[str, str]]:
    """Run every plan in a folder on four processes; yield the names of those that fail, and why."""
    while todo := [path.name for path in sorted(folder.iterdir()) if not _is_done(path)]:
        command = torchrun_command(RANKS, folder, "tests.models.zoo.worker", [str(folder), *todo])
        environment = {**worker_environment(folder, RANKS), "PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        (folder / "store").unlink(missing_ok=True)
        left = [name for name in todo if not _is_done(folder / name)]
        if not left:
            return
        # The first without outputs ended the run; the others get another.
        (folder / left[0] / "failed").touch()
        yield left[0], ended.stderr[-2000:]


def _is_done(path: Path) -> bool:
    if not (path / INPUTS).exists():
        return True
    outputs = [path / f"{rank}-{OUTPUTS}" for rank in range(RANKS)]
    return all(part.exists() for part in outputs) or (path / "failed").exists()


def errors(model: Model, mesh: str, folder: Path, wanted: Reference) -> Errors:
    """Hold what the processes computed against torch."""
    number = MESHES.index(mesh)
    forward, training = (
        _whole_results(folder / f"{model.name}-{number}-{kind}", Mesh.parse(mesh))
        for kind in ("forward", "training")
    )
    outputs = of_role(forward, "output").values()
    return Errors(error(outputs, wanted.outputs), training_error(training, wanted, LEAST_PART))


def _whole_results(place: Path, mesh: Mesh) -> dict[tuple[str, str], Tensor]:
    """Return whole results by role and name, put together from what the ranks wrote."""
    names = torch.load(place / NAMES, weights_only=False)
    ranks = [torch.load(place / f"{rank}-{OUTPUTS}") for rank in range(RANKS)]
    outputs: dict[tuple[str, str], Tensor] = {}
    for (key, placed), *parts in zip(names, *ranks, strict=True):
        shape = list(parts[0].shape)
        for axis, part in placed.axes:
            if isinstance(part, Split):
                shape[part.dim] *= mesh.size(axis)
        outputs[key] = combine(parts, placed, mesh, shape)
    return outputs
