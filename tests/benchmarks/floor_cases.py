"""The programs of the floor benchmark: some 200 that take 5 us to 30 ms in eager.

What a compiler has a special kernel for is not here, but what users write: small ops where a call
costs more than its arithmetic, chains that a library is good at, writes into views, gathers and
scatters, recurrent nets, updates of parameters, and small models.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.benchmarks.floor_case import Case, module
from tests.benchmarks.floor_layers import GRAPHS, LOSSES, NORMS, RECURRENT, UPDATES
from tests.benchmarks.floor_library import BAGS, COMPLEX, FOURIER, LINEAR_ALGEBRA, SAMPLING
from tests.benchmarks.floor_models import MODELS
from tests.benchmarks.floor_ops import OPS, VIEWS

Tensors = tuple[torch.Tensor, ...]


FAMILIES: Mapping[str, Mapping[str, Case]] = {
    "embedding bags": BAGS,
    "complex": COMPLEX,
    "views": VIEWS,
    "sampling": SAMPLING,
    "linear algebra": LINEAR_ALGEBRA,
    "fourier": FOURIER,
    "norms": NORMS,
    "graphs": GRAPHS,
    "recurrent": RECURRENT,
    "losses": LOSSES,
    "updates": UPDATES,
    "ops": OPS,
    "models": {name: module(make, *inputs) for name, (make, inputs) in MODELS.items()},
}
CASES: Mapping[str, Case] = {
    name: case for each in FAMILIES.values() for name, case in each.items()
}
FAMILY = {name: family for family, cases in FAMILIES.items() for name in cases}

QUICK = (
    "bag sum 1000x64", "rope complex 1x32x8x64", "in-place rows of input", "grid sample 1x3x32",
)  # fmt: skip
