"""A Llama of 8B cut down that starts on the meta device, run by each process: ``MESH``.

It prints, as JSON, what this rank's memory grew by, as the system counts it, beside what the whole
takes. What a small model of the same layers takes first (code, caches of torch and irc, groups of
processes) is not counted.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import irc

CLUSTER = "demo-gpus"
TOKENS = torch.arange(8).reshape(1, 8)


def llama(width: int, layers: int, vocabulary: int) -> nn.Module:
    """Return one of 8B's proportions: heads of 128, four to a key, 3.5 times as wide inside."""
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 7 // 2,
        num_hidden_layers=layers, num_attention_heads=width // 128,
        num_key_value_heads=width // 512, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config).train()


def started(model: nn.Module, mesh: str) -> Any:
    """Return a step whose ranks hold their parts."""
    whole = 3 * sum(p.numel() * 4 for p in model.parameters())
    step = irc.compile_step(
        model, loss="loss", optimizer="adamw", mesh=mesh, cluster=CLUSTER,
        init=model._init_weights, stored_bytes=whole * 11 // 40,
    )  # fmt: skip
    step.prepare(input_ids=TOKENS, labels=TOKENS)
    return step


def resident(what: str = "VmRSS") -> int:
    """Return the bytes of this process in memory, when it has given back what it does not need."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(what))


def main(mesh: str) -> dict[str, Any]:
    """Start the small one, then the other."""
    small = started(llama(512, 1, 512), mesh)
    small(input_ids=TOKENS, labels=TOKENS)
    before = resident()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    model = llama(1024, 4, 32064)
    step = started(model, mesh)
    held, most = resident() - before, resident("VmHWM") - before
    loss = step(input_ids=TOKENS, labels=TOKENS)
    return {
        "whole": 3 * sum(p.numel() * 4 for p in model.parameters()),
        "held": held,
        "most": most,
        "after": resident() - before,
        "most_after": resident("VmHWM") - before,
        "said": step.memory_bytes(),
        "loss": float(loss),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
