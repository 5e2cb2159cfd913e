"""What people tuned by hand, and what planners chose: each model, cluster and batch with the rows.

Rows are those of ``tests/cost/published_runs.json`` that say what ran (:mod:`published_runs`). Some
lack what a prediction of their time needs and the comparison of two plans does not: for these the
same stands in on both sides, and the case says so. Llama 3's own configurations are those of its
paper (arXiv:2407.21783, table 4), without the one of long sequences.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

from irc.search.configurations import PLAIN, Configuration, staged_mesh
from tests.benchmarks.published_models import Sizes
from tests.benchmarks.published_runs import IncompleteError, Row, Run, rows, run_of

HBM2E = 96 * 10**9
"""Bytes of the H100 that torchtitan's runs had; its arithmetic is taken to be the plain one's."""
VOCABULARY = 50304
"""Tokens where a row does not say: those of GPT-2, made even."""
DEVICES = {"H100-96GB": ("H100", HBM2E), "H200": ("H200", None), "H100": ("H100", None)}
"""By how a row's hardware begins that published runs are not predicted on: nodes, and memory."""
SCHEDULES = {
    "ZB-1p": "zb-h1",
    "ZB-2p": "zb-h2",
    "ZB-2p*": "zb-h2",
    "ZB-V": "zb-v",
    "Interleaved1F1B": "interleaved:2",
}
"""irc's names of schedules that published runs are not predicted with."""
OF_PLANNERS = ("aceso_mist", "mist25")
EXPLAINED = ("sc21", "korthikanti22", "llama3", "torchtitan", "torchtitan_a100", "nv_bridge")
"""Sources whose differences are told line by line: Megatron's, and those that ran Llama 3."""
LLAMA3 = Sizes(16384, 128, 8, 53248, 128256, 8192, is_llama=True)


@dataclass(frozen=True)
class Stated:
    """What a row ran.

    Attributes:
        run: in full.
        memory_bytes: of a device, where its cluster's has another; None: the cluster's.
        notes: what stands in for what.
    """

    run: Run
    memory_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """The sequences of a step."""
        return self.run.micro_samples * self.run.micro_batches * self.run.data

    @property
    def configuration(self) -> Configuration:
        """As `irc plan --pin-config` takes it."""
        run = self.run
        mesh = staged_mesh(run.pipe, run.data, run.tensor)
        schedule = run.schedule if run.pipe > 1 else PLAIN
        return Configuration(mesh, run.micro_batches, schedule, run.recompute, run.layout)

    @property
    def is_uneven(self) -> bool:
        """Whether stages differ in what they have, or compute again: no configuration says that."""
        counts = set(self.run.layers_of[1:-1]) | set(self.run.layers_of[:1])
        return bool(self.run.again_of) or (len(counts) > 1 and not self.run.counts_ends)


@dataclass(frozen=True)
class Case:
    """A model, a cluster and a batch, and all that was run of them, fastest first."""

    stated: tuple[Stated, ...]

    @property
    def best(self) -> tuple[Stated, ...]:
        """The fastest: several where nothing says which of them is."""
        return tuple(own for own in self.stated if own.run.step_s == self.run.step_s)

    @property
    def name(self) -> str:
        """The best row's."""
        return self.stated[0].run.id

    @property
    def run(self) -> Run:
        """The best row's."""
        return self.stated[0].run

    @property
    def is_explained(self) -> bool:
        """Whether its differences are told line by line."""
        return self.run.source in EXPLAINED

    def __str__(self) -> str:
        """Return what the table calls it."""
        run, first = self.run, self.stated[0]
        family = "llama" if run.sizes.is_llama else "gpt"
        return (
            f"{run.id} {family} {billions(run):.3g}B {run.devices} {run.kind}"
            f" {first.samples}x{run.sizes.seq}"
        )


def billions(run: Run) -> float:
    """Return the parameters of a model, in units of a thousand million."""
    s = run.sizes
    layer = (2 * s.hidden + 2 * s.kv_heads * s.width) * s.hidden
    layer += (3 if s.is_llama else 2) * s.hidden * s.ffn
    return (run.layers * layer + (1 if s.is_tied else 2) * s.vocab * s.hidden) / 1e9


def cases() -> list[Case]:
    """Return all cases, in the order of the file; Llama 3's own come last."""
    groups: dict[object, list[Stated]] = {}
    for row in rows():
        try:
            own = stated_of(row)
        except IncompleteError:
            continue
        groups.setdefault(_key(own), []).append(own)
    for run in _llama3():
        own = Stated(run)
        groups.setdefault(_key(own), []).append(own)
    return [Case(_distinct(own)) for own in groups.values()]


def _key(own: Stated) -> object:
    run = own.run
    what = run.sizes, run.layers, run.kind, run.devices, own.samples, run.precision
    return *what, own.memory_bytes, run.source in OF_PLANNERS


