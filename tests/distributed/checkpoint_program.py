"""A training script with checkpoints, run by each process: ``MESH FOLDER CASE [CASE ..]``.

It prints, as JSON for each case, what the test looks at.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.nn import functional as F

import irc
from irc.errors import IrcError
from irc.runtime.torch_optimizer import torch_optimizer
from irc.training.recipe import recipe_of

CLUSTER = "demo-gpus"
ADAMW = {"kind": "adamw", "lr": 1e-2, "eps": 1e-4, "weight_decay": 0.1, "no_decay": "*bias"}
MESH, FOLDER = sys.argv[1:3] if __name__ == "__main__" else ("", "")


class Net(nn.Module):
    """Sizes that nothing divides, a tied weight, a norm with running statistics, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(13, 10)
        self.up, self.norm, self.down = nn.Linear(10, 21), nn.LayerNorm(21), nn.Linear(21, 10)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(10, 13, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        h = self.norm(F.gelu(self.up(self.tok(x))))
        return self.head(self.drop(self.down(h)))


def net() -> nn.Module:
    """Always with the same values."""
    torch.manual_seed(0)
    return Net().train()


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """Return tokens and labels."""
    draw = torch.Generator().manual_seed(7)
    return [
        (torch.randint(0, 13, (12,), generator=draw), torch.randint(0, 13, (12,), generator=draw))
        for _ in range(count)
    ]


def make(mesh: str = MESH, module: nn.Module | None = None, **options: Any) -> Any:
    """Make a step."""
    return irc.compile_step(
        net() if module is None else module,
        loss=F.cross_entropy,
        optimizer=options.pop("optimizer", ADAMW),
        mesh=mesh,
        cluster=CLUSTER,
        seed=3,
        **options,
    )


class Counter:
    """A sampler, as far as checkpoints see it."""

    position = 0

    def state_dict(self) -> dict[str, Any]:
        """Return where it is."""
        return {"position": self.position, "order": torch.arange(self.position)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.position = state["position"]
        assert len(state["order"]) == self.position


def whole(step: Any) -> dict[str, Any]:
    """Return the losses of steps 3 and 4, and what comes of them."""
    losses = [float(step(*batch)) for batch in batches(4)[2:]]
    state = step.state_dict()
    return {
        "losses": losses,
        "sums": {n: float(t.double().sum()) for n, t in state["model"].items()},
        "states": {n: float(s["exp_avg_sq"].double().sum())
                   for n, s in state["optimizer"]["state"].items()},
        "step": state["step"],
    }  # fmt: skip


def still() -> nn.Module:
    """Without dropout, whose numbers depend on micro-batches."""
    module = net()
    module.drop.p = 0.0
    return module


def still_saving() -> dict[str, Any]:
    """Save a model without dropout."""
    step = two_steps(module=still())
    step.save(FOLDER)
    return whole(step)


def still_loading() -> dict[str, Any]:
    """Go on from that, on any mesh."""
    step = make(module=still())
    step.load(FOLDER)
    return whole(step)


def two_steps(**options: Any) -> Any:
    """Return a step after two batches."""
    step = make(**options)
    for batch in batches(2):
        step(*batch)
    return step


def saving() -> dict[str, Any]:
    """Save after two steps, and go on."""
    step, sampler = two_steps(), Counter()
    sampler.position = 24
    path = step.save(FOLDER, more={"sampler": sampler})
    return {**whole(step), "path": path.name}


def saving_async() -> dict[str, Any]:
    """Save while training goes on: what was there when it was asked for."""
    step, sampler = two_steps(), Counter()
    sampler.position = 24
    saved = step.save_async(FOLDER, more={"sampler": sampler})
    figures = whole(step)
    assert saved.result().name == "step-2"
    step.save_async(FOLDER, keep=1).result()
    return {**figures, "left": sorted(p.name for p in Path(FOLDER).iterdir())}


def loading() -> dict[str, Any]:
    """Go on from what was saved, before the first call."""
    step, sampler = make(), Counter()
    step.load(f"{FOLDER}/step-2", more={"sampler": sampler})
    assert sampler.position == 24
    return whole(step)


def loading_later() -> dict[str, Any]:
    """Go on from what was saved after other steps."""
    step = make()
    for batch in reversed(batches(3)):
        step(*batch)
    step.load(f"{FOLDER}/step-2")
    return whole(step)


def titan() -> dict[str, Any]:
    """Save and load by torch's own functions, in the manner of torchtitan."""
    step = two_steps()
    dcp.save(step.state_dict(parts=True), checkpoint_id=f"{FOLDER}/titan")
    other = make()
    other.prepare(*batches(1)[0])
    state = other.state_dict(parts=True)
    dcp.load(state, checkpoint_id=f"{FOLDER}/titan")
    other.load_state_dict(state)
    third = make()
    third.load(f"{FOLDER}/titan")
    kinds = sorted({type(v).__name__ for v in state["model"].values()})
    return {"dcp": whole(other), "irc": whole(third), "kinds": kinds}


def killed() -> dict[str, Any]:
    """Two checkpoints; the process that writes the second is killed while it does."""
    from irc.runtime import checkpoint_files

    step = two_steps()
    step.save(FOLDER)
    step(*batches(3)[2])
    rank = int(os.environ.get("RANK", "0"))

    def digest_of(_: Path) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if rank == int(os.environ["KILLED"]):
        checkpoint_files.digest_of = digest_of
    step.save(FOLDER)
    return {}


def from_meta() -> dict[str, Any]:
    """Start on the meta device; the numbers are those of one process, and each has its part."""
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 12))
    step = make(module=module, pins="*.weight = [data = S(0)]; *.bias = [data = S(0)]")
    step.prepare(torch.zeros(8, 24), torch.zeros(8, dtype=torch.long))
    model = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 12))
    torch.manual_seed(3)
    for layer in (model[0], model[2]):
        layer.reset_parameters()
    wanted, state = model.state_dict(), step.state_dict()["model"]
    whole = sum(t.nbytes for t in wanted.values())
    return {
        "equal": all(torch.equal(state[n], t) for n, t in wanted.items()),
        "share": step.memory_bytes()["parameters"] / whole,
        "on_meta": all(p.is_meta for p in module.parameters()),
    }


