"""What a plan of training keeps beside its actions: the recipe, and the model before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.schema import Plan
from irc.training.optimizers import GRADIENT
from irc.training.recipe import Recipe

RECIPE = "training/recipe.json"
FORWARD = "training/forward.mlir"
"""The captured forward pass of one micro-batch: what eager training runs."""
SEARCHED = "report/search.json"
"""What the searches of a plan's stages say that each function takes, and how often it runs."""
ORDER = "report/order.json"
"""Which orders of a step were compared where it was searched (:class:`OrderFacts`)."""
STAGED = "training/stages.mlir"
"""The same before it was cut into stages: its ops have their numbers."""
HEAD = "training/head.mlir"
"""The output layer and the loss, where the vocabulary is on all ranks: STAGED is the rest then."""
SPLIT = "split"
"""What a function of a stage is before passes run on it: the stage was placed, and split."""


@dataclass(frozen=True)
class OrderFacts:
    """The content of :data:`ORDER`.

    Attributes:
        origin: where the order comes from.
        seconds: of the step.
        ahead: for how many actions a message has a slot before it is read.
        named: seconds of the step under schedules with a name, of those that fit.
        tried: orders that were simulated.
    """

    origin: str
    seconds: float
    ahead: int
    named: Mapping[str, float]
    tried: int


def order_facts(text: bytes) -> OrderFacts:
    """Read report/order.json.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    facts: OrderFacts = json_text.decode(OrderFacts, json_text.parse_object(text, ORDER), ORDER)
    return facts


def smaller_file(name: str) -> str:
    """Return the name of the same file for micro-batches of a sample less.

    >>> smaller_file("training/forward.mlir")
    'training/forward-smaller.mlir'
    """
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-smaller{dot}{suffix}"


def stage_file(stage: int) -> str:
    """Return the name of the file with a stage's whole part of a step, before it is placed."""
    return f"training/stage-{stage}.mlir"


def trained_by(plan: Plan) -> list[str]:
    """Return the parameters that a plan moves, or whose gradients it keeps for an optimiser."""
    written = [plan.buffers[index] for index in plan.states()]
    kept = f"optimizer.{GRADIENT}."
    return [
        buffer.name.removeprefix(kept)
        for buffer in written
        if buffer.role == "parameter" or buffer.name.startswith(kept)
    ]


class Training(Protocol):
    """A plan, of one program or several, with its files."""

    @property
    def texts(self) -> Mapping[str, bytes]:
        """Content of files by name."""
        ...


def training_files(recipe: Recipe, forward: str) -> dict[str, str]:
    """Return the files of a training plan by name."""
    return {RECIPE: json_text.dump(json_text.encode(recipe)), FORWARD: forward}


def recipe_of_plan(loaded: Training) -> Recipe | None:
    """Return how a plan trains; None for a plan of inference.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    text = loaded.texts.get(RECIPE)
    if text is None:
        return None
    data = json_text.parse_object(text, RECIPE)
    if "accumulate" in data and "micro_batches" not in data:
        # So plans from before there were schedules call it.
        data = {**data, "micro_batches": data["accumulate"]}
        del data["accumulate"]
    return json_text.decode(Recipe, data, RECIPE)


def check_recipe(plan: Training) -> None:
    """Refuse to train with a plan that does not say how.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    if RECIPE not in plan.texts:
        raise IrcError(
            "plan-corrupt",
            "the plan has no recipe: it does not say how its model is trained",
            help="irc compile --train writes plans that irc run trains",
        )


def forward_text(loaded: Training, name: str = FORWARD) -> str:
    """Return the model of a training plan.

    Args:
        loaded: the plan.
        name: of the file: ``FORWARD``, or that of smaller micro-batches.

    Raises:
        IrcError: ``plan-corrupt`` where it is missing.
    """
    text = loaded.texts.get(name)
    if text is None:
        raise json_text.corrupt(f"the plan has {RECIPE} and no {name}")
    return text.decode("utf-8", "replace")
