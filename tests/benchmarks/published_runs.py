"""Published training runs: which of them are complete enough to predict, and what they ran.

A row (``tests/cost/published_runs.json``) becomes a `Run`, or the reason why it stays out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.benchmarks.published_models import Sizes

FILE = Path(__file__).resolve().parents[1] / "cost" / "published_runs.json"
Row: TypeAlias = dict[str, Any]

CLUSTERS = {
    "A100-80GB SXM (Selene": "A100",
    "A100-80GB SXM, 4x100Gb OPA/node": "A100-OPA",
    "A100-80GB SXM": "A100",
    "A100-40GB SXM": "A100-40-HDR",
    "H100-80GB SXM": "H100",
    "L4-24GB PCIe": "L4",
}
"""By how a row's hardware begins, the kind of the nodes."""
STATED = {
    "microbatch": "size of a micro-batch not stated",
    "global_batch": "batch not stated",
    "tp": "degrees differ by stage, or are not stated",
    "dp": "degrees differ by stage, or are not stated",
    "pp": "degrees differ by stage, or are not stated",
}
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "seq")
WITHOUT_FLASH = ("sc21", "korthikanti22", "zerobubble24", "bloom", "aceso_mist")
"""Systems of before flash attention, or that ran without."""
FIXED_FORMULA = "2022-02-21"
"""From then on BLOOM's formula counts attention and the head."""


@dataclass(frozen=True)
class Run:
    """A training run that was measured.

    Attributes:
        id, source, table: of the row.
        sizes, layers: of the model.
        kind: of the nodes, as cluster names have it.
        devices: of the whole run.
        tensor, pipe, data: degrees.
        micro_samples, micro_batches: of a rank of ``data``, of a step.
        schedule: by irc's name.
        recompute: by irc's policy.
        is_stored_split: parameters lie in parts over ``data``.
        divides_sequences: over ``tensor``, too.
        precision: as `irc plan --precision` takes it.
        counts_ends: the embedding and the head count as a layer each in the cut.
        layers_of: each stage, where that is stated.
        again_of: layers of each stage that are recomputed, where that differs.
        step_s: measured.
    """

    id: str
    source: str
    table: str
    sizes: Sizes
    layers: int
    kind: str
    devices: int
    tensor: int
    pipe: int
    data: int
    micro_samples: int
    micro_batches: int
    schedule: str
    recompute: str
    is_stored_split: bool
    divides_sequences: bool
    precision: str
    counts_ends: bool
    layers_of: tuple[int, ...]
    again_of: tuple[int, ...]
    step_s: float

    @property
    def layout(self) -> str:
        """What the axes are for, by name."""
        words = [("fsdp" if self.is_stored_split else "ddp")] if self.data > 1 else []
        words += ["tp"] if self.tensor > 1 else []
        words += ["sp"] if self.tensor > 1 and self.divides_sequences else []
        return "+".join(words)

    @property
    def stage_ranks(self) -> int:
        """Ranks of a stage."""
        return self.data * self.tensor


class IncompleteError(ValueError):
    """Says why a row cannot be predicted."""


def rows() -> list[Row]:
    """Return all rows as they were published."""
    return json.loads(FILE.read_text(encoding="utf-8"))["rows"]


def run_of(row: Row) -> Run:
    """Return what a row ran.

    Raises:
        IncompleteError: with the reason.
    """
    extra, model, source = row.get("extra", {}), row["model"], row["source"]
    _check(row, extra, model)
    layers, pipe, data = model["layers"], row["pp"], row["dp"]
    micro = row["microbatch"]
    count, left = divmod(row["global_batch"], data * micro)
    if left:
        raise IncompleteError("the batch is no multiple of the micro-batches")
    sizes = Sizes(
        *(model[key] for key in ("hidden", "heads", "kv_heads", "ffn", "vocab", "seq")),
        is_llama="llama" in model["name"].lower(),
        is_flash=extra.get("flash_attention", source not in WITHOUT_FLASH),
        is_tied="llama" not in model["name"].lower() and pipe == 1,
    )
    counts_ends = "embedding" in str(extra.get("partition", "")) or row["id"] == "bloom-150"
    return Run(
        row["id"],
        source,
        row["table"],
        sizes,
        layers,
        _kind(row),
        row["n_gpus"],
        row["tp"],
        pipe,
        data,
        micro,
        count,
        _schedule(row, extra),
        _recompute(row),
        extra.get("sharding") == "FULL_SHARD" or "fsdp" in extra,
        bool(extra.get("sequence_parallel")),
        _precision(row),
        counts_ends,
        _layers_of(layers, pipe, extra, counts_ends=counts_ends),
        tuple(extra.get("gradient_checkpointing", ())),
        step_s(row),
    )


