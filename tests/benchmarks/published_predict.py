"""The step of a published run, predicted: the real model is captured, its configuration pinned.

What `irc plan --pin-config` prices is the same: pieces of a few layers are planned on the mesh of a
stage with the run's layout, micro-batch and recompute (:mod:`irc.programs.blocks`), the stages of
its cut are put together from them, and its schedule is simulated on the whole cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch

from irc.calls.pipelined import stages_recipe
from irc.calls.step_plan import captured_step
from irc.cluster.load import find_cluster
from irc.dialects.placement import Mesh, Split
from irc.pipeline import Options
from irc.programs.blocks import blocks_of
from irc.programs.make import split_option
from irc.programs.schedules import schedule_for
from irc.programs.short_steps import short_step
from irc.search.blocks import UPDATE, Blocks, Content, Passed, Piece
from irc.search.configurations import FULL, NOTHING, staged_mesh
from irc.simulate.assembled import simulate_blocks
from irc.training.precision import precision_of
from irc.training.recipe import Recipe
from tests.benchmarks.published_models import model_of
from tests.benchmarks.published_runs import Run
from tests.benchmarks.published_systems import NONE, Extra, layer_weights, of_head, of_layer
from tests.benchmarks.published_waits import gathered_s, messages, waiting

CAPTURED = 5
"""Layers of the model that is captured: few, and enough to be seen as equal."""
NODE = 8
"""Devices of a node."""


@dataclass(frozen=True)
class Stage(Content):
    """What a stage computes, and how many of its layers run forward again for their backward.

    Attributes:
        waits: seconds of messages after its forward and its backward pass.
    """

    again: int = 0
    waits: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Published(Blocks):
    """Pieces with what the systems that published do otherwise.

    A layer that is recomputed runs forward again as a whole: irc's own policy ``full`` leaves out
    what no gradient reads, the last product of a layer, as none of these systems does.

    Attributes:
        of_layer, of_head: what each takes more than irc's kernels.
        of_waiting: what a layer's functions take more, as what irc overlaps is waited for.
        of_sums: what sums of gradients take more, of a layer and of an embedding.
    """

    of_layer: Extra = NONE
    of_head: Extra = NONE
    of_waiting: Mapping[str, float] = field(default_factory=dict[str, float])
    of_sums: tuple[float, float] = (0.0, 0.0)

    def stage(self, content: Content) -> Piece:
        """Return what a stage takes."""
        # What runs again is added here, to layers as they are.
        piece, layers = super().stage(replace(content, again=0)), content.layers
        again = content.again if isinstance(content, Stage) else 0
        forward, backward = layers * self.of_layer.forward, layers * self.of_layer.backward
        backward += again * self.of_layer.forward
        if content.has_last:
            forward, backward = forward + self.of_head.forward, backward + self.of_head.backward
        more = again * self.layer.seconds["F"]
        waits = content.waits if isinstance(content, Stage) else (0.0, 0.0)
        own = [layers * self.of_waiting.get(kind, 0.0) for kind in ("F", "B")]
        seconds = {
            **piece.seconds,
            "F": piece.seconds["F"] + forward + own[0] + waits[0],
            "B": piece.seconds["B"] + more + backward + own[1] + waits[1],
            UPDATE: piece.seconds.get(UPDATE, 0.0)
            + layers * self.of_sums[0]
            + (content.has_first + content.has_last) * self.of_sums[1],
        }
        return replace(piece, seconds=seconds)


@dataclass
class Predictor:
    """Predicts runs; pieces that several runs share are planned once."""

    _known: dict[object, Blocks] = field(default_factory=dict[object, Blocks])

    def step_s(self, run: Run) -> float:
        """Return the seconds of a step."""
        device = find_cluster(cluster_name(run.kind, 1)).device
        own = self.blocks(run)
        known = {each.name: getattr(own, each.name) for each in fields(own)}
        known["passed"] = cut_for(run, own.passed)
        more = of_layer(run, device), of_head(run, device), waiting(run, own.layer, device)
        sums = sums_of(run)
        blocks = Published(
            **known, of_layer=more[0], of_head=more[1], of_waiting=more[2], of_sums=sums
        )
        schedule = schedule_for(run.schedule, run.pipe, run.micro_batches)
        parts = len(schedule.paths[0])
        inner, cluster = mesh_of(run, 1), find_cluster(cluster_name(run.kind, run.devices))
        waits = messages(run, blocks.passed, schedule, inner, cluster)
        contents: list[Content] = [
            Stage(each.layers, each.has_first, each.has_last, each.again, between)
            for each, between in zip(
                stages_of(run, parts) or best_stages(run, blocks), waits, strict=True
            )
        ]
        return simulate_blocks(blocks, contents, schedule, inner, cluster).simulation.seconds

    def blocks(self, run: Run) -> Blocks:
        """Return the pieces of a run's model."""
        key = block_key(run)
        if key not in self._known:
            self._known[key] = planned(run)
        return self._known[key]


