"""A user's program under torchrun: what ranks hold in parts between calls, and who may see it.

Each rank prints one JSON object.
"""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import irc
import irc.calls.dispatcher
from irc.calls.compiled import dispatcher_of, statistics
from irc.calls.recompiles import RecompileWarning
from irc.errors import IrcError
from tests.distributed.generating_program import llama

MESH = "tensor=2"


class Counting(nn.Module):
    """A layer that counts its calls in a buffer, and writes into its argument."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Add to both."""
        y = self.up(x)
        self.seen.add_(y.sum(0))
        memory.add_(y)
        return y * memory


def plain_tensors() -> dict[str, Any]:
    """Buffers and arguments that are written to are whole on every rank."""
    torch.manual_seed(1)
    module, other = Counting(), Counting()
    other.load_state_dict(module.state_dict())
    fast = irc.compile(module, mesh=MESH, cluster="demo-gpus", pins="up.weight = [tensor = S(0)]")
    memory, expected, x = torch.ones(4, 8), torch.ones(4, 8), torch.randn(4, 6)
    with torch.no_grad():
        for _ in range(2):
            close = torch.allclose(fast(x, memory), other(x, expected), atol=1e-5)
    plan = dispatcher_of(fast).versions[0].plan  # type: ignore[union-attr]
    cut = {plan.buffers[i].name for i in plan.weights if plan.buffers[i].placement}
    return {
        "close": close,
        "memory": torch.allclose(memory, expected, atol=1e-5),
        "seen": torch.allclose(module.seen, other.seen, atol=1e-5),
        "split": "up.weight" in cut,
    }


def caches_of_others() -> dict[str, Any]:
    """A cache that eager has filled is split when it comes; one of odd growth ends eagerly."""
    from transformers import DynamicCache, StaticCache

    model = llama(2, 1)
    ids = torch.randint(2, 131, (1, 5), generator=torch.Generator().manual_seed(1))
    fast = irc.compile(model, mesh=MESH, cluster="demo-gpus", pins=r"*keys = [tensor = S(1)]")
    mine, theirs = (StaticCache(model.config, max_cache_len=9) for _ in range(2))
    with torch.no_grad():
        model(input_ids=ids, past_key_values=mine)
        model(input_ids=ids, past_key_values=theirs)
        outputs = fast(input_ids=ids[:, :1], past_key_values=mine)
        wanted = model(input_ids=ids[:, :1], past_key_values=theirs)
        keys = mine.layers[0].keys
        place = keys._local_tensor.data_ptr()
        fast(input_ids=ids[:, :1], past_key_values=mine)
        stays = mine.layers[0].keys is keys and keys._local_tensor.data_ptr() == place
        model(input_ids=ids[:, :1], past_key_values=theirs)
        whole = irc.whole(mine)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            irc.calls.dispatcher.MAX_VERSIONS = 2
            grows, grown = DynamicCache(config=model.config), DynamicCache(config=model.config)
            for _ in range(3):
                last = fast(input_ids=ids, past_key_values=grows).logits
                expected = model(input_ids=ids, past_key_values=grown).logits
    return {
        "close": torch.allclose(outputs.logits, wanted.logits, atol=1e-5),
        "same": outputs.past_key_values is mine,
        "split": type(keys).__name__,
        "stays": stays,
        "gathered": torch.allclose(
            whole.layers[0].keys, theirs.layers[0].keys, atol=1e-5
        ) and int(whole.layers[0].cumulative_length) == 7,
        "eager": torch.allclose(last, expected, atol=1e-5),
        "statistics": [statistics(fast).compilations, statistics(fast).eager_calls],
        "told": sum(issubclass(each.category, RecompileWarning) for each in told),
    }  # fmt: skip


def prefill(layer: nn.Module, x: Tensor, memory: dict[str, Tensor]) -> Tensor:
    """Fill the first rows of a memory."""
    y = layer(x)
    memory["rows"][: x.shape[0]] = y
    return y.sum(0)


class Prefill(nn.Module):
    """Writes many rows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """Fill the first rows of a memory."""
        return prefill(self.layer, x, memory)


class Decode(Prefill):
    """Writes one row, and reads them all."""

    def forward(self, x: Tensor, memory: dict[str, Tensor]) -> Tensor:
        """Set row 5, and attend to the memory."""
        memory["rows"][5] = self.layer(x)[0]
        return (memory["rows"] * x).sum(1)


def entries() -> dict[str, Any]:
    """Two entries on plain tensors: a memory has to be split before the first call."""
    torch.manual_seed(2)
    layer = nn.Linear(8, 8, bias=False)
    x, memory = torch.randn(5, 8), {"rows": torch.zeros(6, 8)}
    run = irc.compile_entries(
        {"prefill": (Prefill(layer), (x, memory)), "decode": (Decode(layer), (x[:1], memory))},
        mesh=MESH,
        cluster="demo-gpus",
        pins="memory.rows = [tensor = S(1)]",
        runs={"decode": 10},
    )
    try:
        run["prefill"](x, memory)
        refused = ""
    except IrcError as error:
        refused = error.render()
    held = run.hold("memory", memory)
    expected = {"rows": torch.zeros(6, 8)}
    with torch.no_grad():
        first = torch.allclose(run["prefill"](x, held), Prefill(layer)(x, expected), atol=1e-5)
        later = torch.allclose(
            run["decode"](x[:1], held), Decode(layer)(x[:1], expected), atol=1e-5
        )
    try:
        run["decode"](x[:2], held)
        other = ""
    except IrcError as error:
        other = error.render()
    return {
        "refused": refused,
        "close": [first, later],
        "memory": torch.allclose(irc.whole(held)["rows"], expected["rows"], atol=1e-5),
        "local": list(held["rows"]._local_tensor.shape),
        "other": other,
        "untouched": not memory["rows"].any().item(),
    }


def main() -> None:
    """Print what was found."""
    torch.set_num_threads(1)
    facts = {"plain": plain_tensors(), "caches": caches_of_others(), "entries": entries()}
    print(json.dumps({"rank": int(os.environ["RANK"]), **facts}))


if __name__ == "__main__":
    main()
