"""`irc simulate`: a call or step of a plan, predicted action by action."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from irc.commands.json_output import add_json_option, print_json

if TYPE_CHECKING:
    from irc.trace.form import Trace

HELP = "predict a call or step of a plan, action by action"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc simulate`."""
    add = parser.add_argument
    add("plan", metavar="PLAN", help="the folder of the plan")
    add("--cluster", metavar="NAME|FILE", help="of a plan of several programs: whose links carry "
        "what goes between them (default: the cluster that it is for)")  # fmt: skip
    add("--trace", metavar="FILE", help="write what each rank does there, for Perfetto and irc "
        "compare: Chrome trace events, packed where the name ends in .gz")  # fmt: skip
    add_json_option(parser, "times in seconds, memory in bytes,")


def run(args: argparse.Namespace) -> int:
    """Simulate, and print what came of it."""
    from irc.plan.host import is_host
    from irc.plan.parts_files import is_parts

    if is_parts(args.plan):
        return _parts(args)
    if is_host(args.plan):
        raise _refused(args.plan, "holds a plan for each region", f"{args.plan}/regions/NAME")
    return _one(args)


def _one(args: argparse.Namespace) -> int:
    from irc.cluster.load import THIS_HOST, find_cluster
    from irc.commands.byte_options import shown_bytes
    from irc.plan.load import load_plan
    from irc.simulate.call_trace import call_trace
    from irc.simulate.plan import Contention, predict

    if args.cluster:
        from irc.errors import IrcError

        raise IrcError(
            "option-value", "--cluster is for plans of several programs",
            help="a plan of one has the prices of the cluster that it was compiled for",
        )  # fmt: skip
    loaded = load_plan(args.plan)
    plan = loaded.plan
    cluster = find_cluster(plan.cluster or THIS_HOST)
    call = predict(plan, contention=Contention.of(cluster, plan.device_mesh))
    busy = call.timeline.busy(call.actions)
    if args.json:
        print_json(
            {
                "mesh": plan.mesh,
                "ranks": call.ranks,
                "seconds": call.seconds,
                "streams": [{"name": name, "busy_s": each} for name, each in busy.items()],
                "arena_bytes": call.peak_bytes,
            }
        )
    else:
        print(f"ranks           {call.ranks}{f', {plan.mesh}' if plan.mesh else ''}")
        print(f"call            {call.seconds * 1e3:.4g} ms")
        for stream, seconds in busy.items():
            print(f"{stream:14}  {seconds * 1e3:.4g} ms")
        print(f"arena at most   {shown_bytes(call.peak_bytes)}")
    if args.trace:
        _write(args.trace, call_trace(plan, call, loaded.hash))
    return 0


def _parts(args: argparse.Namespace) -> int:
    from irc.cluster.load import THIS_HOST, find_cluster
    from irc.commands.schedule_simulate import classes, table
    from irc.plan.parts_files import load_parts
    from irc.report.streams import streams_of, streams_table
    from irc.simulate.parts import predict_step
    from irc.simulate.parts_trace import step_trace

    plan = load_parts(args.plan)
    own = next((f.plan.cluster for part in plan.parts for f in part.values()), "")
    cluster = find_cluster(args.cluster or own or THIS_HOST).fit(plan.mesh)
    step = predict_step(plan, cluster)
    if args.json:
        print_json(
            {
                "mesh": f"{plan.mesh}",
                "ranks": plan.mesh.num_ranks,
                "stages": plan.schedule.num_stages,
                "micro_batches": plan.num_micro_batches,
                "seconds": step.seconds,
                "streams": [asdict(each) for each in streams_of(step)],
                "classes": classes(step),
            }
        )
    else:
        print(f"ranks           {plan.mesh.num_ranks}, {plan.mesh}")
        print(f"stages          {plan.schedule.num_stages}, {plan.num_micro_batches} micro-batches")
        print(f"step            {step.seconds * 1e3:.4g} ms")
        print(table(step))
        print("\n".join(streams_table(streams_of(step), step.seconds)))
    if args.trace:
        _write(args.trace, step_trace(plan, step, cluster))
    return 0


def _write(path: str, trace: Trace) -> None:
    from irc.trace.write import to_json, write_trace

    write_trace(path, to_json(trace))


def _refused(plan: str, why: str, example: str) -> Exception:
    from irc.errors import IrcError

    return IrcError("option-value", f"'{plan}' {why}", help=f"irc simulate {example}")