def _check(row: Row, extra: Row, model: Row) -> None:
    """Raise IncompleteError where something is missing that a prediction needs."""
    if row["kind"] != "training":
        raise IncompleteError("a part of a step, not a step")
    if "value" not in row:
        raise IncompleteError("it ran out of memory: there is no time")
    if row["metric"].startswith("speedup"):
        raise IncompleteError("a ratio of two runs")
    name = model["name"]
    if any(word in name for word in ("DeepSeek", "Qwen3", "OSS", "MoE", "Mixtral")):
        raise IncompleteError("a mixture of experts whose sizes are not stated")
    if "fp8" in row.get("precision", "").lower():
        raise IncompleteError("fp8, which irc does not compute in")
    if extra.get("async_tp"):
        raise IncompleteError("asynchronous tensor parallelism")
    for key, reason in STATED.items():
        if key not in row:
            raise IncompleteError(reason)
    if any(key not in model for key in SIZES):
        raise IncompleteError("sizes of the model not stated")
    if "vocab" not in model:
        raise IncompleteError("size of the vocabulary not stated")
    if "recompute" not in row:
        raise IncompleteError("recompute not stated")
    if row.get("cp", 1) > 1:
        raise IncompleteError("context parallelism")
    if (method := extra.get("vocab_method", "base")) not in ("base", "baseline", "redis"):
        interlaced = method == "interlaced"
        raise IncompleteError("interlaced vocabulary, a schedule that irc has not" if interlaced
                         else "vocabulary in slices, without times of its passes")  # fmt: skip


def _kind(row: Row) -> str:
    for begin, kind in CLUSTERS.items():
        if row["hardware"].startswith(begin):
            return kind
    raise IncompleteError("devices that irc has no figures of")


def _schedule(row: Row, extra: Row) -> str:
    chunks = row.get("interleave", 1)
    if row["pp"] == 1:
        return "1f1b"
    named = extra.get("schedule", "1F1B")
    if named not in ("1F1B", "1F1B-I"):
        raise IncompleteError(f"schedule {named}")
    return f"interleaved:{chunks}" if chunks > 1 else "1f1b"


def _recompute(row: Row) -> str:
    said = row["recompute"]
    for policy in ("full", "none"):
        if said.startswith(policy):
            return policy
    if said.startswith("per stage"):
        return "none"
    if said.startswith("selective"):
        if "op" in said:
            return "every-second-matmul"
        if "layer" in said or "toml" in said:
            return "none; every 2 = full"
        return "selective"
    raise IncompleteError("recompute by operation, of which only the number is stated")


def _precision(row: Row) -> str:
    # Half parameters are what products read and ranks gather; masters are of the optimiser.
    half = "parameters=bfloat16,masters=float32"
    is_summed_so = row.get("precision", "").startswith("bf16") and row["source"] != "mpt"
    return f"{half},reduce=float32" if is_summed_so else half


def _layers_of(layers: int, pipe: int, extra: Row, *, counts_ends: bool) -> tuple[int, ...]:
    if stated := extra.get("layer_partitions"):
        return tuple(stated)
    if extra.get("vocab_method") == "redis":
        return ()
    each, left = divmod(layers + (2 if counts_ends else 0), pipe)
    if left:
        raise IncompleteError("layers do not divide by stages, and the cut is not stated")
    if counts_ends:
        return (each - 1, *[each] * (pipe - 2), each - 1)
    return (each,) * pipe


def step_s(row: Row) -> float:
    """Return the seconds of a step, by the unit and the formula of the source.

    Raises:
        IncompleteError: where nothing says.
    """
    model, value, devices = row["model"], row["value"], row["n_gpus"]
    match row["metric"]:
        case "step_time_s":
            return value
        case "step_time_ms":
            return value / 1e3
        case "tokens_per_s_per_gpu":
            return row["global_batch"] * model["seq"] / (value * devices)
        case "samples_per_gpu_per_s":
            return row["global_batch"] / (value * devices)
        case "achieved_tflops_per_gpu_hw" | "hw_tflops_per_gpu":
            early = row.get("extra", {}).get("date", FIXED_FORMULA) < FIXED_FORMULA
            return again_flops(row, products_only=early) / (value * 1e12 * devices)
        case "mfu_pct":
            return model_flops(row) / (value / 100 * 312e12 * devices)
        case other:
            raise IncompleteError(f"a metric of which no time follows: {other}")


def model_flops(row: Row) -> float:
    """Return the arithmetic of a step of GPT (arXiv:2205.05198, appendix A)."""
    m = row["model"]
    h, s, layers = m["hidden"], m["seq"], m["layers"]
    plain = 72 * row["global_batch"] * s * layers * h * h
    return plain * (1 + s / (6 * h) + m["vocab"] / (12 * layers * h))


def again_flops(row: Row, *, products_only: bool) -> float:
    """Return the arithmetic of a step with everything recomputed (arXiv:2104.04473, eq. 3)."""
    m = row["model"]
    h, s, layers = m["hidden"], m["seq"], m["layers"]
    plain = 96 * row["global_batch"] * s * layers * h * h
    return plain if products_only else plain * (1 + s / (6 * h) + m["vocab"] / (16 * layers * h))
