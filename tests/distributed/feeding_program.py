"""Ranks that are each given their own part of the samples, run by each process: ``MESH CASE ..``.

It prints, as JSON for each case, how far losses and parameters are from those of one process that
is given the whole batches, or what ranks say.
"""

# pyright: basic
from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import irc
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.runtime.join import own_rank
from irc.runtime.pace import slow_ranks, slowness
from irc.runtime.torch_optimizer import torch_optimizer
from irc.training.recipe import recipe_of

ADAMW = {"kind": "adamw", "lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1}
IGNORED = -100


class Tagger(nn.Module):
    """Tokens in, a label for each out; tokens without a label do not count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(31, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 12)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the mean loss of labelled tokens, or logits."""
        h = self.embed(tokens)
        logits = self.head(h + self.down(F.gelu(self.up(h))))
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def data(rows: int = 22) -> tuple[Tensor, Tensor]:
    """Return tokens and labels; the first samples have far more labels than the last."""
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 31, (rows, 6), generator=draw)
    labels = torch.randint(0, 12, (rows, 6), generator=draw)
    for row in range(rows):
        labels[row, 1 + (rows - row) % 6 :] = IGNORED
    return tokens, labels


def options(mesh: str) -> dict[str, Any]:
    """Return what steps on a mesh are made with."""
    arguments: dict[str, Any] = {"mesh": mesh, "cluster": "demo-gpus", "optimizer": ADAMW}
    return arguments | ({"micro_batches": 2} if "pipe" in mesh else {})


def compared(step: Any, batches: list[tuple[Tensor, Tensor]], own: Callable[..., Any]) -> Any:
    """Train on parts of batches, and eagerly on the whole of them; return the largest errors."""
    theirs = Tagger()
    eager = torch_optimizer(recipe_of(ADAMW), dict(theirs.named_parameters()))
    losses = []
    for batch in batches:
        mine = step(*own(*batch))
        eager.zero_grad()
        loss = theirs(*batch)
        loss.backward()
        eager.step()
        losses.append(abs(float(mine) - float(loss.detach())))
    state, want = step.state_dict()["model"], theirs.state_dict()
    return {"losses": max(losses), "parameters": max(far(state[n], want[n]) for n in want)}


def far(a: Tensor, b: Tensor) -> float:
    """Return the largest error, relative to the largest magnitude."""
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-6))


def rows(mesh: str) -> int:
    """Return into how many parts the samples are divided."""
    return Mesh.parse(mesh).size("data") if "data" in mesh else 1


def local(mesh: str) -> Any:
    """Whole batches and a short last one; labels are unevenly many on the ranks."""
    step = irc.compile_step(Tagger(), **options(mesh), batch="local")
    feeding, count = step.feeding(), rows(mesh)
    tokens, labels = data()
    sizes = [8, 8, 4]
    batches = list(zip(tokens[:20].split(sizes), labels[:20].split(sizes), strict=True))

    def own(*batch: Tensor) -> list[Tensor]:
        return [x.chunk(count)[feeding.part] for x in batch]

    return compared(step, batches, own)


