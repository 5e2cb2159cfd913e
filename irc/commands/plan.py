"""`irc plan`: the best mesh, stages, micro-batches and schedule for a model on a cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from irc.commands.byte_options import add_memory_option, bytes_option, in_words_of_options
from irc.commands.compile import ADAMW, is_named_object, refuse_bare_file
from irc.errors import IrcError

if TYPE_CHECKING:
    from irc.calls.plan_search import Asked
    from irc.report.planned import Planned
    from irc.search.configurations import Outline
    from irc.search.everything import Outcome
    from irc.search.judge import Judged
    from irc.search.status import Status

HELP = "search the best mesh, stages, micro-batches and schedule for a model on a cluster"
QUIET_S = 2.0
"""A search that takes longer says how far it is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc plan`."""
    parser.epilog = (
        "Each configuration that is judged is planned as irc compile would, and simulated. MFU is "
        "the model's own arithmetic by what the vendor states for the devices. Without a time limit"
        " the answer is always the same. On Linux child processes plan on idle processors what will"
        " probably be asked for next; IRC_PROCESSES=N in the environment allows N processes, irc"
        " itself among them (default: one for each processor, up to 8, and one more; 1: no child),"
        " each of which may come to hold as much memory as irc itself, most of it shared."
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="net.py:build, a function that returns (module, example_args); an ONNX file; or a"
        " configuration of a language model of transformers, on the meta device: a config.json, a"
        " folder with one, or a class such as LlamaConfig",
    )
    add("--cluster", metavar="NAME|FILE", default="this-host", help="the machines: a preset, nodes "
        "x devices x kind as in 2x8xH100, or a TOML file (default: this-host)")  # fmt: skip
    add("--devices", metavar="N", type=int, help="use so many of them (default: all)")
    add(
        "--global-batch",
        metavar="B",
        type=int,
        help="sequences of a step, of a configuration of transformers (default: 8); a function's"
        " example arguments are the whole batch",
    )
    add("--sequence", metavar="S", type=int, help="tokens of a sequence (default: 2048)")
    add("--size", metavar="NAME=N", action="append", default=[], help="a number for a size of an "
        "ONNX file, as irc compile takes it; may be given again")  # fmt: skip
    add("--train", metavar="OPTIMIZER", nargs="?", const=ADAMW, help="plan a step of training with "
        "adamw (the default), sgd, ...; without it a call is planned, on one mesh")  # fmt: skip
    add(
        "--loss", metavar="RESULT|NAME:FUNCTION", help="what is trained on, as irc compile takes it"
    )
    add("--precision", metavar="DTYPE|NAME=DTYPE,..", help="as irc compile takes it")
    add("--backend", metavar="NAME", default="cpu", help="what writes the kernels (default: cpu)")
    add("--objective", metavar="NAME", default="throughput", help="throughput (the default): the "
        "shortest step on all devices; latency: on any number of them; memory: the fewest bytes on "
        "a device; cost: the least money for a step, or without prices the fewest seconds of "
        "devices")  # fmt: skip
    add("--price", metavar="MONEY", type=float, help="of one device for an hour, in your money "
        "(default: price_per_hour of the cluster's file): the table then has the money of a step "
        "and of a billion tokens")  # fmt: skip
    add_memory_option(parser, "what the cluster's have, less a margin")
    add("--time-limit", metavar="S", type=float, help="begin no further plan after so many seconds")
    add(
        "--most",
        metavar="N",
        type=int,
        help="judge at most so many configurations on a number of "
        "devices (default: 20); one that does not fit is tried again with everything recomputed",
    )
    add("--pins", metavar="TEXT|FILE", default="", help="constraints, as irc compile takes them, "
        "which every plan keeps")  # fmt: skip
    add("--pin-config", metavar="FILE", action="append", default=[], help="hold the plan against "
        "what a torchtitan configuration (.toml) or a file of Megatron-LM's arguments states: "
        "sizes, micro-batch, schedule, recompute; may be given again")  # fmt: skip
    add("--write", metavar="FILE", action="append", default=[], help="write the best plan that "
        "a trainer can be told as its settings: torchtitan's (.toml) or Megatron-LM's arguments; "
        "may be given again")  # fmt: skip
    add("--json", action="store_true", help="print everything as JSON")
    add("-o", "--output", metavar="DIR", help="write the chosen plan there, as irc compile does")
    add("--force", action="store_true", help="replace a plan that is in the folder already")


def run(args: argparse.Namespace) -> int:
    """Search, print the table, and write the chosen plan."""
    import json

    from irc.plan.save import check_target
    from irc.report.planned import plan_table
    from irc.report.terminal import for_stdout

    if args.output:
        check_target(Path(args.output), force=args.force)
    _check_write(args)
    with in_words_of_options():
        result = _searched(args)
    report = result.report
    print(json.dumps(report.as_json(), indent=1) if args.json else for_stdout(plan_table(report)))
    if args.output:
        said = result.write(result.outcome.best)
        if not args.json:
            print(f"\n{for_stdout(said)}")
    # Behind the plan, since a trainer may have no words for any configuration.
    for path in args.write:
        said = _write_settings(path, result, args.pins)
        if not args.json:
            print(f"\n{for_stdout(said)}")
    return 0


@dataclass(frozen=True)
class _Result:
    """What a search says, and what writes a plan of a configuration."""

    report: Planned
    outcome: Outcome
    outline: Outline
    write: Callable[[Judged], str]
    sequence: int = 0


def _check_write(args: argparse.Namespace) -> None:
    """Refuse, before a long search, settings of what is no training, and files that are there."""
    if args.write and args.train is None:
        raise IrcError("option-value", "--write is of a step of training", help="add --train")
    for path in args.write:
        if Path(path).exists() and not args.force:
            raise IrcError(
                "output-exists",
                f"'{Path(path).name}' exists already",
                where=path,
                help="choose another file, or --force",
            )
        if not Path(path).absolute().parent.is_dir():
            raise IrcError("file-missing", f"there is no folder for '{path}'")


def _write_settings(path: str, result: _Result, pins: str) -> str:
    """Write what a trainer can be told, and return what it is."""
    from irc.search.write_stated import written

    own = written(path, result.outcome.judged, result.outline.samples, result.sequence, pins)
    try:
        Path(path).write_text(own.text, encoding="utf-8")
    except OSError as error:
        raise IrcError("output-exists", f"cannot write '{path}': {error.strerror}") from None
    notes = f"\nnote: {own.note}" if own.note else ""
    return f"{path}: {own.judged.configuration}{notes}"


def _searched(args: argparse.Namespace) -> _Result:
    """Search what is named."""
    from irc.calls.plan_search import Asked, limits_of

    refuse_bare_file(args.model)
    limits = limits_of(
        args.objective, args.time_limit, _at_least_one("--most", args.most), args.price
    )
    asked = Asked(
        args.devices,
        replace(limits, keeps_interrupted=True),
        progress=_Progress(_note(args)) if sys.stderr.isatty() or not args.json else None,
    )
    if not is_named_object(args.model) and _is_onnx(args.model):
        return _of_file(args, asked)
    return _of_module(args, asked)


def _is_onnx(text: str) -> bool:
    from irc.frontends.torch.huggingface import is_huggingface

    return Path(text).suffix == ".onnx" or not is_huggingface(text)


def _of_file(args: argparse.Namespace, asked: Asked) -> _Result:
    from irc.from_files import compile_file
    from irc.plan.open_sizes import parse_sizes
    from irc.report.planned import planned
    from irc.searched import cluster_in_order, searched_file

    for name in ("train", "loss", "precision", "global_batch", "sequence", "pin_config", "pins"):
        if getattr(args, name) not in (None, [], ""):
            raise IrcError(
                "option-value",
                f"--{name.replace('_', '-')} is of PyTorch modules, not of ONNX files",
                help="name a function that returns (module, example_args): net.py:build",
            )
    shared: dict[str, Any] = {
        "backend": args.backend,
        "cluster": args.cluster,
        "sizes": parse_sizes(args.size),
        "memory_bytes": bytes_option("--memory", args.memory),
    }
    outcome, outline = searched_file(args.model, asked, **shared)
    report = planned(
        outcome, outline, _cluster(args), program=args.model, objective=args.objective,
        training=False, note=_note(args), price_per_hour=args.price,
    )  # fmt: skip

    def write(best: Judged) -> str:
        chosen = best.configuration
        within = {"memory_bytes": chosen.memory_bytes} if chosen.memory_bytes else {}
        options: dict[str, Any] = {
            **shared,
            **within,
            "cluster": cluster_in_order(args.cluster, best),
        }
        return compile_file(
            args.model, args.output, mesh=str(chosen.mesh), force=args.force, **options
        )

    return _Result(report, outcome, outline, write)


def _of_module(args: argparse.Namespace, asked: Asked) -> _Result:
    from irc.exports import export_plan
    from irc.frontends.torch.huggingface import huggingface_example
    from irc.frontends.torch.named import named_example, named_loss
    from irc.report.planned import planned
    from irc.searched import cluster_in_order, price_of_stored, searched_module

    if args.size:
        raise IrcError(
            "option-value", "--size is of ONNX files; a module has its example arguments"
        )
    if args.train is None and (args.loss or args.precision):
        raise IrcError(
            "option-value", "--loss and --precision are of a plan of training", help="add --train"
        )
    sizes = {
        "batch": _at_least_one("--global-batch", args.global_batch),
        "sequence": _at_least_one("--sequence", args.sequence),
    }
    if is_named_object(args.model):
        if any(sizes.values()):
            raise IrcError(
                "option-value",
                "--global-batch and --sequence are of configurations of transformers",
                help=f"the example arguments of '{args.model}' are the whole batch",
            )
        example = named_example(args.model)
    else:
        example = huggingface_example(args.model, **sizes, training=args.train is not None)
    shared: dict[str, Any] = {
        "backend": args.backend,
        "cluster": args.cluster,
        "optimizer": args.train,
        "loss": None if args.loss is None else named_loss(args.loss),
        "precision": args.precision,
        "pins": args.pins,
        "memory_bytes": bytes_option("--memory", args.memory),
    }
    called = example.module, example.args, example.kwargs
    asked = _with_pinned(asked, args, _first(example.args, example.kwargs))
    outcome, outline = searched_module(*called, asked, **shared)
    report = planned(
        outcome, outline, _cluster(args), program=args.model, objective=args.objective,
        tokens=_tokens(example.args, example.kwargs), training=args.train is not None,
        note=_note(args), price_per_hour=args.price,
    )  # fmt: skip

    def write(best: Judged) -> str:
        chosen = best.configuration
        within = {"memory_bytes": chosen.memory_bytes} if chosen.memory_bytes else {}
        ordered = cluster_in_order(args.cluster, best)
        options: dict[str, Any] = {**shared, **within, "cluster": ordered}
        if args.train is None:
            return export_plan(
                *called, out=args.output, mesh=str(chosen.mesh), force=args.force, **options
            )
        return export_plan(
            *called, out=args.output, mesh=str(chosen.mesh), force=args.force,
            micro_batches=chosen.micro_batches if chosen.is_staged else None,
            schedule=chosen.schedule, recompute=chosen.recompute, layout=chosen.layout,
            stored_price=price_of_stored(ordered, chosen), **options,
        )  # fmt: skip

    first = _first(example.args, example.kwargs)
    is_tokens = bool(_tokens(example.args, example.kwargs))
    return _Result(report, outcome, outline, write, int(first.shape[1]) if is_tokens else 0)


def _with_pinned(asked: Asked, args: argparse.Namespace, first: Any) -> Asked:
    """Add the configurations that files state, for the batch whose first tensor is given."""
    from irc.calls.plan_search import devices_of
    from irc.search.stated import read_stated

    if not args.pin_config:
        return asked
    if args.train is None:
        raise IrcError("option-value", "--pin-config is of a step of training", help="add --train")
    devices = devices_of(_cluster(args), args.devices)
    samples = first.shape[0] if first is not None and first.ndim else 1
    pinned = tuple(read_stated(path).on(devices, samples) for path in args.pin_config)
    return replace(asked, pinned=pinned)


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first tensor of a batch; None where there is none."""
    import torch

    return next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the tokens of a batch: the elements of a first input that is a matrix of integers."""
    first = _first(args, kwargs)
    if first is None or first.ndim != 2 or first.is_floating_point() or first.is_complex():
        return 0
    return first.numel()


def _cluster(args: argparse.Namespace) -> Any:
    from irc.cluster.load import find_cluster

    return find_cluster(args.cluster)


def _note(args: argparse.Namespace) -> str:
    from irc.report.kernels_for import kernels_note

    return kernels_note(args.backend, _cluster(args))


def _at_least_one(option: str, number: int | None) -> int | None:
    if number is not None and number < 1:
        raise IrcError("option-value", f"{option} {number}: it is 1 or more")
    return number


@dataclass
class _Progress:
    """Says on stderr how far a search is that takes long, before each piece of work.

    Attributes:
        note: is said first, before any work.
        began: when the search did.
    """

    note: str
    began: float = field(default_factory=time.monotonic)

    def __call__(self, status: Status) -> None:
        if self.note:
            print(f"note: {self.note}", file=sys.stderr, flush=True)
            self.note = ""
        seconds = time.monotonic() - self.began
        if seconds >= QUIET_S:
            print(f"{seconds:6.1f} s  {said(status, seconds)}", file=sys.stderr, flush=True)


def said(status: Status, seconds: float) -> str:
    """Return a line of progress: what was judged, the best, its gap, the time left at most.

    Args:
        status: how far the search is.
        seconds: for which it has run.
    """
    words: list[str] = []
    if status.judged:
        words.append(f"{status.judged} of at most {status.most} judged")
        left = seconds / status.judged * (status.most - status.judged)
        words.append(f"{left:.0f} s more at most")
    best = status.best
    if best is not None and best.verdict is not None:
        step_s = best.verdict.step_s
        has_gap = step_s and step_s >= status.bound_s
        gap = f", with a gap of at most {1 - status.bound_s / step_s:.0%}" if has_gap else ""
        words.append(f"best so far {best.configuration}: {step_s:.4g} s a step{gap}")
    elif status.judged:
        words.append("nothing fits yet")
    return "; ".join([", ".join(words), status.doing] if words else [status.doing])
