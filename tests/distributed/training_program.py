"""A training script as users write it, run by each process: ``MESH FILE CASE [CASE ..]``.

It prints, as JSON for each case, how far losses, parameters and states are from eager PyTorch's
after some steps, and what this rank holds. FILE is where states are saved.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.runtime.torch_optimizer import torch_optimizer
from irc.training.recipe import recipe_of
from tests.models.hugging_face import llama
from tests.training.models import TARGETS, TOKENS, small_gpt

CLUSTER = "demo-gpus"
ADAMW = {"kind": "adamw", "lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1, "no_decay": "*bias"}
"""A larger eps than torch's, so that gradients that are zero but for rounding stay small moves."""


def net() -> nn.Module:
    """Two layers, to be trained on labels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 12))


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches of samples and labels, the same on every rank."""
    draw = torch.Generator().manual_seed(7)
    return [
        (torch.randn(8, 24, generator=draw), torch.randint(0, 12, (8,), generator=draw))
        for _ in range(steps)
    ]


def compare(
    mine: nn.Module,
    theirs: nn.Module,
    step: Any,
    loss: Callable[..., Tensor],
    inputs: list[tuple[Any, ...]],
    optimizer: Any = ADAMW,
) -> dict[str, Any]:
    """Train both, and return the largest errors."""
    recipe = recipe_of(optimizer)
    moved = {n: p for n, p in theirs.named_parameters() if p.requires_grad}
    eager = torch_optimizer(recipe, moved)
    report: dict[str, Any] = {"losses": 0.0}
    for batch in inputs:
        value = step(*batch)
        eager.zero_grad()
        want = loss(theirs, *batch)
        want.backward()
        if clip := recipe.numbers.get("clip_norm"):
            nn.utils.clip_grad_norm_(moved.values(), clip)
        eager.step()
        report["losses"] = max(report["losses"], abs(float(value) - float(want.detach())))
    state = step.state_dict()
    wanted = theirs.state_dict()
    assert list(state["model"]) == list(wanted)
    report["parameters"] = max(far(state["model"][n], wanted[n]) for n in wanted)
    own = {n: eager.state[p] for n, p in moved.items()}
    assert set(state["optimizer"]["state"]) == {n for n, s in own.items() if s}
    report["states"] = max(
        (far(value, own[n][key]) for n, s in state["optimizer"]["state"].items()
         for key, value in s.items()), default=0.0,
    )  # fmt: skip
    report["bytes"] = step.memory_bytes()
    report["whole"] = sum(p.numel() * p.element_size() for p in theirs.parameters())
    report["on_meta"] = all(p.is_meta for p in mine.parameters())
    return report


def far(a: Tensor, b: Tensor) -> float:
    """Return the largest error, relative to the largest magnitude."""
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-6))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of a classifier."""
    return F.cross_entropy(model(x), y)


def mlp(mesh: str) -> dict[str, Any]:
    """A module and a loss function; a last batch of another size."""
    mine, theirs = net(), net()
    step = irc.compile_step(
        mine, loss=nn.CrossEntropyLoss(), optimizer=ADAMW, mesh=mesh, cluster=CLUSTER
    )
    inputs: list[tuple[Any, ...]] = [*batches(3)]
    inputs.append(tuple(t[:4] for t in inputs[0]))
    return compare(mine, theirs, step, cross_entropy, inputs)


def gpt(mesh: str) -> dict[str, Any]:
    """A GPT that gives its loss, with tied weights; clipped gradients."""
    mine, theirs = small_gpt(), small_gpt()
    options = {**ADAMW, "clip_norm": 0.5}
    step = irc.compile_step(mine, optimizer=options, mesh=mesh, cluster=CLUSTER)
    return compare(mine, theirs, step, lambda m, *b: m(*b), [(TOKENS, TARGETS)] * 3, options)


def hugging_face(mesh: str) -> dict[str, Any]:
    """A Llama of transformers, called by keyword; it gives more than its loss."""
    mine, theirs = llama(2).train(), llama(2).train()
    tokens = torch.randint(0, 131, (4, 16), generator=torch.Generator().manual_seed(5))
    step = irc.compile_step(mine, loss="loss", optimizer=ADAMW, mesh=mesh, cluster=CLUSTER)
    named = {"input_ids": tokens, "labels": tokens}
    called = partial(step, **named)
    called.state_dict, called.memory_bytes = step.state_dict, step.memory_bytes  # type: ignore[attr-defined]
    return compare(mine, theirs, called, lambda m: m(**named).loss, [()] * 3)


def frozen(mesh: str) -> dict[str, Any]:
    """Only norms and the second layer's matrices move."""
    mine, theirs = small_gpt(tied=False), small_gpt(tied=False)
    for module in (mine, theirs):
        for name, parameter in module.named_parameters():
            parameter.requires_grad_("norm" in name or name.startswith("layers.1."))
    step = irc.compile_step(mine, optimizer=ADAMW, mesh=mesh, cluster=CLUSTER)
    return compare(mine, theirs, step, lambda m, *b: m(*b), [(TOKENS, TARGETS)] * 3)


