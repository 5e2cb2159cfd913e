"""A configuration as other trainers' settings: what :mod:`irc.search.stated` reads, written.

What a trainer has no word for is refused by name, so that what is written reads back as the same
configuration. Where the search places each op by itself (a configuration without a layout), the
trainer's own layout on the same axes is stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from irc.constraints.pins import Pins, constraint_text
from irc.constraints.steps import STEP, based_on, has_others, parse_steps
from irc.errors import IrcError
from irc.search.configurations import (
    EVERY_SECOND,
    FULL,
    IN_PARTS,
    NOTHING,
    PIPE,
    SELECTIVE,
    Configuration,
)
from irc.search.judge import Judged
from irc.search.stated import SCHEDULES
from irc.training.layer_policies import parse_policies, policies_text

TORCH_NAMES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved:2": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}  # fmt: skip
assert {name.lower() for name in TORCH_NAMES.values()} == set(SCHEDULES)


@dataclass(frozen=True)
class Written:
    """Settings of a trainer.

    Attributes:
        text: of the file.
        judged: the configuration that it states.
        note: what is not as the plan was chosen; empty where all is.
    """

    text: str
    judged: Judged
    note: str = ""


def written(
    path: str, judged: Sequence[Judged], samples: int, sequence: int = 0, pins: Pins = ""
) -> Written:
    """Return the settings of the best configuration that a trainer can be told.

    Args:
        path: of the file: torchtitan's ends in ``.toml``, another one has Megatron-LM's arguments.
        judged: best first.
        samples: of the whole batch.
        sequence: tokens of a sample; 0: not known.
        pins: constraints that all of them keep: what layers recompute is written, too.

    Raises:
        IrcError: ``option-value`` where the trainer has no words for any of them.
    """
    again = policies_text(NOTHING, parse_steps(*constraint_text(pins)).recompute)
    first: IrcError | None = None
    for each in judged:
        recompute = based_on(each.configuration.recompute, again)
        own = each
        if recompute != each.configuration.recompute:
            own = replace(each, configuration=replace(each.configuration, recompute=recompute))
        if own.verdict is None:
            continue
        try:
            text = settings(path, own.configuration, samples, sequence)
        except IrcError as error:
            first = first or error
            continue
        notes = [f"{first.message}: this is {own.configuration}"] if first else []
        if not own.configuration.layout and own.configuration.mesh.num_ranks > 1:
            notes.append("irc places each op by itself, the trainer by its own layout")
        if _is_torchtitan(path) and IN_PARTS[own.configuration.in_parts] == "sums in parts":
            notes.append("torchtitan stores weights in parts, too")
        if has_others(pins, STEP):
            notes.append("constraints but for recompute and micro-batches are not in it")
        return Written(text, own, "; ".join(notes))
    assert first is not None
    raise first


def settings(path: str, configuration: Configuration, samples: int, sequence: int = 0) -> str:
    """Return one configuration as settings; arguments and errors as of :func:`written`."""
    known = {PIPE, "data", "context", "tensor"}
    if other := [axis for axis in configuration.mesh.names if axis not in known]:
        raise _no_word(path, f"an axis '{other[0]}'")
    sizes = dict(configuration.mesh.axes)
    shares = sizes.get("data", 1) * configuration.micro_batches
    if samples % shares:
        raise _no_word(path, f"{samples} samples in {shares} parts")
    if configuration.in_parts and sizes.get("data", 1) == 1:
        raise _no_word(path, f"{IN_PARTS[configuration.in_parts]} over other axes than data")
    write = _torchtitan if _is_torchtitan(path) else _megatron
    return write(path, configuration, sizes, samples, sequence)


def _torchtitan(
    path: str, own: Configuration, sizes: Mapping[str, int], samples: int, sequence: int
) -> str:
    words = own.layout.split("+")
    if "tp" in words and "sp" not in words:
        raise _no_word(path, f"a layout '{own.layout}': with matrices sequences are divided, too")
    data, pipe = sizes.get("data", 1), sizes.get(PIPE, 1)
    micro = samples // (data * own.micro_batches)
    mode, option = _torch_recompute(path, own.recompute)
    if pipe > 1 and own.schedule not in TORCH_NAMES:
        raise _no_word(path, f"a schedule '{own.schedule}'")
    copies = data if "ddp" in words else 1
    lines = [
        f"# {own}",
        "[training]",
        f"local_batch_size = {samples // data if pipe > 1 else micro}",
        f"global_batch_size = {samples}",
        *([f"seq_len = {sequence}"] if sequence else []),
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {copies}",
        f"data_parallel_shard_degree = {data // copies}",
        f"tensor_parallel_degree = {sizes.get('tensor', 1)}",
        f"context_parallel_degree = {sizes.get('context', 1)}",
        f"pipeline_parallel_degree = {pipe}",
    ]
    if pipe > 1:
        lines += [
            f'pipeline_parallel_schedule = "{TORCH_NAMES[own.schedule]}"',
            f"pipeline_parallel_microbatch_size = {micro}",
        ]
    lines += ["", "[activation_checkpoint]", f'mode = "{mode}"']
    lines += [f'selective_ac_option = "{option}"'] if option else []
    return "\n".join(lines) + "\n"


def _torch_recompute(path: str, policy: str) -> tuple[str, str]:
    base, layers = parse_policies(policy)
    if not layers and base in (NOTHING, FULL):
        return base, ""
    if not layers and base == EVERY_SECOND:
        return "selective", "op"
    if base == NOTHING and len(layers) == 1 and layers[0].policy == FULL:
        first, _, number = layers[0].word.partition(" ")
        if first == "every":
            return "selective", number
    raise _no_word(path, f"recompute '{policy}'")


def _megatron(
    path: str, own: Configuration, sizes: Mapping[str, int], samples: int, sequence: int
) -> str:
    words = own.layout.split("+")
    data, pipe, tensor = (sizes.get(axis, 1) for axis in ("data", PIPE, "tensor"))
    name, colon, chunks = own.schedule.partition(":")
    if pipe > 1 and own.schedule != "1f1b" and not (name == "interleaved" and colon):
        raise _no_word(path, f"a schedule '{own.schedule}'")
    arguments: dict[str, object] = {
        "tensor-model-parallel-size": tensor,
        "pipeline-model-parallel-size": pipe,
        "context-parallel-size": sizes.get("context", 1),
        "micro-batch-size": samples // (data * own.micro_batches),
        "global-batch-size": samples,
    }
    if sequence:
        arguments["seq-length"] = sequence
    if pipe > 1 and colon:
        arguments["num-virtual-stages-per-pipeline-rank"] = chunks
    if tensor > 1 and ("sp" in words or not own.layout):
        arguments["sequence-parallel"] = ""
    if data > 1 and "fsdp" in words:
        arguments["use-torch-fsdp2"] = ""
    if own.in_parts:
        arguments[_megatron_parts(path, own)] = ""
    arguments |= _megatron_recompute(path, own.recompute)
    lines = [f"--{name} {value}".rstrip() for name, value in arguments.items()]
    return "\n".join([f"# {own}", *lines]) + "\n"


def _megatron_parts(path: str, own: Configuration) -> str:
    """Return the switch for what lies in parts; that for weights goes with one stage alone."""
    what = IN_PARTS[own.in_parts]
    if what == "sums in parts":
        return "use-distributed-optimizer"
    if own.pipe > 1:
        raise _no_word(path, f"{what} beside stages")
    return "use-torch-fsdp2"


def _megatron_recompute(path: str, policy: str) -> dict[str, object]:
    base, layers = parse_policies(policy)
    if not layers and base == NOTHING:
        return {}
    if not layers and base == SELECTIVE:
        return {"recompute-granularity": SELECTIVE}
    every: dict[str, object] = {"recompute-granularity": FULL}
    if not layers and base == FULL:
        return {**every, "recompute-method": "uniform", "recompute-num-layers": 1}
    if base == NOTHING and len(layers) == 1 and layers[0].policy == FULL:
        first, _, number = layers[0].word.partition(" ")
        if first == "first":
            return {**every, "recompute-method": "block", "recompute-num-layers": number}
    raise _no_word(path, f"recompute '{policy}'")


def _no_word(path: str, what: str) -> IrcError:
    return IrcError(
        "option-value",
        f"{'torchtitan' if _is_torchtitan(path) else 'Megatron-LM'} has no word for {what}",
        help="write the other trainer's settings, or the plan itself: -o DIR",
    )


def _is_torchtitan(path: str) -> bool:
    return Path(path).suffix == ".toml"