def files() -> dict[str, Any]:
    """Weights in files of Hugging Face: from a step to one on the meta device, and to a loop."""
    step = two_steps(module=still())
    folder = Path(FOLDER).with_name("files")
    irc.save_safetensors(step, folder, max_bytes=1000)
    x, y = batches(1)[0]
    wanted = [float(step.evaluate(x).square().sum())]
    with torch.device("meta"):
        empty = Net()
    empty.drop.p = 0.0
    other = make(module=empty)
    irc.load_safetensors(other, folder)
    other.prepare(x, y)
    sums = [float(other.evaluate(x).square().sum())]
    refused = ""
    try:
        irc.save_safetensors(other, folder)
    except IrcError as error:
        refused = error.code
    model = net()
    model.drop.p = 0.0
    if "pipe" not in MESH:
        model = irc.compile(model, mesh=MESH, cluster=CLUSTER)
        F.cross_entropy(model(x), y).backward()  # now each rank has its part
        irc.load_safetensors(model, folder)
        with torch.no_grad():
            sums.append(float(irc.whole(model).eval()(x).square().sum()))
        again = folder.with_name("again")
        irc.save_safetensors(model, again)
        plainly = Net().eval()
        irc.load_safetensors(plainly, again)
        sums.append(float(plainly(x).detach().square().sum()))
    names = sorted(path.name for path in folder.iterdir())
    return {"wanted": wanted * len(sums), "sums": sums, "refused": refused, "files": names}


def refused() -> dict[str, Any]:
    """What one rank alone cannot read."""
    from tests.distributed.refusing import said_of_each

    return {"told": said_of_each(make(), net(), Path(FOLDER).with_name("weights"))}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        *(still_saving, still_loading, from_meta, refused),
        *(saving, saving_async, loading, loading_later, titan, killed, files),
    )
}


def plain(folder: str) -> dict[str, Any]:
    """Load into plain torch by its own functions, and go on there without dropout."""
    from torch.distributed.checkpoint.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )

    model = net()
    optimizer = torch_optimizer(recipe_of(ADAMW), dict(model.named_parameters()))
    state = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    own = {n: optimizer.state[p] for n, p in model.named_parameters()}
    return {
        "sums": {n: float(t.double().sum()) for n, t in model.state_dict().items()},
        "states": {n: float(s["exp_avg_sq"].double().sum()) for n, s in own.items()},
        "steps": {n: float(s["step"]) for n, s in own.items()},
    }


if __name__ == "__main__":
    print(json.dumps({name: CASES[name]() for name in sys.argv[3:]}))