def cut_for(run: Run, passed: Sequence[Passed]) -> tuple[Passed, ...]:
    """Return what stages hand on as these systems send it: a rank of ``tensor`` its part of rows.

    The parts are gathered inside the node (arXiv:2104.04473, section 4.1; DeepSpeed's partitioned
    tensors), which takes a tenth of the time.
    """
    cut: list[Passed] = []
    for each in passed:
        samples, rows, *rest = each.shape
        whole = run.tensor > 1 and not isinstance(each.placement["tensor"], Split)
        rows = max(1, rows // run.tensor) if whole else rows
        cut.append(replace(each, shape=(samples, rows, *rest)))
    return tuple(cut)


def sums_of(run: Run) -> tuple[float, float]:
    """Return what sums of the gradients of a layer and of an embedding take more than irc's."""
    mesh, cluster = mesh_of(run, 1), find_cluster(cluster_name(run.kind, run.devices))
    size = mesh.num_ranks
    own = find_cluster(cluster_name(run.kind, size)) if size < run.devices else cluster
    tokens = run.sizes.vocab * run.sizes.hidden / run.tensor
    layer, ends = (gathered_s(run, mesh, own, count) for count in (layer_weights(run), tokens))
    return layer, ends


def policy_of(run: Run) -> str:
    """Return the policy under which pieces are planned: what runs again whole is added to them."""
    return NOTHING if run.recompute == FULL else run.recompute


def block_key(run: Run) -> object:
    """Return what the pieces of a run depend on."""
    ranks, batch = (run.pipe, run.tensor, run.data), (run.micro_samples, run.micro_batches)
    return run.sizes, run.kind, ranks, batch, policy_of(run), run.layout, run.precision


def planned(run: Run) -> Blocks:
    """Plan the pieces of a run's model on the mesh of a stage."""
    count, recompute = run.micro_batches, policy_of(run)
    module = model_of(run.sizes, CAPTURED, torch.bfloat16)
    shape = run.micro_samples * run.data * count, run.sizes.seq
    ids = torch.zeros(shape, dtype=torch.int64, device="meta")
    recipe = Recipe(micro_batches=count, precision=precision_of(run.precision), recompute=recompute)
    with torch.no_grad():
        captured, split = captured_step(module, None, recipe, (ids, ids.clone()), {})
    recipe = stages_recipe(module, captured, replace(recipe, split=split))
    options = Options(
        mesh=mesh_of(run, run.pipe),
        cluster=cluster_name(run.kind, run.devices),
        layout=run.layout,
        regather=run.is_stored_split,
        sums=recipe.precision.sums,
        # None of the systems cuts a collective so that a part of it is sent beside a product.
        passes=("no-chunk-collectives",),
        brief=True,
    )
    short = short_step(captured.program, recipe, split_option(options, recipe))
    assert short is not None, run.id
    return blocks_of(short, options)


def mesh_of(run: Run, pipe: int) -> Mesh:
    """Return the mesh of a run with so many stages."""
    return staged_mesh(pipe, run.data, run.tensor)


def cluster_name(kind: str, devices: int) -> str:
    """Return the name of the smallest cluster of whole nodes."""
    if devices <= NODE:
        return f"1x{next(size for size in (1, 2, 4, 8) if size >= devices)}x{kind}"
    return f"{-(-devices // NODE)}x{NODE}x{kind}"


def stages_of(run: Run, parts: int) -> list[Content]:
    """Return what each stage computes; empty where the cut is not stated."""
    if not run.layers_of:
        return []
    chunks = parts // run.pipe
    counts = [run.layers // parts] * parts if chunks > 1 else list(run.layers_of)
    again = run.again_of or (counts if run.recompute == FULL else (0,) * parts)
    last = parts - 1
    return [Stage(n, s == 0, s == last, again[s]) for s, n in enumerate(counts)]


def best_stages(run: Run, blocks: Blocks) -> list[Content]:
    """Return the cut whose slowest stage is the fastest, where the last one may have fewer layers.

    The others share the rest as evenly as it goes, the later ones with one more.
    """
    before, last = run.pipe - 1, run.pipe - 1

    def cut(of_last: int) -> list[Content]:
        each, more = divmod(run.layers - of_last, before)
        counts = [each + (s >= before - more) for s in range(before)]
        return [Content(n, s == 0, s == last) for s, n in enumerate([*counts, of_last])]

    cuts = [cut(of_last) for of_last in range(run.layers // run.pipe + 1)]
    return min(cuts, key=lambda own: max(_steady_s(blocks.stage(own_)) for own_ in own))


def _steady_s(piece: Piece) -> float:
    """Return the seconds of a micro-batch."""
    return piece.seconds["F"] + piece.seconds["B"]
