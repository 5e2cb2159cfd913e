"""Blocks whose experts are modules in a list, each run on the tokens that chose it.

Their loops index by what a router chose, so no graph has their sizes (the blocks of Mixtral and of
DeepSeek before experts were stored as one tensor). While a model is traced, a block that *is* such
a mixture is traced as ``irc::experts`` of its stacked matrices. That it is one is not guessed from
names: twins of the block, of the same class with small random matrices, quiet and loud, are run,
and their results and gradients must be those of the formula. Anything else about a block (shared
experts, noise, a gate of its own) makes them differ, and then it is traced as it is written.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from unittest import mock

import torch
from torch import nn

from irc.frontends.torch.activations import activation
from irc.runtime.experts import experts as reference

MATRICES = (("w1", "w3", "w2"), ("gate_proj", "up_proj", "down_proj"))
"""Names of gate, up and down."""

CHOICES = ("top_k", "num_experts_per_tok")
"""Attributes that say how many experts a token has."""

WIDTH, INNER = 8, 12
"""Of a twin."""

LOUDNESS = ((1.0, 1.0), (1e3, 1.0), (1e-3, 1.0), (1.0, 20.0))
"""What the matrices of a twin's experts, and of its router, are multiplied by.

A clamp or a threshold is seen that numbers of one of these sizes reach.
"""


@dataclass(frozen=True)
class Mixture:
    """What a block computes.

    Attributes:
        names: its experts' matrices: gate, up, down.
        act: the activation of the gate.
        choices: experts of a token.
        scaled: the weights of a token's experts add up to one.
        scores: the block gives its router's logits too.
    """

    names: tuple[str, str, str]
    act: str
    choices: int
    scaled: bool
    scores: bool

    def __call__(self, block: Any, hidden: torch.Tensor, layer: Callable[..., torch.Tensor]) -> Any:
        """Compute the block.

        Args:
            block: has ``gate`` and ``experts``.
            hidden: [.., width].
            layer: ``irc::experts``, or its reference.
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = block.gate(rows)
        weights = torch.softmax(logits, -1, dtype=torch.float)
        weights, index = torch.topk(weights, self.choices, -1)
        if self.scaled:
            weights = weights / weights.sum(-1, keepdim=True)
        gate, up, down = self.names
        pairs = [torch.stack([_matrix(e, gate), _matrix(e, up)]) for e in block.experts]
        last = torch.stack([_matrix(e, down) for e in block.experts])
        output = layer(
            rows, index, weights.to(rows.dtype), torch.stack(pairs), last, self.act, len(pairs)
        )
        output = output.reshape(hidden.shape)
        return (output, logits) if self.scores else output


def _matrix(expert: Any, name: str) -> torch.Tensor:
    return getattr(expert, name).weight


@contextmanager
def listed_experts(module: nn.Module, layer: Callable[..., torch.Tensor]) -> Generator[None]:
    """Trace the blocks of a module that are mixtures of listed experts as one op each.

    Args:
        module: whatever is traced.
        layer: the op.
    """
    mixtures = {id(block): mixture for block in module.modules() if (mixture := recognised(block))}
    kinds = {type(block) for block in module.modules() if id(block) in mixtures}
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(mock.patch.object(kind, "forward", _forward(kind, mixtures, layer)))
        yield


