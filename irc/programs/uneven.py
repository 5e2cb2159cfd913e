"""Plans of steps whose micro-batches do not share the batch equally: some have a sample less.

Ten samples are four micro-batches of 3, 3, 2 and 2, as ``torch.tensor_split`` cuts them. The step
is planned for both sizes, with the same weights in the same stages, and the functions of the
smaller one stand beside those of the larger, with registers and channels of their own. Each
micro-batch counts by its part of the samples, in the loss, in gradients and in shares of sums over
the batch, so that a mean over samples is that of the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from irc.constraints.pins import constraint_text
from irc.errors import IrcError
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.plan.parts import PartsPlan, make_parts, micro_batch_sizes, smaller_kind, with_files
from irc.plan.parts_facts import ChannelFacts
from irc.plan.parts_verify import OF_MICRO_BATCHES, verify_parts
from irc.plan.training import smaller_file
from irc.program import Program
from irc.programs.held_pins import names_by_stage, stage_pins, weight_pins
from irc.programs.make import make_parts_plan
from irc.programs.offload import with_offload
from irc.schedule.actions import Schedule
from irc.training.recipe import Recipe


def make_uneven_plan(
    program: Program,
    smaller: Program,
    samples: int,
    recipe: Recipe,
    options: Options,
    schedule: Schedule,
    stages: str = "",
    *,
    cut: str = "",
) -> PartsPlan:
    """Plan a step of micro-batches of two sizes.

    Args:
        program: the forward pass of one of the first micro-batches; its module is changed.
        smaller: that of one of the others; its module is changed.
        samples: of the whole batch.
        recipe: how it is trained, with the inputs that are cut.
        options: of the pipeline of passes; the mesh is the whole one.
        schedule: as :func:`irc.programs.schedules.schedule_for` gives it.
        stages: where stages begin, by names of parameters; empty: the best cut of the larger ones.
        cut: constraints on stages in the place of the user's.

    Raises:
        IrcError: ``pipeline-unsupported`` where the two differ in more than sizes; what
            :func:`irc.programs.make.make_parts_plan` raises.
    """
    sizes = micro_batch_sizes(samples, schedule.num_micro_batches)
    large = make_parts_plan(
        program, recipe, options, schedule, stages, part=sizes[0] / samples, cut=cut
    )
    cut = stage_pins(names_by_stage(program.module))
    placed = replace(options, pins="\n".join([constraint_text(options.pins)[0], *_placed(large)]))
    own = placed if large.part_mesh.axes else options
    small = make_parts_plan(smaller, recipe, own, schedule, part=sizes[-1] / samples, cut=cut)
    return _joined(large, small, samples)


def _placed(plan: PartsPlan) -> list[str]:
    """Return constraints by which weights, states and accumulators lie as they do in a plan."""
    return weight_pins(
        loaded.plan
        for part in plan.parts
        for kind, loaded in part.items()
        if kind in OF_MICRO_BATCHES or kind == "step"
    )


def _joined(large: PartsPlan, small: PartsPlan, samples: int) -> PartsPlan:
    """Put the functions of smaller micro-batches beside the others."""
    facts = large.facts
    parts: list[Mapping[str, LoadedPlan]] = [
        {**own, **{smaller_kind(k): e for k, e in others.items() if k in OF_MICRO_BATCHES}}
        for own, others in zip(large.parts, small.parts, strict=True)
    ]
    channels = (*facts.channels, *map(_of_smaller, small.facts.channels))
    hashes = tuple({kind: loaded.hash for kind, loaded in part.items()} for part in parts)
    facts = replace(facts, parts=hashes, channels=channels, samples=samples)
    plan = PartsPlan(facts, large.schedule_text, tuple(parts))
    same = ("shared", "inputs", "cut", "loss")
    differs = [each for each in same if getattr(facts, each) != getattr(small.facts, each)]
    because = f"{', '.join(differs)} of the two differ" if differs else ""
    if not because and (_held(large) != _held(small)):
        because = "their stages have other parameters"
    try:
        if not because:
            verify_parts(plan)
    except IrcError as error:
        if error.code != "plan-corrupt":
            raise
        because = error.message
    if because:
        count = large.num_micro_batches
        raise IrcError(
            "pipeline-unsupported",
            f"{samples} samples in {count} micro-batches: those of a sample less have another "
            "program than the larger ones",
            because=because,
            help=f"give a multiple of {count} samples",
        )
    joined = make_parts(facts, large.schedule_text, tuple(parts))
    if large.facts.offload:
        plain = replace(facts, offload="", moved=())
        joined = with_offload(plain, large.schedule_text, tuple(parts), large.facts.offload)
    models = {n: t.decode() for n, t in small.texts.items() if n.endswith(".mlir")}
    texts = {name: text.decode() for name, text in large.texts.items()}
    return with_files(joined, texts | {smaller_file(n): text for n, text in models.items()})


def _of_smaller(channel: ChannelFacts) -> ChannelFacts:
    return replace(
        channel, name=smaller_kind(channel.name), register=smaller_kind(channel.register)
    )


def _held(plan: PartsPlan) -> list[set[tuple[str, str]]]:
    """Return roles and names of what each part holds between steps."""
    return [
        {
            (buffer.role, buffer.name)
            for loaded in part.values()
            for buffer in (loaded.plan.buffers[index] for index in loaded.plan.weights)
            if buffer.role != "constant"
        }
        for part in plan.parts
    ]