def _distinct(own: Sequence[Stated]) -> tuple[Stated, ...]:
    """Return the fastest of each configuration, the fastest first."""
    order = sorted(own, key=lambda each: each.run.step_s)
    first: dict[object, Stated] = {}
    for each in order:
        first.setdefault((each.configuration, each.run.layers_of, each.run.again_of), each)
    return tuple(first.values())


def stated_of(row: Row) -> Stated:
    """Return what a row ran, with what stands in for what a comparison does not need.

    Raises:
        IncompleteError: with the reason.
    """
    row, notes = copy.deepcopy(row), list[str]()
    extra = row.setdefault("extra", {})
    if row["kind"] != "training":
        raise IncompleteError("a part of a step, not a step")
    if "fp8" in row.get("precision", "").lower():
        row["precision"] = "bf16"
        notes.append("bf16 for fp8")
    if row["source"] == "zerobubble24":
        extra["partition"] = "the embedding and the head count as layers"
    if "vocab" not in row["model"] and row["source"] in ("zerobubble24", "aceso_mist"):
        row["model"]["vocab"] = VOCABULARY
        notes.append(f"a vocabulary of {VOCABULARY}")
    kind, memory = _device(row, notes)
    extra["async_tp"] = False  # of two plans neither has it
    _torch(row, extra, notes)
    named = extra.get("schedule", "")
    if schedule := SCHEDULES.get(named):
        extra["schedule"] = "1F1B"
    again = _of_operations(row, extra, notes)
    run = run_of(row)
    run = replace(run, kind=kind or run.kind, again_of=again or run.again_of)
    if schedule and run.pipe > 1:
        run = replace(run, schedule=schedule)
    return Stated(run, memory, tuple(notes))


def _device(row: Row, notes: list[str]) -> tuple[str, int | None]:
    """Return the nodes and the memory of a row's devices; name those that runs are known on."""
    hardware = row["hardware"]
    if not hardware.startswith(("H100-80GB", "A100", "L4")):
        for begin, (kind, memory) in DEVICES.items():
            if hardware.startswith(begin):
                row["hardware"] = "H100-80GB SXM"
                if memory:
                    notes.append("an H100 with 96 GB")
                return kind, memory
    return "", None


def _torch(row: Row, extra: Row, notes: list[str]) -> None:
    """Say what rows of torchtitan and of NVIDIA leave to defaults."""
    if row["source"] not in ("torchtitan", "torchtitan_a100", "nv_bridge"):
        return
    if row.get("tp", 1) > 1:
        extra["sequence_parallel"] = True
    if "microbatch" not in row and "global_batch" in row:
        whole = row["global_batch"] // row["dp"]
        row["microbatch"] = 1 if row["pp"] > 1 else whole
        notes.append(f"micro-batches of {row['microbatch']}")
    if "recompute" not in row:
        row["recompute"] = "none"
        notes.append("nothing recomputed")
    layers, stages = row["model"].get("layers", 0), row.get("pp", 1)
    if layers % stages:
        each, more = divmod(layers, stages)
        extra["layer_partitions"] = [each + (s >= stages - more) for s in range(stages)]


def _of_operations(row: Row, extra: Row, notes: list[str]) -> tuple[int, ...]:
    """Return the layers of each stage that are computed again where a row counts operations."""
    if row["source"] != "aceso_mist" or "plan" not in extra or "tp" not in row:
        return ()
    stages, layers = extra["plan"], row["model"]["layers"]
    total = sum(stage["ops"] for stage in stages)
    ends, counts = 0, list[int]()
    for stage in stages:
        before, ends = ends, ends + stage["ops"]
        counts.append(round(layers * ends / total) - round(layers * before / total))
    extra["layer_partitions"] = counts
    row["recompute"] = "per stage"
    notes.append("layers for operations")
    shares = (stage["recompute_ops"] / stage["ops"] for stage in stages)
    return tuple(round(n * share) for n, share in zip(counts, shares, strict=True))


def _llama3() -> list[Run]:
    """Return the runs of Llama 3 405B on 8,192 and 16,384 GPUs, 16 million tokens a step.

    Nothing is recomputed, and 16 ranks take several parts of the model in turns. How many is not
    said: two and four are tried.
    """
    half = "parameters=bfloat16,masters=float32,reduce=float32"
    return [
        Run(
            f"llama3-{data * 128}", "llama3", "Table 4", LLAMA3, 126, "H100", data * 128,
            tensor=8, pipe=16, data=data, micro_samples=1, micro_batches=2048 // data,
            schedule=f"interleaved:{parts}", recompute="none", is_stored_split=False,
            divides_sequences=True, precision=half, counts_ends=True, layers_of=(), again_of=(),
            step_s=0.0,
        )
        for data in (64, 128)
        for parts in (2, 4)
    ]  # fmt: skip
