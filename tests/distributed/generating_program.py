"""A user's program under torchrun: greedy generation with a static cache, against eager's tokens.

Its argument is JSON: {"mesh": .., "heads": [..], "batches": [..], "layers": ..}. Each rank prints
one JSON list with what it found for each case.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import irc
from irc.calls.compiled import dispatcher_of, statistics
from irc.plan.schema import Start

PROMPT, NEW = 5, 14
CACHE_LENGTH = PROMPT + NEW - 1
"""The last new token is never fed back. No other size of the model is this one."""


def llama(heads: int, layers: int) -> Any:
    """A Llama with four query heads on this many key-value heads."""
    config = LlamaConfig(
        vocab_size=131, hidden_size=64, intermediate_size=104, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=heads, max_position_embeddings=64,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(3)
    return LlamaForCausalLM(config).eval()


def greedy(model: Any, ids: torch.Tensor) -> Any:
    """Generate, and give the cache back too."""
    return model.generate(
        ids, max_new_tokens=NEW, cache_implementation="static", do_sample=False,
        return_dict_in_generate=True,
    )  # fmt: skip


def check(mesh: str, heads: int, batch: int, layers: int) -> dict[str, Any]:
    """Generate twice, compiled and eager."""
    model = llama(heads, layers)
    fast = irc.compile(model, mesh=mesh, cluster="demo-gpus")
    first, second = torch.randint(2, 131, (2, batch, PROMPT)).unbind()
    generated = greedy(fast, first)
    once = statistics(fast).compilations
    again = greedy(fast, second)
    plans = [version.plan for version in dispatcher_of(fast).versions]  # type: ignore[union-attr]
    keys = generated.past_key_values.layers[-1].keys
    held = getattr(keys, "_local_tensor", keys)
    whole = greedy(model, first).past_key_values.layers[-1].keys
    gathered = irc.whole(keys)
    return {
        "equal": [
            torch.equal(generated.sequences, greedy(model, first).sequences),
            torch.equal(again.sequences, greedy(model, second).sequences),
        ],
        "compilations": [once, statistics(fast).compilations],
        "eager_calls": statistics(fast).eager_calls,
        "cache": [list(held.shape), list(keys.shape)],
        "cache_error": float((gathered - whole).abs().max()),
        "linked": placed(plans[0]) == placed(plans[1]),
        "split_weights": any(placed(plans[0])[0].values()),
        "moves_the_cache": any(
            set(plan.buffers[i].shape) & {CACHE_LENGTH}
            for plan in plans[1:]
            for action in plan.actions
            if isinstance(action, Start)
            for i in (*action.inputs, *action.outputs)
        ),
        "weights_once": weights_are_shared(fast),
    }


def placed(plan: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how a plan has weights, and keys and values of the cache that it makes or takes."""
    weights = {plan.buffers[i].name: plan.buffers[i].placement for i in plan.weights}
    buffers = [plan.buffers[i] for i in (*plan.inputs, *plan.outputs)]
    caches = {b.name: b.placement for b in buffers if b.name.endswith(("keys", "values"))}
    return weights, caches


def weights_are_shared(fast: nn.Module) -> bool:
    """True where both plans read each weight at one address."""
    addresses: list[dict[str, int]] = []
    for version in dispatcher_of(fast).versions:  # type: ignore[union-attr]
        executor = version._executor
        names = {i: executor.plan.buffers[i] for i in executor.plan.weights}
        addresses.append({
            names[i].name: tensor.data_ptr()
            for i, tensor in executor._weights.items()
            if i in names and names[i].role == "parameter"
        })  # fmt: skip
    return addresses[0] == addresses[1]


def main() -> None:
    """Check every case and print what was found."""
    torch.set_num_threads(1)
    options = json.loads(sys.argv[1])
    torch.manual_seed(0)
    cases = [(h, b) for h in options["heads"] for b in options["batches"]]
    reports = [check(options["mesh"], h, b, options["layers"]) for h, b in cases]
    print(json.dumps({"rank": int(os.environ["RANK"]), "cases": reports}))


if __name__ == "__main__":
    main()