def named(mesh: str) -> Any:
    """One argument is divided; the other is whole on every rank, and keywords come in any order."""

    class Masked(Tagger):
        def forward(self, weights: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
            return (Tagger.forward(self, tokens) * weights).square().mean()

    step = irc.compile_step(
        Masked(), **options(mesh), batch={"tokens": "local", "weights": "global"}
    )
    alone = irc.compile_step(Masked(), optimizer=ADAMW)
    tokens, weights = data(8)[0], torch.linspace(0.5, 1.5, 12)
    part = tokens.chunk(rows(mesh))[step.feeding().part]
    errors = []
    for _ in range(3):
        mine = step(tokens=part, weights=weights)
        errors.append(abs(float(mine) - float(alone(weights, tokens))))
    return {"losses": max(errors), "parameters": 0.0}


def loader(mesh: str) -> Any:
    """Two epochs through a DataLoader and the sampler, broken off and gone on with in between."""
    tokens, labels = data()
    dataset, count = TensorDataset(tokens, labels), rows(mesh)
    step = irc.compile_step(Tagger(), **options(mesh), batch="local")
    sampler = irc.data_sampler(step, dataset, seed=9)
    assert sampler.left_out == 22 % count
    loaded = DataLoader(dataset, batch_size=8 // count, sampler=sampler)
    taken: list[tuple[Tensor, Tensor]] = []
    seen: list[list[int]] = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        order = sampler._order()
        seen.append([])
        for start in range(0, 22 - 22 % count, 8):
            numbers = order[start : min(start + 8, 22 - 22 % count)]
            taken.append((tokens[numbers], labels[numbers]))
            seen[-1] += numbers
    parts: list[tuple[Tensor, ...]] = []
    sampler.set_epoch(0)
    for number, batch in enumerate(loaded):
        parts.append(tuple(batch))
        if number == 1:
            break
    state = sampler.state_dict()
    # Nothing was trained on yet: what was read ahead is read again.
    assert (state["epoch"], state["position"]) == (0, 0)
    parts.clear()
    sampler.load_state_dict(state)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        parts += [tuple(batch) for batch in loaded]
    remaining = iter(parts)
    errors = compared(step, taken, lambda *_: next(remaining))
    assert next(remaining, None) is None
    other = irc.data_sampler(step, dataset, seed=9)
    other.load_state_dict({**state, "epoch": 1, "position": 8})
    rest = list(other)
    whole = seen[1][8:]
    assert rest == whole[step.feeding().part :: count][: len(rest)]
    assert len(rest) == len(whole) // count
    assert seen[0] != seen[1]
    return errors


def loop(mesh: str) -> Any:
    """A loop of one's own: the loss in the module, then outside of it; evaluation in between."""
    torch.manual_seed(0)
    mine, theirs = irc.compile(Tagger(), mesh=mesh, batch="local"), Tagger()
    feeding, count = mine.feeding(), rows(mesh)
    sampler = irc.data_sampler(mine, 22, shuffle=False)
    assert list(sampler) == list(range(22))[feeding.part :: count][: 22 // count]
    sides = [(m, torch.optim.AdamW(m.parameters(), lr=1e-2)) for m in (mine, theirs)]
    tokens, labels = data(8)
    wanted = torch.randn(8, 6, 12, generator=torch.Generator().manual_seed(8))
    largest = {"losses": 0.0, "evaluated": 0.0}

    def part(x: Tensor) -> Tensor:
        return x.chunk(count)[feeding.part]

    for number in range(4):
        size = (8, 8, 4, 8)[number]
        batch = [x[:size] for x in (tokens, labels, wanted)]
        own = [part(x) for x in batch]
        losses = []
        for (model, optimizer), (t, y, w) in zip(sides, (own, batch), strict=True):
            loss = model(t, labels=y) if number % 2 == 0 else (model(t) - w).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        if number % 2:  # each rank has the loss of its part
            torch.distributed.all_reduce(losses[0])
            losses[0] /= torch.distributed.get_world_size()
        largest["losses"] = max(largest["losses"], abs(float(losses[0] - losses[1])))
        with torch.no_grad():
            error = far(mine(part(tokens)), part(theirs(tokens)))
        largest["evaluated"] = max(largest["evaluated"], error)
    state = irc.whole(mine).state_dict()
    largest["parameters"] = max(far(state[n], x) for n, x in theirs.state_dict().items())
    return largest


def refusals(mesh: str) -> Any:
    """What each rank is given has to fit what the others are given."""
    rank = own_rank()

    def said(call: Callable[[], Any]) -> str:
        try:
            call()
        except IrcError as error:
            return f"{error.code}: {error.message}; {error.because[0] if error.because else ''}"
        return ""

    step = irc.compile_step(Tagger(), **options(mesh), batch="local")
    tokens, labels = data(8)
    part = step.feeding().part
    mine = [x.chunk(rows(mesh))[part] for x in (tokens, labels)]
    other = mine[0].clone()
    other[-1, -1] = (other[-1, -1] + rank) % 31
    return {
        "sizes": said(lambda: step(*(x[: len(x) - (rank == 1)] for x in mine))),
        "samples": said(lambda: step(other, mine[1])),
        "fed": said(lambda: step(*mine)),
        "later": said(lambda: step(other, mine[1])),
        "unknown": said(
            lambda: irc.compile_step(Tagger(), **options(mesh), batch={"words": "local"})(*mine)
        ),
    }


def called(mesh: str) -> Any:
    """After steps the module is called on the ranks' parts, and holds its values for a while."""
    mine, theirs = Tagger(), Tagger()
    mine.register_buffer("scale", torch.ones(3))
    step = irc.compile_step(mine, **options(mesh))
    eager = torch_optimizer(recipe_of(ADAMW), dict(theirs.named_parameters()))
    tokens, labels = data(8)
    largest: dict[str, float] = {"evaluated": far(step.evaluate(tokens), theirs(tokens).detach())}

    def trained() -> float:
        eager.zero_grad()
        loss = theirs(tokens, labels)
        loss.backward()
        eager.step()
        return abs(float(step(tokens, labels)) - float(loss.detach()))

    largest["losses"] = max(trained() for _ in range(2))
    with pytest.raises(IrcError, match=r"weights-apart.*\n.*\n.*step\.evaluate"):
        mine(tokens)
    for number in range(2):
        errors = [far(step.evaluate(x), theirs(x).detach()) for x in (tokens, tokens[:4])]
        largest["evaluated"] = max(largest["evaluated"], *errors)
        largest["losses"] = max(largest["losses"], trained())
        with torch.no_grad():
            largest["evaluated"] = max(
                largest["evaluated"], far(step.materialize()(tokens), theirs(tokens))
            )
        assert mine.training and not any(p.is_meta for p in mine.parameters())
        state, want = mine.state_dict(), theirs.state_dict()
        largest["parameters"] = max(far(state[n], want[n]) for n in want)
        if number:
            largest["losses"] = max(largest["losses"], trained())
    largest["on_meta"] = float(not all(p.is_meta for p in mine.parameters()))
    return largest


def paced(mesh: str) -> Any:
    """The last rank loads its data slowly: it is named, from how little it waits."""
    step = irc.compile_step(Tagger(), **options(mesh))
    last = Mesh.parse(mesh).num_ranks - 1
    tokens, labels = data(8)
    for _ in range(5):
        if own_rank() == last:
            time.sleep(0.1)
        step(tokens, labels)
    paces = step.paces()
    assert [pace.rank for pace in slow_ranks(paces)] == [last], paces
    assert f"rank {last} is slow: it computes" in slowness(paces)
    assert step.paces()[0].computes_s == 0.0
    return {}


CASES: dict[str, Callable[[str], Any]] = {
    function.__name__: function
    for function in (local, named, loader, loop, refusals, called, paced)
}

if __name__ == "__main__":
    print(json.dumps({name: CASES[name](sys.argv[1]) for name in sys.argv[2:]}))
