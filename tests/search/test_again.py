"""The products that are computed again at least where all of a layer is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from irc.dialects.builder import arguments, entry
from irc.frontends.torch.capture import capture
from irc.search.again import products_again
from tests.programs.models import GPT

WIDTH, TOKENS = 32, 4 * 12


def of(model: nn.Module, *args: torch.Tensor, frozen: str = "") -> dict[str, float]:
    module = capture(model, args).program.module
    names = {name for role, name, _ in arguments(entry(module)) if role == "parameter"}
    return products_again(module, {n for n in names if not frozen or frozen not in n})


@pytest.mark.parametrize(
    ("frozen", "products"),
    # Queries, keys and values, the output of attention, up; down is read by no product.
    [("", 3 + 1 + 4), ("down", 3 + 1), ("blocks", 0)],
)
def test_a_layer_is_computed_again_but_for_what_no_product_reads(
    frozen: str, products: int
) -> None:
    """Of frozen weights nothing has to be multiplied again for their gradients."""
    ids = torch.zeros((4, 12), dtype=torch.int64)
    with torch.no_grad():
        own = of(GPT(4, WIDTH), ids, ids.clone(), frozen=frozen)
    flops = 2 * TOKENS * WIDTH**2 * products
    assert own == ({"f32": flops} if products else {})


def test_without_equal_layers_nothing_is_said() -> None:
    assert of(nn.Linear(4, 4), torch.zeros(2, 4)) == {}
