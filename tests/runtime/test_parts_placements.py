"""What further plans are told of the parts that ranks hold: also that a tensor is whole."""

from __future__ import annotations

import torch

from irc.dialects.placement import Mesh, Placement
from irc.runtime.parts import Parts
from tests.search.test_samples import planned


def test_a_whole_tensor_lies_on_each_axis() -> None:
    loaded = planned(6, "data=2", '"*" = [data = B]')
    wholes = {"up.weight": (11, 7), "up.bias": (11,), "down.weight": (5, 11), "down.bias": (5,)}
    parts = Parts(Mesh.parse("data=2"), 0)
    parts.adopt(loaded.plan, {name: torch.zeros(shape) for name, shape in wholes.items()})
    whole = Placement.replicated(("data",))
    assert {parts.placements()[name] for name in wholes} == {whole}
