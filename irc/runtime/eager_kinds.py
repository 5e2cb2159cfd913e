"""Which optimisers of torch may run on what a compiled step computed, and on how much of it."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.parts import PIPE
from irc.runtime.lion import is_lion

ELEMENTWISE = frozenset(
    {
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adagrad,
        torch.optim.RMSprop,
        torch.optim.Adamax,
        torch.optim.Adadelta,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.ASGD,
        torch.optim.Rprop,
    }
)
"""Those whose new value of an element depends on that element's gradients and states alone."""

WHOLE = frozenset({torch.optim.Adafactor, torch.optim.Muon})
"""Those that look at whole matrices."""

UNSUITABLE: Mapping[type, str] = {
    torch.optim.LBFGS: "it computes the loss several times in one step, in a closure",
    torch.optim.SparseAdam: "it takes sparse gradients, and a step computes dense ones",
}
"""Those that cannot run on gradients of one pass, and why."""


class EagerOptimizerWarning(UserWarning):
    """An optimiser is not compiled: it runs as PyTorch runs it, after forward and backward."""


def is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether parts of tensors are enough for an optimiser.

    True for those of torch in :data:`ELEMENTWISE`, not for classes that derive from them, for a
    Lion, and for any other that says so by an attribute ``elementwise``.
    """
    says_so = getattr(optimizer, "elementwise", False) is True
    return says_so or type(optimizer) in ELEMENTWISE or is_lion(optimizer)


def sees_one_parameter(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether what an optimiser does to a parameter depends on no other one."""
    return is_elementwise(optimizer) or type(optimizer) in WHOLE


@contextmanager
def same_draws(
    optimizer: torch.optim.Optimizer, seed: int, num_ranks: int, tied: str = ""
) -> Generator[None]:
    """Let an optimiser of a user's own class draw the same random numbers on every rank.

    Else copies of one parameter drift apart. torch's generators go on afterwards as if nothing was
    drawn; on one rank, and for classes of torch, which draw nothing, they are left alone.

    Args:
        optimizer: whose step runs in the context.
        seed: of this step, the same on every rank.
        num_ranks: of the mesh.
        tied: name of a parameter that several stages hold, if there is one. Each stage draws for
            parameters of its own before, so that its copies would get other numbers.

    Raises:
        IrcError: ``optimizer-failed`` where the optimiser has drawn numbers and there is one.
    """
    if num_ranks == 1 or type(optimizer) in ELEMENTWISE | WHOLE:
        yield
        return
    every = (p for group in optimizer.param_groups for p in group["params"])
    devices = sorted({p.device.index for p in every if p.is_cuda})
    with torch.random.fork_rng(devices):  # pyright: ignore[reportUnknownMemberType]
        torch.default_generator.manual_seed(seed)
        for index in devices:
            generator = cast("torch.Generator", torch.cuda.default_generators[index])
            generator.manual_seed(seed)
        before = _generators(devices)
        yield
        pairs = zip(before, _generators(devices), strict=True)
        if tied and not all(torch.equal(one, other) for one, other in pairs):
            raise IrcError(
                "optimizer-failed",
                f"{type(optimizer).__name__}.step() draws random numbers, and several stages "
                f"hold a copy of '{tied}'",
                because="each stage draws others, and the copies would drift apart",
                help="choose a mesh without 'pipe', or an optimiser that draws nothing",
            )


def _generators(devices: Sequence[int]) -> list[torch.Tensor]:
    """Return the states of the generators of the CPU and of some GPUs."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def check_suitable(optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimiser that needs more than the gradients of one pass.

    Raises:
        IrcError: ``option-value``, naming it and why.
    """
    name = type(optimizer).__name__
    reason = next((why for cls, why in UNSUITABLE.items() if isinstance(optimizer, cls)), "")
    if not reason and any(group.get("differentiable") for group in optimizer.param_groups):
        reason = "with differentiable=True gradients go through its steps"
    if not reason and _wants_closure(optimizer):
        reason = "its step() has an argument that has to be given"
    if reason:
        raise IrcError(
            "option-value",
            f"optimizer={name}(..) does not work in a compiled step",
            because=reason,
            help="train in a loop of your own, where irc.compile(model, mesh=..) takes any "
            "optimiser, or choose another one",
        )


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    try:
        _, *taken = inspect.signature(type(optimizer).step).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = [each for each in taken if each.kind not in kinds]
    return any(each.default is inspect.Parameter.empty for each in own)


def eager_text(optimizer: torch.optim.Optimizer, why: str, mesh: Mesh) -> str:
    """Return what is said of an optimiser that runs eagerly.

    Args:
        optimizer: of torch, or a class of the user's.
        why: it is not compiled.
        mesh: of the run.
    """
    text = (
        f"{type(optimizer).__name__} is not compiled ({why}): it runs eagerly, after the compiled "
        "forward and backward"
    )
    if mesh.num_ranks == 1:
        return text
    if PIPE in mesh.names:
        text = f"{text}, in each stage for its own parameters"
    if is_elementwise(optimizer):
        return f"{text}, on the parts of parameters and gradients that each rank holds"
    is_known = type(optimizer) in WHOLE
    text = (
        f"{text}. It {'looks' if is_known else 'may look'} at whole tensors, so in each step every "
        "rank puts parameters and gradients together, and keeps its states whole"
    )
    return (
        text
        if is_known
        else f"{text}; if what it does to an element depends on that element alone, say "
        "optimizer.elementwise = True before, and it runs on the parts"
    )
