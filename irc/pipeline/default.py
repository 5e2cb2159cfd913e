"""Which passes run, in which order: ``default_pipeline`` reads from top to bottom."""

from __future__ import annotations

from typing import NamedTuple

from xdsl.passes import ModulePass

from irc.cluster.load import THIS_HOST
from irc.constraints.chunks import parse_chunks
from irc.constraints.pins import constraint_text, parse_constraints
from irc.constraints.stages import parse_stages
from irc.constraints.uses import parse_uses
from irc.errors import IrcError
from irc.kernels.gpu.limits import GPUS
from irc.pipeline.memory import MEMORY
from irc.pipeline.options import Options
from irc.pipeline.places import chosen, insert_all
from irc.plan.parts import PIPE
from irc.plugin import builtin_pass, find_backend, parse_passes
from irc.runtime.segments import DEVICE_BACKENDS, NATIVE_BACKENDS
from irc.search.judge import BOUNDLESS

FIRST_ON_FUNCTIONS = ("chunk-experts", "lower-externs")


class Passes(NamedTuple):
    """The list of passes, by what they run on (:mod:`irc.pipeline.order`).

    Attributes:
        training: make a step of the captured program; none where it is run as it is.
        stage: on what is placed as one: a stage, or the whole program.
        function: on what is run as one: a function of a stage, or the whole program.
    """

    training: list[ModulePass]
    stage: list[ModulePass]
    function: list[ModulePass]


def default_pipeline(options: Options) -> list[ModulePass]:
    """Return all passes, from a captured program to one that a plan is written from, in order."""
    parts = passes_by_part(options)
    return [*parts.training, *parts.stage, *parts.function]


def passes_by_part(options: Options) -> Passes:
    """Return the passes from a captured program to one whose memory is decided, in order.

    Each line is one decision (ARCHITECTURE section 9); nothing after a line makes it again.
    """
    distributed = options.mesh.num_ranks > 1
    _refuse_stages(options)
    pipeline: list[tuple[str, dict[str, object]]] = []
    if options.sizes:
        text = ",".join(f"{name}={size}" for name, size in options.sizes.items())
        pipeline.append(("bind-sizes", {"sizes": text}))
    pipeline.append(("canonicalize", {}))
    pipeline.append(("rewrite", {"rules": options.rules} if options.rules else {}))
    if options.recompute:
        again: dict[str, object] = {"mesh": str(options.mesh), "cluster": options.cluster}
        again["pins"] = options.pins
        if options.memory_bytes is not None:
            again["memory_bytes"] = options.memory_bytes
        pipeline.append(("recompute", {"policy": options.recompute, **again}))
    if not options.any_rows:
        pipeline.append(("stream-cross-entropy", {}))
    links: dict[str, object] = {"cluster": options.cluster}
    if options.within is not None:
        links["within"] = str(options.within)
    if distributed:
        choices = {"mesh": str(options.mesh), "cluster": options.cluster, "pins": options.pins}
        limits = {"memory_bytes": options.memory_bytes, "stored_bytes": options.stored_bytes}
        pass_options: dict[str, object] = {k: v for k, v in choices.items() if v}
        if options.regather:
            pass_options["regather"] = True
        if options.layout:
            pass_options["layout"] = options.layout
        if options.samples:
            pass_options["samples"] = ",".join(options.samples)
        if options.brief:
            pass_options["brief"] = True
        is_free = options.memory_bytes in (None, BOUNDLESS)
        if options.brief and options.within is None and is_free:
            pass_options["report"] = False  # of stages, and within a budget, it says what is held
        if options.within is not None:
            pass_options["within"] = str(options.within)
        if options.stored_price:
            pass_options["stored_price"] = options.stored_price
        bounds = {k: v for k, v in limits.items() if v is not None}
        pipeline.append(("auto-shard", {**pass_options, **bounds}))
        if options.sums:
            pipeline.append(("insert-sum-casts", {"dtype": options.sums}))
        pipeline.append(("plan-rings", links))
        pipeline.append(("lower-boxing", {}))
    elif not options.mesh.names:
        _refuse_pins(options.pins)
    elif options.pins:  # a script for several ranks, on one
        pipeline.append(("verify-pins", {"mesh": str(options.mesh), "pins": options.pins}))
    target = options.target or _target(options)
    if distributed:
        pipeline.append(("chunk-experts", links))
    pipeline.append(("lower-externs", {"target": target}))
    if distributed:
        pipeline.append(("hoist-collectives", {}))
        if not options.any_rows:
            pipeline.append(("slice-batch", links))
        pins = {"pins": options.pins} if _chunks(options) else {}
        pipeline.append(("chunk-collectives", {**links, **pins}))
        pipeline.append(("bucket-collectives", links))
    weights: dict[str, object] = {"weights_only": True} if target in GPUS else {}
    pipeline.append(("pack-quantized", {"target": target, **weights}))
    any_rows: dict[str, object] = {"any_rows": True} if options.any_rows else {}
    pipeline.append(("merge-matmuls", any_rows))
    fusion = {"pins": options.pins, "target": "" if target == "cpu" else target}
    pipeline.append(("fuse", {**{k: v for k, v in fusion.items() if v}, **any_rows}))
    pipeline.append(("map-tasks", {"target": target, **any_rows}))
    if target in GPUS:
        pipeline.append(("split-reduction", {"target": target}))
        if device := _device(options):
            timed: dict[str, object] = {"times": True} if options.tune else {}
            pass_options = {"target": target, "device": device, "backend": options.backend}
            pipeline.append(("tune-tiles", {**pass_options, **timed}))
    # Kernels of any size have no lengths to be parts by, and a plug-in's backend may not know them.
    if options.backend in NATIVE_BACKENDS and not options.any_rows:
        pipeline.append(("merge-launches", {"target": target}))
    if distributed:
        pipeline.append(("order", links))
    pipeline += [(name, {}) for name in MEMORY]
    training = options.training.passes if options.training is not None else []
    passes = [*training, *(builtin_pass(name)(**keywords) for name, keywords in pipeline)]
    whole = passes[len(training)]
    own, left_out = chosen(options.passes)
    passes = [each for each in passes if each.name not in left_out]
    insert_all(passes, [each for text in own for each in parse_passes(text)])
    # Equal passes may stand in several places.
    start = next(i for i, p in enumerate(passes) if p is whole)
    cut = next(i for i, p in enumerate(passes[start:], start) if p.name in FIRST_ON_FUNCTIONS)
    return Passes(passes[:start], passes[start:cut], passes[cut:])


