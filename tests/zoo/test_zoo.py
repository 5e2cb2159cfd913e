"""Unmodified Hugging Face models, planned by the search and run: outputs and gradients are torch's.

The table with figures is that of ``tests/benchmarks/zoo.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.models.zoo import measure, processes
from tests.models.zoo.measure import FIRM, MESHES
from tests.models.zoo.processes import ROUGH
from tests.models.zoo.table import ZOO

QUICK = ("llama", "vit")
ON_PROCESSES = ("llama", "qwen3-moe", "bert", "convnext", "t5")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    transformers = pytest.importorskip("transformers")
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def test_there_are_enough() -> None:
    assert len(ZOO) >= 40


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in ZOO]
)
def test_virtual_ranks_compute_what_torch_does(name: str) -> None:
    wanted, graphs = measure.reference(ZOO[name]), measure.graphs(ZOO[name])
    for mesh in MESHES:
        forward = measure.plan(graphs.forward, mesh)
        outputs = measure.of_role(measure.run(forward, graphs.arguments["forward"], mesh), "output")
        assert measure.error(outputs.values(), wanted.outputs) <= FIRM
        training = measure.plan(graphs.training, mesh)
        training_outputs = measure.run(training, graphs.arguments["training"], mesh)
        assert measure.training_error(training_outputs, wanted) <= FIRM
        # It must really be sharded, and no op may be without a way to be.
        assert training.split >= training.ops // 2
        assert training.whole < 0.05
        assert sum(training.fallen.values()) < 0.01


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", ON_PROCESSES)
def test_four_processes_compute_what_torch_does(name: str, tmp_path: Path) -> None:
    wanted = measure.reference(ZOO[name])
    processes.save_plans(ZOO[name], tmp_path)
    assert list(processes.run_saved(tmp_path)) == []
    for mesh in MESHES:
        assert processes.errors(ZOO[name], mesh, tmp_path, wanted).worst <= ROUGH


def test_an_error_in_one_number_shows() -> None:
    """What the other tests stand on: one element of many, off by a little, is seen."""
    right = {"a": torch.randn(7, 5).double(), "b": torch.zeros(3).double()}
    wanted = measure.Reference((), torch.tensor(2.0), right)
    training_outputs = {
        ("output", "loss"): torch.tensor(2.0),
        **{("gradient", n): right[n].clone() for n in right},
    }
    assert measure.training_error(training_outputs, wanted) == 0
    training_outputs["gradient", "a"][3, 2] += 1e-7
    assert measure.training_error(training_outputs, wanted) > FIRM
    training_outputs["gradient", "a"][3, 2] = torch.nan
    assert measure.training_error(training_outputs, wanted) == float("inf")
    del training_outputs["gradient", "a"]
    assert measure.training_error(training_outputs, wanted) == float("inf")
