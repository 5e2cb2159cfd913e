"""`irc simulate`: a call or step of a plan, predicted action by action."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from irc.simulate.actions import SimAction, Timeline

HELP = "predict a call or step of a plan, action by action"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc simulate`."""
    add = parser.add_argument
    add("plan", metavar="PLAN", help="the folder of the plan")
    add("--cluster", metavar="NAME|FILE", help="of a plan of several programs: whose links carry "
        "what goes between them (default: the cluster that it is for)")  # fmt: skip
    add("--trace", metavar="FILE", help="write the timeline there, for Perfetto")


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
    from irc.commands.schedule_simulate import shown_bytes
    from irc.plan.load import load_plan
    from irc.simulate.plan import Contention, predict

    if args.cluster:
        from irc.errors import IrcError

        raise IrcError(
            "option-value", "--cluster is for plans of several programs",
            help="a plan of one has the prices of the cluster that it was compiled for",
        )  # fmt: skip
    plan = load_plan(args.plan).plan
    cluster = find_cluster(plan.cluster or THIS_HOST)
    found = predict(plan, contention=Contention.of(cluster, plan.device_mesh))
    print(f"ranks           {found.ranks}{f', {plan.mesh}' if plan.mesh else ''}")
    print(f"call            {found.seconds * 1e3:.4g} ms")
    for stream, seconds in found.timeline.busy(found.actions).items():
        print(f"{stream:14}  {seconds * 1e3:.4g} ms")
    print(f"arena at most   {shown_bytes(found.peak_bytes)}")
    return _trace(args.trace, found.actions, found.timeline)


def _parts(args: argparse.Namespace) -> int:
    from irc.cluster.load import THIS_HOST, find_cluster
    from irc.commands.schedule_simulate import table
    from irc.plan.parts_files import load_parts
    from irc.report.streams import streams_of, streams_table
    from irc.simulate.parts import predict_step

    plan = load_parts(args.plan)
    own = next((f.plan.cluster for part in plan.parts for f in part.values()), "")
    cluster = find_cluster(args.cluster or own or THIS_HOST).fit(plan.mesh)
    found = predict_step(plan, cluster)
    print(f"ranks           {plan.mesh.num_ranks}, {plan.mesh}")
    print(f"stages          {plan.schedule.num_stages}, {plan.num_micro_batches} micro-batches")
    print(f"step            {found.seconds * 1e3:.4g} ms")
    print(table(found))
    print("\n".join(streams_table(streams_of(found), found.seconds)))
    return _trace(args.trace, found.actions, found.timeline)


def _trace(path: str | None, actions: tuple[SimAction, ...], timeline: Timeline) -> int:
    from irc.commands.schedule import write
    from irc.simulate.trace import chrome_trace

    return write(chrome_trace(actions, timeline), path) if path else 0


def _refused(plan: str, why: str, example: str) -> Exception:
    from irc.errors import IrcError

    return IrcError("option-value", f"'{plan}' {why}", help=f"irc simulate {example}")