def _target(options: Options) -> str:
    """Return what kernels are mapped for: the GPU at hand where the plan is for this machine."""
    targets = find_backend(options.backend).targets
    if options.backend not in DEVICE_BACKENDS or options.cluster != THIS_HOST:
        return targets[0]
    from irc.runtime.device import target_at_hand

    return target_at_hand(options.backend, targets)


def _device(options: Options) -> str:
    """Return the name of the GPU whose tuned tiles count; empty where the plan is for no GPU here.

    Raises:
        IrcError: ``device-missing`` where tiles are to be timed and there is no GPU.
    """
    from irc.tune.tiles import TUNED_BACKENDS

    if options.backend not in TUNED_BACKENDS or options.cluster != THIS_HOST:
        return ""
    from irc.runtime.device import device_of, name_at_hand

    if options.tune:
        device_of(options.backend)
    return name_at_hand(options.backend)


def _chunks(options: Options) -> bool:
    return bool(options.pins) and bool(parse_chunks(*constraint_text(options.pins)))


def _refuse_stages(options: Options) -> None:
    """Refuse constraints on stages where there are none.

    Raises:
        IrcError: ``pipeline-stages``.
    """
    if options.pins and PIPE not in options.mesh.names:
        for pin in parse_stages(*constraint_text(options.pins)):
            raise IrcError(
                "pipeline-stages",
                f"'{pin}', and the program has no stages",
                where=pin.where,
                because=f"the mesh '{options.mesh or ''}' has no axis '{PIPE}'",
                help='choose a mesh with one, as in mesh="pipe=2", or leave the constraint out',
            )


def _refuse_pins(pins: str) -> None:
    """Refuse constraints where there is nothing to place.

    Raises:
        IrcError: ``mesh-mismatch``.
    """
    text, source = constraint_text(pins)
    uses, chunks = parse_uses(text, source), parse_chunks(text, source)
    statements = (*parse_constraints(text, source), *uses, *chunks)
    if statements:
        raise IrcError(
            "mesh-mismatch",
            f"'{statements[0]}' places something among ranks, and the mesh has one",
            where=statements[0].where,
            help='choose a mesh, as in mesh="data=2,tensor=2", or leave the constraints out',
        )
