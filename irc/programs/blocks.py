"""The pieces of a model, planned on the mesh of a stage (:mod:`irc.search.blocks`).

A model of equal layers is cut to three of them, and planned as a stage of a pipeline is: with
placements, functions, kernels, collectives. Each action of a function is known by the op that it
computes, so that what the function takes is shared out among the first ops, the layers, the last
ops, and what is computed of inputs alone, which every stage computes for itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from irc.cluster.load import find_cluster
from irc.dialects.items import ITEM_BYTES
from irc.dialects.placement import AxisPlacement, B, Mesh, Placement, Split
from irc.dialects.types import TensorType, is_float
from irc.pipeline import Options
from irc.plan.load import LoadedPlan
from irc.plan.parts import MICRO_BATCH_KINDS, PIPE, function_of, is_register
from irc.programs.layer_times import COMPUTE, LayerTimes, Places
from irc.programs.short_steps import LayerOps, ShortStep, Where
from irc.programs.stage_plans import plan_stages
from irc.schedule.named import generate
from irc.search.blocks import UPDATE, Blocks, Passed, Piece
from irc.simulate.held import held_bytes
from irc.simulate.mixes import mix_of
from irc.simulate.plan import Contention, Prediction, predict
from irc.training.stage_runs import StageRuns

NUMBER = re.compile(r"\d+")


def blocks_of(short: ShortStep, options: Options, *, splits: bool = False) -> Blocks:
    """Plan the pieces of a model on the mesh of a stage.

    Args:
        short: a step of a few layers; it stays as it is.
        options: of the pipeline of passes; the mesh is the whole one.
        splits: backward is two functions, I and W, as some schedules run them.

    Raises:
        IrcError: what the passes raise.
    """
    ops, inner = short.ops, Mesh(tuple(axis for axis in options.mesh.axes if axis[0] != PIPE))
    runs = [StageRuns(short.micro_batches, merged=not splits)]
    own = replace(options, mesh=inner, within=options.mesh)
    schedule = generate("1f1b", ranks=1, micro_batches=1)
    planned = plan_stages([short.step], runs, own, [""], (), schedule)[0].plans
    cluster = find_cluster(options.cluster).fit(options.mesh)
    host = cluster.device.cores
    contention = Contention() if host else Contention.of(cluster, options.mesh)
    predictions = {
        kind: predict(each.plan, contention=contention) for kind, each in planned.items()
    }
    pieces = _Pieces(planned, ops, predictions).run()
    kinds_of_batch = [kind for kind in MICRO_BATCH_KINDS if kind in planned]
    mixes = {kind: mix_of([predictions[kind]]) for kind in kinds_of_batch}
    mixes[UPDATE] = mix_of([own for kind, own in predictions.items() if kind not in kinds_of_batch])
    passed = [_passed(kind, inner, ops, planned["F"]) for kind in short.handed]
    norm = "norm" in planned
    return Blocks(**pieces, passed=tuple(passed), norm=norm, mixes=mixes)


def _passed(kind: TensorType, mesh: Mesh, ops: LayerOps, forward: LoadedPlan) -> Passed:
    """Return how a value lies that the first layer hands to the second.

    The last value of its rank that the layer saves is it, or lies as it does; where it saves none,
    samples lie over ``data``.
    """
    shape = kind.static_shape()
    outputs = (forward.plan.buffers[index] for index in forward.plan.outputs)
    alike = [
        (max(map(int, NUMBER.findall(buffer.source))), buffer.shape)
        for buffer in outputs
        if ops.layer(buffer.source) == 0
        and buffer.dtype == kind.dtype
        and len(buffer.shape) == len(shape)
        and all(n and whole % n == 0 for n, whole in zip(buffer.shape, shape, strict=True))
    ]
    data = dict(mesh.axes).get("data", 1)
    first = shape[0] // data if shape and shape[0] % data == 0 else shape[0] if shape else 1
    local = max(alike)[1] if alike else (first, *shape[1:])[: len(shape)]
    parts = {dim: n // local[dim] for dim, n in enumerate(shape)}
    placed: list[tuple[str, AxisPlacement]] = []
    for name, size in mesh.axes:
        dim = next((d for d, part in parts.items() if size > 1 and part % size == 0), None)
        if dim is not None:
            parts[dim] //= size
        # Of several axes over one dim, the outer ones come first.
        order = sum(isinstance(p, Split) and p.dim == dim for _, p in placed)
        placed.append((name, B if dim is None else Split(dim, order)))
    num_bytes = float(ITEM_BYTES[kind.dtype] * prod(local))
    return Passed(shape, kind.dtype, Placement(tuple(placed)), num_bytes, is_float(kind.dtype))


class _Pieces:
    """What was planned as one stage, shared out."""

    def __init__(
        self, plans: Mapping[str, LoadedPlan], ops: LayerOps, predictions: Mapping[str, Prediction]
    ) -> None:
        self.plans, self.ops, self.predictions = plans, ops, predictions
        self.kinds = [kind for kind in MICRO_BATCH_KINDS if kind in plans]
        places: tuple[Where, ...] = ("each", "first", "layer", "last")
        self.seconds: dict[Where, dict[str, float]] = {where: {} for where in places}
        self.bare: dict[Where, dict[str, float]] = {where: {} for where in places}
        self.held = dict.fromkeys(places, 0.0)
        self.divided = dict.fromkeys(places, 0.0)
        self.saved: dict[Where, dict[str, float]] = {where: {} for where in places}
        self.arena: dict[Where, dict[str, float]] = {where: {} for where in places}

    def run(self) -> dict[str, Piece]:
        self._weights()
        for kind, each in self.plans.items():
            prediction = self.predictions[kind]
            if kind in self.kinds:
                self._function(kind, prediction)
            else:
                self._once(each, prediction)
        self._registers()
        pieces = {
            where: Piece(
                self.seconds[where],
                self.bare[where],
                self.held[where],
                self.divided[where],
                self.saved[where],
                self.arena[where],
            )
            for where in self.held
        }
        layers = pieces["layer"]
        return {**pieces, "layer": layers.times(1 / self.ops.num_layers)}

    def _weights(self) -> None:
        seen: set[str] = set()
        for each in self.plans.values():
            for index in each.plan.weights:
                buffer = each.plan.buffers[index]
                if buffer.name in seen:
                    continue
                seen.add(buffer.name)
                where = self.ops.holder(buffer.name)
                self.held[where] += buffer.size_bytes
                if any(cut.axis == "data" and cut.kind == "S" for cut in buffer.placement):
                    self.divided[where] += buffer.size_bytes

    def _function(self, kind: str, prediction: Prediction) -> None:
        """Share out a function: an action takes what passes until it ends, since the one before.

        What layers take that are not steady is taken once a stage: a first layer waits for more,
        and a last one for less.
        """
        before, spans = 0.0, list[tuple[float, Where]]()
        places = Places(self.plans[kind].plan, self.ops)
        layers = LayerTimes(places)
        for place, action, start, end in places.of_actions(prediction):
            if action.stream != COMPUTE:
                layers.add(place, action.stream, end - start)
                continue
            where = places.where[place]
            idle = max(0.0, start - before) + (end - start if action.name[:4] == "wait" else 0.0)
            if places.layers[place]:
                layers.add(place, COMPUTE, end - before, idle)
            else:
                _add(self.seconds[where], kind, end - before)
                _add(self.bare[where], kind, idle)
            before = end
            spans.append((end, where))
        if spans and prediction.seconds > before:
            _add(self.seconds[spans[-1][1]], kind, prediction.seconds - before)
        all_s, idle_s = places.count * layers.layer_s, places.count * layers.layer_idle_s
        _add(self.seconds["each"], kind, layers.seconds - all_s)
        _add(self.seconds["layer"], kind, all_s)
        _add(self.bare["each"], kind, layers.idle_s - idle_s)
        _add(self.bare["layer"], kind, idle_s)
        self._alive(kind, prediction, spans)

    def _alive(
        self, kind: str, prediction: Prediction, spans: Sequence[tuple[float, Where]]
    ) -> None:
        """Note the most that is alive while each piece computes."""
        place = 0
        for _, at, alive in held_bytes(prediction.actions, prediction.timeline):
            while place < len(spans) - 1 and spans[place][0] <= at:
                place += 1
            if spans:
                own = self.arena[spans[place][1]]
                own[kind] = max(own.get(kind, 0.0), alive)

    def _once(self, each: LoadedPlan, prediction: Prediction) -> None:
        """Share out what runs once by the bytes that are held: it is moved, and summed."""
        busy = prediction.timeline.busy(prediction.actions).get("compute", 0.0)
        total = sum(self.held.values())
        for where, own in self.held.items():
            part = own / total if total else 0.0
            _add(self.seconds[where], UPDATE, part * prediction.seconds)
            _add(self.bare[where], UPDATE, part * max(0.0, prediction.seconds - busy))
            _add(self.arena[where], UPDATE, part * each.plan.arena_bytes)

    def _registers(self) -> None:
        """Share out what functions hand on."""
        makers: dict[str, str] = {}
        readers: dict[str, str] = {}
        for kind in self.kinds:
            own = function_of(self.plans[kind].plan)
            makers |= dict.fromkeys(own.makes, kind)
            readers |= dict.fromkeys(own.reads, kind)
        for kind in self.kinds:
            plan = self.plans[kind].plan
            for buffer in (plan.buffers[index] for index in plan.outputs):
                if is_register(buffer) and buffer.name in readers:
                    where = self.ops.where(buffer.source)
                    pair = f"{makers[buffer.name]}-{readers[buffer.name]}"
                    _add(self.saved[where], pair, buffer.size_bytes)


def _add(own: dict[str, float], name: str, number: float) -> None:
    own[name] = own.get(name, 0.0) + number
