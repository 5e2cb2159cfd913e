"""Generation: a Hugging Face Llama with a static cache, on this process and on two.

Run it with ``python examples/generation.py``; it starts itself once more under torchrun on two
processes. Each time it compares the tokens with eager's and prints how long a token takes, in CPU
seconds of the process, which other work on the machine disturbs less than it does a clock.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import irc
from irc.calls.compiled import statistics

MESH = "tensor=2"
NEW = 24


def llama() -> LlamaForCausalLM:
    """Return a Llama with random weights, eight query heads on four key-value heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def generate(model: LlamaForCausalLM, prompt: torch.Tensor) -> torch.Tensor:
    """Return the prompt and 24 tokens, greedily chosen."""
    return model.generate(
        prompt, max_new_tokens=NEW, cache_implementation="static", do_sample=False
    )


def milliseconds(model: LlamaForCausalLM, prompt: torch.Tensor) -> float:
    """Return CPU milliseconds a token, of the best of three runs."""
    times = []
    for _ in range(3):
        start = time.process_time()
        generate(model, prompt)
        times.append((time.process_time() - start) / NEW)
    return min(times) * 1e3


def main() -> None:
    """Generate on as many processes as there are, and show what came out."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    model, prompt = (
        llama(),
        torch.randint(2, 1000, (1, 9), generator=torch.Generator().manual_seed(1)),
    )
    # The heads are split by hand: on one small machine the planner would rather not.
    pins = {"*.k_proj.weight": "S(0)", "*.v_proj.weight": "S(0)"} if world > 1 else ""
    fast = irc.compile(model, mesh=MESH if world > 1 else "", pins=pins)
    tokens, expected = generate(fast, prompt), generate(model, prompt)
    eager, compiled = milliseconds(model, prompt), milliseconds(fast, prompt)
    if rank == 0:
        print(f"processes    {world}")
        print(
            f"tokens       {'equal to' if torch.equal(tokens, expected) else 'OTHER THAN'} eager's"
        )
        print(f"compilations {statistics(fast).compilations}")
        print(f"eager        {eager:.2f} ms a token")
        print(f"compiled     {compiled:.2f} ms a token on each process")
    if world == 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        subprocess.run([*launcher, str(Path(__file__).resolve())], check=True)


if __name__ == "__main__":
    main()
