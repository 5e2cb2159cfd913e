"""One case of the search's quality: what irc plans, and what was stated, by one judge.

The search is not told what was stated. Both are planned whole and simulated under the same prices,
with irc's own kernels, within the same memory: that of the device, or what irc counts for what was
stated where that is more. Stages that differ in what they have, or compute again, no configuration
says: these are put together from pieces of the model, and held against the price from pieces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from irc.calls.forward_passes import ForwardPasses
from irc.calls.step_judge import StepJudge
from irc.choices import recipe_option
from irc.cluster.load import find_cluster
from irc.errors import IrcError
from irc.frontends.torch.in_precision import store
from irc.pipeline import Options
from irc.search.ahead import Ahead
from irc.search.blocks import Content
from irc.search.configurations import FULL, NOTHING, PIPE, Configuration
from irc.search.differences import difference
from irc.search.everything import Outcome, Search
from irc.search.judge import BOUNDLESS, OF_CONFIGURATION, OF_MEMORY, Judged, Verdict
from irc.search.objections import objection
from irc.simulate.assembled import simulate_blocks
from tests.benchmarks.published_models import model_of
from tests.benchmarks.published_predict import NODE, cluster_name
from tests.benchmarks.published_runs import Run
from tests.benchmarks.search_cases import Case, Stated


@dataclass
class Answer:
    """What came of a case.

    Attributes:
        stated, chosen: configurations, in words.
        stated_s, chosen_s: seconds of their steps, by plans, or both by pieces.
        stated_gb, chosen_gb: that a device holds, in 1e9 bytes.
        fits: what was stated fits into the memory, as irc counts it; otherwise both may hold as
            much as it does.
        by_pieces: both are put together from pieces.
        wrong: what an expert would call wrong with what was chosen; empty: nothing.
        search_s: wall clock of the search.
        lines: decision by decision, what the difference comes of.
        error: why there is no comparison; empty where there is one.
    """

    stated: str = ""
    chosen: str = ""
    stated_s: float = 0.0
    chosen_s: float = 0.0
    stated_gb: float = 0.0
    chosen_gb: float = 0.0
    fits: bool = True
    by_pieces: bool = False
    wrong: str = ""
    search_s: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    error: str = ""


@dataclass(frozen=True)
class Priced:
    """What was stated, and what it takes."""

    configuration: Configuration
    verdict: Verdict
    fits: bool
    by_pieces: bool


def answered(case: Case, *, explains: bool, every: bool = False) -> Answer:
    """Search a case, and hold what was stated against what was chosen.

    Args:
        case: to search.
        explains: say line by line what the difference comes of.
        every: hold all that was run against it, not the fastest alone.
    """
    judge = judge_of(case)
    try:
        own = priced(judge, case.stated if every else case.best)
        if not own.fits:
            # Both by one count: what was stated ran, whatever irc counts for it.
            judge = judge.within(own.verdict.num_bytes)
        begin = time.perf_counter()
        outcome = Search(judge, judge.cluster).run(case.run.devices)
        search_s = time.perf_counter() - begin
    except IrcError as error:
        return Answer(
            stated=str(case.stated[0].configuration), error=f"{error.code}: {error.message}"
        )
    chosen = outcome.best
    assert chosen.verdict is not None
    verdict = _from_pieces(judge, chosen) if own.by_pieces else chosen.verdict
    is_explained = explains and not own.by_pieces and own.configuration != chosen.configuration
    return Answer(
        str(own.configuration),
        str(chosen.configuration),
        own.verdict.step_s,
        verdict.step_s,
        own.verdict.num_bytes / 1e9,
        chosen.verdict.num_bytes / 1e9,
        own.fits,
        own.by_pieces,
        wrong(chosen.configuration, case),
        search_s,
        list(_lines(judge, own, outcome)) if is_explained else [],
    )


def judge_of(case: Case) -> StepJudge:
    """Return what plans the steps of a case's model, of the whole batch, within a device's memory.

    Nothing of the memory is kept back: what was stated ran on all of it.
    """
    run, first = case.run, case.stated[0]
    name = cluster_name(run.kind, run.devices)
    module = model_of(run.sizes, run.layers, torch.bfloat16)
    ids = torch.zeros((first.samples, run.sizes.seq), dtype=torch.int64, device="meta")
    recipe = recipe_option(module, None, "adamw", "", 1, "none", run.precision, "")
    memory = first.memory_bytes or int(find_cluster(name).device.memory_bytes)
    options = Options(cluster=name, memory_bytes=memory, sums=recipe.precision.sums)
    store(module, recipe.precision)
    forwards = ForwardPasses(module, (ids, ids.clone()), {}, recipe, None)
    return StepJudge(forwards, options=options, ahead=Ahead())


def priced(judge: StepJudge, stated: tuple[Stated, ...]) -> Priced:
    """Return the fastest of what was stated that fits; where none does, of all."""
    own = [_priced(judge, each) for each in stated]
    return min(own, key=lambda each: (not each.fits, each.verdict.step_s))


def _priced(judge: StepJudge, stated: Stated) -> Priced:
    own = stated.configuration
    if stated.is_uneven and stated.run.again_of:
        verdict = of_stages(judge, own, stated.run)
        return Priced(own, verdict, verdict.num_bytes <= (judge.options.memory_bytes or 0), True)
    try:
        return Priced(own, judge.judge(own), fits=True, by_pieces=False)
    except IrcError as error:
        if error.code not in OF_MEMORY:
            raise
    return Priced(own, judge.within(BOUNDLESS).judge(own), fits=False, by_pieces=False)


def of_stages(judge: StepJudge, own: Configuration, run: Run) -> Verdict:
    """Return what a step of stages takes, each with its own layers, some of them computed again."""
    steps = judge.prices.steps
    plain = replace(own, recompute=NOTHING)
    blocks = steps.pieces.of(plain, splits=False)
    whole = steps.pieces.of(replace(own, recompute=FULL), splits=False)
    assert blocks is not None
    assert whole is not None
    blocks = replace(blocks, again=whole.layer)
    last = run.pipe - 1
    again = run.again_of or (0,) * run.pipe
    contents = [
        Content(layers, stage == 0, stage == last, min(layers, again[stage]))
        for stage, layers in enumerate(run.layers_of)
    ]
    cluster = judge.cluster.fit(own.mesh)
    step = simulate_blocks(blocks, contents, steps.schedule(own), own.inner, cluster)
    return Verdict(step.simulation.seconds, int(max(step.most_bytes)))


def _from_pieces(judge: StepJudge, chosen: Judged) -> Verdict:
    """Return the price of what was chosen."""
    assert chosen.verdict is not None
    if chosen.priced_s is not None:
        return replace(chosen.verdict, step_s=chosen.priced_s)
    return judge.within(BOUNDLESS).price(chosen.configuration) or chosen.verdict


def wrong(own: Configuration, case: Case) -> str:
    """Return what an expert would call wrong with a plan; empty: nothing.

    Matrices or sequences that are divided over nodes, where there are layers for stages; a batch
    that no such ranks and micro-batches have; stages without a layer; heads that do not divide.
    """
    run, samples = case.run, case.stated[0].samples
    if run.layers > 1 and (
        said := objection(own, find_cluster(cluster_name(run.kind, run.devices)))
    ):
        return said
    tensor, data = (own.mesh.size(axis) if axis in own.mesh.names else 1
                    for axis in ("tensor", "data"))  # fmt: skip
    if tensor > NODE:
        return f"tensor={tensor} on nodes of {NODE}"
    if run.sizes.heads % tensor:
        return f"tensor={tensor} for {run.sizes.heads} heads"
    if samples % (data * own.micro_batches):
        return f"{samples} samples for {data} times {own.micro_batches} micro-batches"
    if own.pipe > run.layers:
        return f"{PIPE}={own.pipe} for {run.layers} layers"
    if own.mesh.num_ranks != run.devices:
        return f"{own.mesh.num_ranks} ranks on {run.devices} devices"
    return ""


def _lines(judge: StepJudge, stated: Priced, outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Yield the decisions from what was stated to what was chosen."""
    known = {own.configuration: own for own in outcome.judged}

    def judged(own: Configuration) -> Judged:
        if own not in known:
            try:
                known[own] = Judged(own, judge.judge(own))
            except IrcError as error:
                if error.code not in OF_CONFIGURATION:
                    raise
                known[own] = Judged(own, error=error)
        return known[own]

    before = Judged(stated.configuration, stated.verdict)
    for line in difference(before, outcome.best, judged).decisions:
        own = asdict(line)
        own["num_gb"] = line.verdict.num_bytes / 1e9
        del own["verdict"]
        yield own
