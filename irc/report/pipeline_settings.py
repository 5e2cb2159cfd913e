"""A plan in stages as settings of torchtitan or Megatron-LM, with the cut that irc chose.

Degrees, micro-batches, schedule and recompute are what :mod:`irc.search.stated` reads back; the cut
is torchtitan's ``module_fqns_per_model_part`` and Megatron-LM's ``pipeline-model-parallel-layout``
(``E``: embeddings, ``t``: a layer, ``L``: the head and the loss, ``|`` between stages).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Literal

from irc.errors import IrcError
from irc.plan import json_text
from irc.plan.parts import PIPE, PartsPlan
from irc.plan.schema import Buffer, placement_of
from irc.report.layer_names import layer_of
from irc.report.parts_facts import held_buffers
from irc.search.configurations import NOTHING, Configuration
from irc.search.write_stated import settings
from irc.training.layer_policies import LAYER

Trainer = Literal["torchtitan", "megatron"]
RECIPE = "training/recipe.json"
SUFFIX: Mapping[str, str] = {"torchtitan": ".toml", "megatron": ".args"}
"""By what a name of a file says whose settings it holds."""


def pipeline_settings(plan: PartsPlan, trainer: Trainer) -> str:
    """Return the settings that a trainer needs to run as the plan does.

    Raises:
        IrcError: ``option-value`` for what the trainer has no word for: a schedule, an axis, a
            batch that micro-batches do not divide, a stage that is no run of whole layers.
    """
    samples, sequence = _batch(plan)
    configuration = Configuration(
        plan.mesh,
        plan.num_micro_batches,
        plan.schedule.name,
        _recompute(plan),
        _layout(plan, trainer),
    )
    text = settings(f"plan{SUFFIX[trainer]}", configuration, samples, sequence)
    head = f"# Plan {plan.hash[:16]}, priced for a cluster of irc's."
    notes = [f"# Note: {note}." for note in _notes(plan, trainer)]
    cut = _torchtitan_cut(plan) if trainer == "torchtitan" else _megatron_cut(plan)
    lines = text.rstrip("\n").split("\n")
    # Behind the last line of torchtitan's section; order means nothing to Megatron-LM.
    after = next(
        (n for n, line in enumerate(lines) if line.startswith("pipeline_parallel_degree")),
        len(lines) - 1,
    )
    return "\n".join([head, *notes, *lines[: after + 1], *cut, *lines[after + 1 :]]) + "\n"


def stage_layers(plan: PartsPlan) -> list[list[str]]:
    """Return the layers of each stage by the names of the model's modules, in the model's order."""
    return [
        list(dict.fromkeys(layer_of(b.name) for b in held_buffers(part).values()
                           if b.role == "parameter"))
        for part in plan.parts
    ]  # fmt: skip


def _torchtitan_cut(plan: PartsPlan) -> list[str]:
    stages = stage_layers(plan)
    rows = [f"  {json.dumps(layers)}," for layers in stages]
    return ["module_fqns_per_model_part = [", *rows, "]"]


def _megatron_cut(plan: PartsPlan) -> list[str]:
    stages = stage_layers(plan)
    matches = [match for names in stages for name in names if (match := LAYER.match(name))]
    lists = sorted({str(match[1]).rpartition(".")[0] for match in matches})
    if len(lists) != 1:
        raise IrcError(
            "option-value",
            f"Megatron-LM's models have one list of layers, and this one has {len(lists)}",
            because=lists,
            help="irc export --format torchtitan names modules, of any number of lists",
        )
    counts = [sum(LAYER.match(name) is not None for name in stage) for stage in stages]
    texts = ["t" * count if count < 3 else f"t*{count}" for count in counts]
    texts[0], texts[-1] = f"E{texts[0]}", f"{texts[-1]}L"
    return [f"--num-layers {sum(counts)}", f"--pipeline-model-parallel-layout {'|'.join(texts)}"]


def _batch(plan: PartsPlan) -> tuple[int, int]:
    """Return the samples of a whole batch, and the tokens of one, 0 where that is not known."""
    for buffer in _inputs(plan):
        if buffer.name in plan.facts.cut:
            split = placement_of(buffer).split_axes(0)
            micro = buffer.shape[0] * prod(plan.part_mesh.size(axis) for axis in split)
            samples = plan.facts.samples or micro * plan.num_micro_batches
            is_tokens = len(buffer.shape) == 2 and buffer.dtype.startswith("i")
            length = buffer.shape[1] if is_tokens else 0
            over = placement_of(buffer).split_axes(1) if is_tokens else ()
            return samples, length * prod(plan.part_mesh.size(axis) for axis in over)
    raise IrcError(
        "option-value",
        "the plan says no batch: no input of a step is cut into micro-batches",
        help="irc export --format json, of a function of a stage",
    )


def _inputs(plan: PartsPlan) -> list[Buffer]:
    return [b for part in plan.parts for b in part["F"].plan.buffers if b.name in plan.facts.inputs]


def _recompute(plan: PartsPlan) -> str:
    recipe = json_text.parse_object(plan.texts.get(RECIPE, b"{}"), RECIPE)
    return str(recipe.get("recompute", NOTHING))


def _layout(plan: PartsPlan, trainer: Trainer) -> str:
    """Return what the axes are for, as far as what ranks store and send says so."""
    names = plan.part_mesh.names
    words: list[str] = []
    if "data" in names:
        words.append("fsdp" if _divides_weights(plan, "data") else "ddp")
    if "tensor" in names and "context" not in names:
        words += ["tp"]
        # torchtitan has no tensor parallelism without it.
        words += ["sp"] if trainer == "torchtitan" or _divides_sequences(plan) else []
    return "" if "context" in names else "+".join(words)


def _divides_weights(plan: PartsPlan, axis: str) -> bool:
    held = (b for part in plan.parts for b in held_buffers(part).values() if b.role == "parameter")
    return any(cut.axis == axis and cut.kind == "S" for b in held for cut in b.placement)


def _divides_sequences(plan: PartsPlan) -> bool:
    """Return whether what goes from stage to stage lies divided over ``tensor``."""
    sent = [cut for c in plan.facts.channels for cut in c.before if cut.axis == "tensor"]
    return any(cut.kind == "S" for cut in sent)


def _notes(plan: PartsPlan, trainer: Trainer) -> list[str]:
    notes: list[str] = []
    if (
        trainer == "torchtitan"
        and "tensor" in plan.part_mesh.names
        and not _divides_sequences(plan)
    ):
        notes.append("torchtitan's tensor parallelism divides sequences, too; the plan does not")
    if plan.facts.slices:
        notes.append("the plan divides some weights over the stages, which is not in it")
    if plan.mesh.names[:1] != (PIPE,):
        notes.append("the trainer's mesh has the axis of stages outermost")
    return notes
