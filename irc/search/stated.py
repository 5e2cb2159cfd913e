"""Configurations that other systems' settings state: torchtitan's TOML, Megatron-LM's arguments.

What is read are sizes of axes, the micro-batch, the schedule and recompute, and which axes divide
samples, storage and matrices (:mod:`irc.constraints.layouts`). Axes, schedules and policies that
irc has no word for are refused by name, not left out; settings of other things are not read.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.search.configurations import PIPE, PLAIN, Configuration
from irc.training.layer_policies import EVERY, FIRST, LayerPolicy, policies_text
from irc.training.policies import EVERY_SECOND

SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved:2", "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipe-v",
}  # fmt: skip
"""torch's names of schedules, in small letters."""

LOCAL_BATCH = 8
"""Samples of a rank where a torchtitan file does not say, as in torchtitan."""


@dataclass(frozen=True)
class Stated:
    """What settings say, before the number of devices and the batch are known.

    Attributes:
        source: the file.
        pipe, tensor, context: ranks of these axes.
        micro_samples: of a micro-batch, on a rank of ``data``.
        schedule: of a pipeline.
        recompute: the policy.
        is_stored_split: parameters are stored in parts over ``data``.
        divides_sequences: over ``tensor`` sequences are divided too.
        data: copies of the model; 0: as many as the devices allow.
        samples: of a whole batch; 0: not stated.
    """

    source: str
    pipe: int
    tensor: int
    context: int
    micro_samples: int
    schedule: str
    recompute: str
    is_stored_split: bool
    divides_sequences: bool
    data: int = 0
    samples: int = 0

    def on(self, devices: int, samples: int) -> Configuration:
        """Return the configuration on so many devices, for a batch of so many samples.

        Raises:
            IrcError: ``option-value`` where they do not divide.
        """
        inner = self.pipe * self.tensor * self.context
        if self.samples not in (0, samples):
            raise IrcError(
                "option-value",
                f"'{self.source}' states a batch of {self.samples} samples, and the batch has "
                f"{samples}",
                help=f"choose a batch of {self.samples}, or leave it out of the file",
            )
        data, left = divmod(devices, inner)
        if self.data not in (0, data):
            raise IrcError(
                "option-value",
                f"'{self.source}' states {self.data} copies on {inner} devices each, and there are "
                f"{devices} devices",
                help=f"choose --devices {self.data * inner}",
            )
        if left or not data:
            raise IrcError(
                "option-value",
                f"'{self.source}' states {inner} devices for a copy of the model, and there are "
                f"{devices}",
                help=f"choose --devices as a multiple of {inner}",
            )
        count, left = divmod(samples, data * self.micro_samples)
        if left or not count:
            raise IrcError(
                "option-value",
                f"'{self.source}' states micro-batches of {self.micro_samples} samples on each of "
                f"{data} copies, and the batch has {samples}",
                help=f"choose a batch of a multiple of {data * self.micro_samples}",
            )
        sizes = (
            (PIPE, self.pipe), ("data", data), ("context", self.context), ("tensor", self.tensor),
        )  # fmt: skip
        mesh = Mesh(tuple((name, size) for name, size in sizes if size > 1))
        schedule = self.schedule if self.pipe > 1 else PLAIN
        return Configuration(mesh, count, schedule, self.recompute, self._layout(data))

    def _layout(self, data: int) -> str:
        if self.context > 1:
            return ""  # no layout says what such an axis is for: the search does
        words = [("fsdp" if self.is_stored_split else "ddp")] if data > 1 else []
        words += ["tp"] if self.tensor > 1 else []
        words += ["sp"] if self.tensor > 1 and self.divides_sequences else []
        return "+".join(words)