def _forward(
    kind: type[nn.Module], mixtures: dict[int, Mixture], layer: Callable[..., torch.Tensor]
) -> Callable[..., Any]:
    before = kind.forward

    def forward(self: nn.Module, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in mixtures or args or kwargs:
            return before(self, hidden_states, *args, **kwargs)
        return mixtures[id(self)](self, hidden_states, layer)

    return forward


def recognised(block: nn.Module) -> Mixture | None:
    """Return what mixture a block computes; None where it is none, or another."""
    experts = getattr(block, "experts", None)
    gate = getattr(block, "gate", None)
    choices = next((n for name in CHOICES if isinstance(n := getattr(block, name, None), int)), 0)
    if not isinstance(experts, nn.ModuleList) or not isinstance(gate, nn.Linear):
        return None
    if set(block._modules) != {"experts", "gate"} or len(experts) != gate.out_features:
        return None
    if _has_bias(gate) or not 0 < choices <= len(experts):
        return None
    forms = {_form(expert) for expert in experts}
    if len(forms) != 1 or (form := forms.pop()) is None:
        return None
    return _measured(block, form, choices)


def _form(expert: nn.Module) -> tuple[Any, ...] | None:
    """Return class, matrices and activation of an expert; None where it has anything else."""
    for names in MATRICES:
        modules = [expert._modules.get(name) for name in names]
        layers = [
            layer for layer in modules if isinstance(layer, nn.Linear) and not _has_bias(layer)
        ]
        if len(layers) == len(names):
            others = [m for name, m in expert._modules.items() if name not in names]
            acts = {activation(m) for m in others} | {activation(getattr(expert, "act_fn", None))}
            known = acts - {""}
            sizes = tuple((layer.in_features, layer.out_features) for layer in layers)
            if len(known) == 1 and len(others) <= 1:
                return type(expert), names, known.pop(), sizes
    return None


def _has_bias(layer: Any) -> bool:
    return layer.bias is not None  # torch's annotation says that there always is one


def _measured(block: nn.Module, form: tuple[Any, ...], choices: int) -> Mixture | None:
    """Return the formula that gives what small twins of the block give, with its gradients."""
    with (
        torch.random.fork_rng(devices=[]),  # pyright: ignore[reportUnknownMemberType]
        torch.device("cpu"),
        torch.enable_grad(),
    ):
        torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
        twins = [_twin(block, form, *loudness) for loudness in LOUDNESS]
        hidden = torch.randn(2, 5, WIDTH, requires_grad=True)
        try:
            answers = [_answer(twin, twin, hidden) for twin in twins]
        except Exception:
            # The code of a block of the user, on sizes that it may not expect.
            return None
        for scaled in (True, False):
            scores = len(answers[0].results) == 2
            mixture = Mixture(form[1], form[2], choices, scaled, scores)
            expected = (_answer(partial(mixture, t, layer=reference), t, hidden) for t in twins)
            if all(map(_same, answers, expected)):
                return mixture
    return None


@dataclass(frozen=True)
class _Answer:
    """What a twin gives, and the gradients of its first result by its inputs and matrices."""

    results: tuple[Any, ...]
    gradients: tuple[torch.Tensor | None, ...]


def _answer(call: Callable[..., Any], twin: nn.Module, hidden: torch.Tensor) -> _Answer:
    returned = call(hidden.clone())
    results = cast("tuple[Any, ...]", returned if isinstance(returned, tuple) else (returned,))
    slope = torch.cos(torch.arange(hidden.numel(), dtype=hidden.dtype)).view(results[0].shape)
    leaves = [hidden, *twin.parameters()]
    gradients = torch.autograd.grad(results[0], leaves, slope, allow_unused=True)
    return _Answer(results, gradients)


def _same(answer: _Answer, expected: _Answer) -> bool:
    if len(answer.results) != len(expected.results):
        return False
    pairs = zip(answer.results, expected.results, strict=True)
    slopes = zip(answer.gradients, expected.gradients, strict=True)
    return all(itertools.starmap(_near, itertools.chain(pairs, slopes)))


def _near(value: Any, expected: torch.Tensor | None) -> bool:
    if expected is None or not isinstance(value, torch.Tensor) or value.shape != expected.shape:
        return value is expected
    loudest = float(expected.detach().abs().max())
    return torch.allclose(value, expected, rtol=1e-4, atol=1e-5 * loudest)


def _twin(block: Any, form: tuple[Any, ...], experts_by: float, gate_by: float) -> nn.Module:
    """Return a block of the same class and attributes with small matrices of its own.

    Args:
        block: the block.
        form: of its experts.
        experts_by: what the matrices of experts are multiplied by.
        gate_by: what the matrix of the router is multiplied by.
    """
    width = block.gate.in_features
    twin = _shallow(block, width)
    twin._modules["gate"] = nn.Linear(WIDTH, len(block.experts), bias=False)
    experts: list[nn.Module] = []
    for expert in block.experts:
        small = _shallow(expert, width)
        gate, up, down = form[1]
        for name in (gate, up):
            small._modules[name] = nn.Linear(WIDTH, INNER, bias=False)
        small._modules[down] = nn.Linear(INNER, WIDTH, bias=False)
        experts.append(small)
    twin._modules["experts"] = nn.ModuleList(experts)
    with torch.no_grad():
        twin._modules["gate"].weight.mul_(gate_by)
        for parameter in twin._modules["experts"].parameters():
            parameter.mul_(experts_by)
    return twin


def _shallow(module: nn.Module, width: int) -> Any:
    """Copy a module's attributes; those that are its width are the twin's."""
    twin = copy.copy(module)
    for name, value in module.__dict__.items():
        if type(value) is int and value == width:
            twin.__dict__[name] = WIDTH
    for store in ("_parameters", "_buffers", "_modules"):
        twin.__dict__[store] = dict(module.__dict__[store])
    return twin
