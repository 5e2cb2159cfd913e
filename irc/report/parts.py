"""What ``irc compile`` and ``irc explain plan`` say of a plan of several programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from irc.cluster.load import find_cluster
from irc.plan import json_text
from irc.plan.parts import PartsPlan
from irc.plan.training import SEARCHED, OrderFacts
from irc.report.kernels_for import kernels_note
from irc.report.layer_names import ranks_text
from irc.report.notation import NOTATIONS
from irc.report.parts_facts import PartsFactsReport, gather_parts
from irc.report.streams import streams_table
from irc.report.table import counted, pairs, percent, seconds, size, table
from irc.search.by_function import FunctionSeconds


def parts_summary(plan: PartsPlan, source: str) -> str:
    """Describe a plan in some lines: what ``irc compile`` prints."""
    facts = gather_parts(plan)
    lines = [*pairs([("program", source)]), *_head(facts), *_stages(facts)]
    carried = sum(channel.bytes for channel in facts.channels)
    backend = next((p.plan.backend for part in plan.parts for p in part.values()), "")
    note = kernels_note(backend, find_cluster(facts.cluster))
    lines += pairs([
        *([("note", note)] if note else []),
        ("channels", f"{len(facts.channels)}, {size(carried)} a micro-batch"),
        ("predicted", f"{seconds(facts.predicted_s)} a step"),
        ("hash", facts.hash[:16]),
    ])  # fmt: skip
    return "\n".join(lines)


def _head(facts: PartsFactsReport) -> list[str]:
    ranks = len({rank for part in facts.parts for rank in part.ranks})
    stages = sum(len(part.stages) for part in facts.parts)
    rows = [
        ("mesh", f"{facts.mesh or 'one device'} ({counted(ranks, 'rank')}), priced for "
         f"{facts.cluster}"),
        ("schedule", f"{facts.schedule}, {facts.micro_batches:,} micro-batch"
         f"{'es' * (facts.micro_batches != 1)}, {counted(stages, 'stage')}"),
    ]  # fmt: skip
    if facts.order is not None:
        rows.append(("", _order_text(facts.order)))
    if facts.offload:
        own = [each for part in facts.parts for each in part.registers]
        moved = sum(each.moves * each.bytes for each in own)
        rows.append(("offload", f"{facts.offload}: {size(moved)} a step moved out and back, "
                     f"{size(sum(each.outside * each.bytes for each in own))} there"))  # fmt: skip
    return pairs(rows)


def _order_text(order: OrderFacts) -> str:
    """Say which order was chosen, and what the step takes in those that it was compared with."""
    rest = ", ".join(f"{name} {seconds(taken)}" for name, taken in order.named.items())
    ahead = f", messages {order.ahead} actions ahead" if order.ahead > 1 else ""
    return (
        f"{order.origin}{ahead}: {seconds(order.seconds)}, the best of {order.tried} orders"
        f"{f' ({rest})' if rest else ''}"
    )


def _stages(facts: PartsFactsReport) -> list[str]:
    heads = ("stage", "ranks", "parameters", "weights", "states", "gradients", "registers",
             "arena", "idle", "layers")  # fmt: skip
    rows = [
        (
            ranks_text(part.stages),
            ranks_text(part.ranks),
            f"{part.num_parameters:,}",
            size(part.parameter_bytes),
            size(part.state_bytes),
            size(part.accumulator_bytes),
            size(part.register_bytes),
            size(part.arena_bytes),
            percent(part.idle, 1.0),
            ", ".join(part.layers),
        )
        for part in facts.parts
    ]
    return table(heads, rows, right="rlrrrrrrr")


def explain_parts(plan: PartsPlan, *, as_json: bool = False, placements: str = "") -> str:
    """Write what ``irc explain plan`` says of a plan of several programs.

    Args:
        plan: in stages.
        as_json: print all facts as JSON.
        placements: the notation of placements, ``oneflow`` or ``dtensor``; with it those of weights
            are shown, too.
    """
    facts = gather_parts(plan, placements=placements)
    if as_json:
        return json.dumps(asdict(facts), indent=1)
    lines = [*_head(facts), *pairs([("hash", facts.hash[:16])]), "", "stages, bytes of a rank"]
    lines += _stages(facts)
    for part in facts.parts if any(each.fixed for each in facts.parts) else ():
        how = f"fixed by {part.fixed}" if part.fixed else "chosen"
        lines.append(f"  stage {ranks_text(part.stages)} was {how}")
    for name, parts in facts.shared.items():
        lines.append(f"  {name} is in stages {ranks_text(parts)}: its gradients are added up")
    lines += ["", "functions"]
    lines += table(
        ("stage", "function", "predicted", "runs a step", "kernels", "launches", "collectives",
         "arena"),
        [
            (
                ranks_text(part.stages), each.kind, seconds(each.predicted_s),
                f"{each.runs}",
                f"{each.kernels}", f"{each.launches}", f"{each.collectives}",
                size(each.arena_bytes),
            )
            for part in facts.parts for each in part.functions
        ],
        right="rlrrrrrr",
    )  # fmt: skip
    if placements:
        lines += _weights_table(facts, placements)
    lines += _searched(plan)
    lines += ["", "channels, bytes of a micro-batch over all ranks"]
    lines += table(
        ("value", "from", "to", "type", "lies there as", "is wanted as", "bytes"),
        [
            (c.name, f"{c.producer}", f"{c.consumer}", _type(c.dtype, c.shape), c.before, c.after,
             size(c.bytes))
            for c in facts.channels
        ],
        right="lrrlllr",
    )  # fmt: skip
    lines += ["", "registers of a rank"]
    lines += _registers_table(facts)
    lines += ["", f"predicted   {seconds(facts.predicted_s)} a step"]
    lines += streams_table(facts.streams, facts.predicted_s)
    return "\n".join(lines)


def _weights_table(facts: PartsFactsReport, notation: str) -> list[str]:
    heads = ("stage", "name", "role", "of a rank", NOTATIONS[notation], "a rank holds")
    rows = [
        (
            ranks_text(part.stages), row.names, row.role, _type(row.dtype, row.shape),
            getattr(row, notation), size(row.bytes_per_rank),
        )
        for part in facts.parts for row in part.weights
    ]  # fmt: skip
    axes = f", on the mesh {facts.mesh} without pipe" if len(facts.mesh.split(",")) > 1 else ""
    return ["", f"weights{axes}", *table(heads, rows, right="rllllr")]


def _registers_table(facts: PartsFactsReport) -> list[str]:
    heads, right = ["stage", "register", "type", "slots", "bytes"], "rllrr"
    moved = [f"on the {facts.offload}", "moves"] if facts.offload else []
    rows = [
        (f"{r.stage}", r.name, _type(r.dtype, r.shape), f"{r.slots}", size(r.slots * r.bytes),
         f"{r.outside or ''}", f"{r.moves or ''}")[: len(heads) + len(moved)]
        for part in facts.parts for r in part.registers
    ]  # fmt: skip
    return table([*heads, *moved], rows, right=right + "r" * len(moved))


@dataclass(frozen=True)
class _Searched:
    """The content of report/search.json: of each stage, its functions by kind."""

    stages: tuple[Mapping[str, FunctionSeconds], ...]


def _searched(plan: PartsPlan) -> list[str]:
    """Say what the search of each stage made of its functions: their sum is what it minimised."""
    if SEARCHED not in plan.texts:
        return []
    data = json_text.parse_object(plan.texts[SEARCHED], SEARCHED)
    searched: _Searched = json_text.decode(_Searched, data, SEARCHED)
    rows = [
        (f"{stage}", kind, seconds(own.seconds), f"{own.runs}", seconds(own.runs * own.seconds))
        for stage, functions in enumerate(searched.stages)
        for kind, own in functions.items()
    ]
    heads = ("stage", "function", "a run", "runs a step", "a step")
    return ["", "as searched, by function", *table(heads, rows, right="rlrrr")]


def _type(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