def short_of_memory(mesh: str) -> dict[str, Any]:
    """What is stored has to be split over all ranks: ZeRO 3."""
    mine, theirs = net(), net()
    whole = 3 * sum(p.numel() * 4 for p in mine.parameters())
    step = irc.compile_step(
        mine,
        loss=F.cross_entropy,
        optimizer=ADAMW,
        mesh=mesh,
        cluster=CLUSTER,
        stored_bytes=int(whole / 4 * 1.05) + 8,
    )
    return compare(mine, theirs, step, cross_entropy, [*batches(3)])


def split_states(mesh: str) -> dict[str, Any]:
    """Parameters whole, states split: ZeRO 1."""
    mine, theirs = net(), net()
    pins = "* = [data = B]; optimizer.exp* = [data = S(0)]"
    step = irc.compile_step(
        mine, loss=F.cross_entropy, optimizer=ADAMW, mesh=mesh, cluster=CLUSTER, pins=pins
    )
    return compare(mine, theirs, step, cross_entropy, [*batches(3)])


class Dropping(nn.Module):
    """Dropout between layers, and inside attention."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.up, self.down = nn.Linear(24, 64), nn.Linear(64, 12)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        h = self.drop(F.relu(self.up(x)))
        h = F.scaled_dot_product_attention(*[h.view(1, 4, 8, 16)] * 3, dropout_p=0.2)
        return self.drop(self.down(h.reshape(8, 64)))


def dropout(mesh: str) -> dict[str, Any]:
    """The same numbers as on one device, which are others in each step."""
    parameters = []
    losses: list[list[float]] = []
    for where in (mesh, ""):
        module = Dropping().train()
        step = irc.compile_step(
            module, loss=F.cross_entropy, optimizer=ADAMW, mesh=where, cluster=CLUSTER, seed=11
        )
        x, y = batches(1)[0]
        losses.append([float(step(x, y, lr=0.0)) for _ in range(2)])
        losses[-1] += [float(step(*batch)) for batch in batches(2)]
        parameters.append(step.state_dict()["model"])
    assert losses[0][0] != losses[0][1]
    return {
        "losses": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "parameters": max(far(parameters[0][n], parameters[1][n]) for n in parameters[1]),
        "states": 0.0,
    }


def micro_batches(mesh: str) -> dict[str, Any]:
    """Four micro-batches of two samples: the mean of their losses is that of the batch."""
    mine, theirs = net(), net()
    step = irc.compile_step(
        mine, loss=F.cross_entropy, optimizer=ADAMW, mesh=mesh, cluster=CLUSTER, micro_batches=4
    )
    return compare(mine, theirs, step, cross_entropy, [*batches(3)])


def half(mesh: str) -> dict[str, Any]:
    """Parameters in bfloat16 with masters, split over the ranks: the numbers of one device."""
    options: dict[str, Any] = {
        "loss": F.cross_entropy,
        "optimizer": ADAMW,
        "precision": irc.Precision(parameters="bfloat16", masters="float32"),
    }
    mine, alone = net(), net()
    pins = '"*.weight" = [data = S(0), tensor = B]'
    step = irc.compile_step(mine, **options, mesh=mesh, cluster=CLUSTER, pins=pins)
    other = irc.compile_step(alone, **options)
    losses = max(abs(float(step(*batch)) - float(other(*batch))) for batch in batches(3))
    held, wanted = step.state_dict(), other.state_dict()
    states, wanted_states = (s["optimizer"]["state"]["0.weight"] for s in (held, wanted))
    pairs = [(held["model"][name], value) for name, value in wanted["model"].items()]
    sums = [w["model"]["0.weight"].float() + s["remainder"] for w, s in
            ((held, states), (wanted, wanted_states))]  # fmt: skip
    step.load_state_dict(held)
    again = step.state_dict()["optimizer"]["state"]["0.weight"]["remainder"]
    return {
        "losses": losses,
        "parameters": max(far(a, b) for a, b in pairs),
        "states": far(*sums),
        "split": step.memory_bytes()["states"] < 0.6 * other.memory_bytes()["states"],
        "kept": bool(torch.equal(again, states["remainder"])),
        "dtype": str(held["model"]["0.weight"].dtype),
    }


def scaled(mesh: str) -> dict[str, Any]:
    """Steps in float16, each rank with its own samples: the scales of one device, and its skips.

    At first all gradients overflow; later a sample that one rank alone has is infinite. Gradients
    of logits are the largest: those of weights are rounded where ranks add them up, on one device
    not before they are float32.
    """

    def small() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(24, 64, bias=False), nn.GELU(), nn.Linear(64, 12, bias=False)
        )

    options: dict[str, Any] = {
        "loss": F.cross_entropy,
        "optimizer": ADAMW,
        "precision": irc.Precision(compute="float16", scaler={"init_scale": 2.0**22}),
    }
    mine, alone = small(), small()
    step = irc.compile_step(mine, **options, mesh=mesh, cluster=CLUSTER, batch="local")
    other = irc.compile_step(alone, **options)
    assert step.scaler is not None
    assert other.scaler is not None
    all_batches = [(x * 0.1, y) for x, y in batches(10)]
    all_batches[8][0][7, 3] = torch.inf
    own = step.feeding()
    scales: list[list[float]] = [[], []]
    losses = 0.0
    for x, y in all_batches:
        size = len(x) // own.count
        part = slice(own.part * size, (own.part + 1) * size)
        mine_loss, alone_loss = float(step(x[part], y[part])), float(other(x, y))
        if x.isfinite().all():
            losses = max(losses, abs(mine_loss - alone_loss))
        scales[0].append(step.scaler.get_scale())
        scales[1].append(other.scaler.get_scale())
    held, wanted = step.state_dict(), other.state_dict()
    pairs = [(held["model"][name], value) for name, value in wanted["model"].items()]
    return {
        "losses": losses,
        "parameters": max(far(a, b) for a, b in pairs),
        "scales": scales,
        "steps": [float(s["optimizer"]["state"]["0.weight"]["step"]) for s in (held, wanted)],
    }


def peft(mesh: str) -> dict[str, Any]:
    """A Llama with LoRA of PEFT: adapters alone have gradients and states; rank 0 saves them."""
    import os

    from peft import LoraConfig, get_peft_model

    def adapted() -> nn.Module:
        model = llama(2).train()
        torch.manual_seed(1)
        chosen = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        return get_peft_model(model, chosen)

    mine, theirs = adapted(), adapted()
    tokens = torch.randint(0, 131, (4, 16), generator=torch.Generator().manual_seed(5))
    named = {"input_ids": tokens, "labels": tokens}
    step = irc.compile_step(mine, loss="loss", optimizer=ADAMW, mesh=mesh, cluster=CLUSTER)
    called = partial(step, **named)
    called.state_dict, called.memory_bytes = step.state_dict, step.memory_bytes  # type: ignore[attr-defined]
    report = compare(mine, theirs, called, lambda m: m(**named).loss, [()] * 3)
    report["states bytes"] = step.memory_bytes()["states"]
    step.materialize()
    if os.environ["RANK"] == "0":
        mine.save_pretrained(Path(sys.argv[2]).with_name("adapter"))
    report["logits"] = float(theirs.eval()(input_ids=tokens).logits.double().square().sum())
    return report


def saving(mesh: str) -> dict[str, Any]:
    """Two of four steps; rank 0 saves the state."""
    step = irc.compile_step(
        net(), loss=F.cross_entropy, optimizer=ADAMW, mesh=mesh, cluster=CLUSTER
    )
    for batch in batches(4)[:2]:
        step(*batch)
    state = step.state_dict(everywhere=False)
    if state:
        torch.save(state, sys.argv[2])
    return {"given": bool(state)}


def loading(mesh: str) -> dict[str, Any]:
    """The other two, in eager PyTorch from the start."""
    mine, theirs = net(), net()
    step = irc.compile_step(mine, loss=F.cross_entropy, optimizer=ADAMW, mesh=mesh, cluster=CLUSTER)
    step.load_state_dict(torch.load(Path(sys.argv[2]), weights_only=True))
    eager = torch_optimizer(recipe_of(ADAMW), dict(theirs.named_parameters()))
    for batch in batches(4):
        eager.zero_grad()
        cross_entropy(theirs, *batch).backward()
        eager.step()
    for batch in batches(4)[2:]:
        step(*batch)
    # Once more into the parts that ranks hold now, which must be those of a step that went on.
    step.load_state_dict(step.state_dict())
    state = step.state_dict()
    own = {n: eager.state[p] for n, p in theirs.named_parameters()}
    states = [
        far(v, own[n][k]) for n, s in state["optimizer"]["state"].items() for k, v in s.items()
    ]
    wanted = theirs.state_dict()
    return {
        "losses": 0.0,
        "parameters": max(far(state["model"][n], wanted[n]) for n in wanted),
        "states": max(states),
    }


def another_batch(mesh: str) -> dict[str, Any]:
    """Each rank gives its own samples: refused."""
    import os

    step = irc.compile_step(net(), loss=F.cross_entropy, mesh=mesh, cluster=CLUSTER)
    torch.manual_seed(int(os.environ["RANK"]))
    try:
        step(torch.randn(8, 24), torch.zeros(8, dtype=torch.long))
    except irc.errors.IrcError as error:
        return {"refused": error.code}
    return {}


CASES: dict[str, Callable[[str], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        *(mlp, gpt, hugging_face, frozen, short_of_memory, split_states, dropout),
        *(micro_batches, saving, loading, another_batch, half, peft, scaled),
    )
}

if __name__ == "__main__":
    print(json.dumps({name: CASES[name](sys.argv[1]) for name in sys.argv[3:]}))