def read_stated(path: str) -> Stated:
    """Read a torchtitan configuration (``.toml``), or a file of Megatron-LM's arguments.

    Raises:
        IrcError: ``file-missing``; ``option-value`` for what is not understood.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise IrcError("file-missing", f"cannot read '{path}': {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise _refused(path, f"it is not UTF-8: {error.reason}") from None
    if Path(path).suffix == ".toml":
        try:
            return _torchtitan(path, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise _refused(path, f"it is no TOML: {error}") from None
    return _megatron(path, text)


def _torchtitan(path: str, data: Mapping[str, Any]) -> Stated:
    parallel, training = _section(path, data, "parallelism"), _section(path, data, "training")
    again = _section(path, data, "activation_checkpoint")
    if not (parallel or training or again):
        raise _refused(path, "it has none of torchtitan's sections")
    _refuse_degrees(path, parallel, ("expert_parallel_degree", "expert_tensor_parallel_degree"))
    pipe = _count(path, parallel, "pipeline_parallel_degree", 1)
    local = _count(path, training, "local_batch_size", LOCAL_BATCH)
    size = _count(path, parallel, "pipeline_parallel_microbatch_size", 1)
    shard = _either(path, parallel, "data_parallel_shard_degree")
    copies = _count(path, parallel, "data_parallel_replicate_degree", 1)
    if copies > 1 and shard != 1:
        raise _refused(path, "parameters that are stored in parts within groups of copies "
                       "(data_parallel_replicate_degree beside shards) are not among what is "
                       "pinned")  # fmt: skip
    named = str(parallel.get("pipeline_parallel_schedule", "1F1B"))
    if pipe > 1 and named.lower() not in SCHEDULES:
        raise _refused(path, f"irc has no schedule '{named}'")
    return Stated(
        path,
        pipe,
        _count(path, parallel, "tensor_parallel_degree", 1),
        _count(path, parallel, "context_parallel_degree", 1),
        size if pipe > 1 else local,
        SCHEDULES.get(named.lower(), PLAIN),
        _torch_policy(path, again),
        shard != 1,
        divides_sequences=True,
        data=copies * shard,
        samples=_either(path, training, "global_batch_size"),
    )


def _megatron(path: str, text: str) -> Stated:
    words = _arguments(path, text)
    _refuse_degrees(path, words, ("expert-model-parallel-size",))
    pipe = _count(path, words, "pipeline-model-parallel-size", 1)
    chunks = _count(path, words, "num-virtual-stages-per-pipeline-rank", 1)
    if "num-layers-per-virtual-pipeline-stage" in words:
        layers = _count(path, words, "num-layers", 0) or 1
        own = _count(path, words, "num-layers-per-virtual-pipeline-stage", 1)
        chunks = max(1, layers // pipe // own)
    policy = str(words.get("recompute-granularity", "none"))
    if "recompute-activations" in words:
        policy = "selective"
    return Stated(
        path,
        pipe,
        _count(path, words, "tensor-model-parallel-size", 1),
        _count(path, words, "context-parallel-size", 1),
        _count(path, words, "micro-batch-size", 1),
        f"interleaved:{chunks}" if chunks > 1 else PLAIN,
        _megatron_policy(path, words, policy),
        any(f"use-{kind}" in words for kind in ("torch-fsdp2", "megatron-fsdp", "custom-fsdp")),
        "sequence-parallel" in words,
        samples=_count(path, words, "global-batch-size", 0),
    )


def _arguments(path: str, text: str) -> dict[str, Any]:
    """Return the words of a command line by name, without ``--``; a switch is True."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise _refused(path, str(error)) from None
    arguments: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            arguments[name] = value if equals else True
            name = "" if equals else name
        elif name:
            arguments[name], name = word, ""
    if not any(key.endswith(("parallel-size", "batch-size")) for key in arguments):
        raise _refused(path, "it has none of Megatron-LM's arguments")
    return arguments


def _section(path: str, data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name, {})
    if not isinstance(section, dict):
        raise _refused(path, f"'{name}' is no section")
    return cast("Mapping[str, Any]", section)


def _count(path: str, section: Mapping[str, Any], key: str, default: int) -> int:
    value = section.get(key, default)
    try:
        number = int(value) if not isinstance(value, bool) else 0
    except (TypeError, ValueError):
        number = 0
    if key in section and number < 1:
        raise _refused(path, f"{key} = {value!r} is no number of 1 or more")
    return number


def _either(path: str, section: Mapping[str, Any], key: str) -> int:
    """Return a number of 1 or more; 0 where it is not stated, or as torchtitan writes it, -1."""
    return 0 if section.get(key, -1) in (-1, "-1") else _count(path, section, key, 0)


def _refuse_degrees(path: str, section: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        if key in section and _count(path, section, key, 1) > 1:
            raise _refused(path, f"{key} = {section[key]}: experts on ranks of their own are not "
                           "among what is pinned")  # fmt: skip


def _torch_policy(path: str, again: Mapping[str, Any]) -> str:
    """Return torchtitan's recompute: selective is by op, or of every so many layers (two)."""
    policy = _policy(path, str(again.get("mode", "selective")))
    option = str(again.get("selective_ac_option", "2"))
    if policy != "selective":
        return policy
    if option == "op":
        return EVERY_SECOND
    if not option.isdigit() or int(option) < 1:
        raise _refused(path, f"selective_ac_option '{option}' is neither op nor a number of layers")
    own = LayerPolicy(f"{EVERY} {int(option)}", "full")
    return "full" if int(option) == 1 else policies_text("none", [own])


def _megatron_policy(path: str, words: Mapping[str, Any], policy: str) -> str:
    """Return Megatron-LM's recompute: of all layers, or of the first of each stage."""
    method = str(words.get("recompute-method", "uniform"))
    if _policy(path, policy) != "full" or method == "uniform":
        return policy
    if method != "block":
        raise _refused(path, f"recompute-method '{method}' is neither uniform nor block")
    count = _count(path, words, "recompute-num-layers", 1)
    return policies_text("none", [LayerPolicy(f"{FIRST} {count}", "full")])


def _policy(path: str, text: str) -> str:
    if text not in ("none", "selective", "full"):
        raise _refused(path, f"recompute '{text}' is none of none, selective and full")
    return text


def _refused(path: str, why: str) -> IrcError:
    return IrcError(
        "option-value",
        f"'{path}' states no configuration: {why}",
        help="give a torchtitan configuration (.toml), or a file of Megatron-LM's arguments",
    )
