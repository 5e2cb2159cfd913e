"""`irc cluster`: what machines plans are made for, and what this one is."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from irc.commands import cluster_order
from irc.commands.json_output import add_json_option, print_json
from irc.commands.progress import asked, progress
from irc.commands.tune import ANYWAY
from irc.errors import IrcError

if TYPE_CHECKING:
    from irc.tune.calibrate import Calibration

HELP = "show or import a cluster, detect or calibrate this machine, order ranks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc cluster`."""
    parser.add_argument("action", choices=[*ACTIONS], help="what to do")
    parser.add_argument(
        "names",
        metavar="NAME|FILE",
        nargs="*",
        help="show: a cluster, without one, list all; order: the cluster; import: what nvidia-smi "
        "topo -m printed of a node, or the XML of NCCL_TOPO_DUMP_FILE, and Slurm's topology.conf; "
        "interference: a CSV file of measurements, each a line of milliseconds: those that each "
        "kind of work takes alone (columns compute, link, nic, d2h, h2d: some of them), and until "
        "all had ended that began at the same time (column together)",
    )
    parser.add_argument("--toml", action="store_true", help="show: as a file that can be edited")
    parser.add_argument("--example", action="store_true", help="show: a complete file, explained")
    parser.add_argument(
        "--mesh",
        metavar="AXES",
        help="show: what collectives of a mesh's axes cost; order: whose ranks are put on devices",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.toml",
        help="calibrate, import, show of one cluster, order: write it there",
    )
    parser.add_argument("--kind", metavar="GPU", help="import: what the GPUs are, as in 8xH100")
    parser.add_argument("--nodes", metavar="N", type=int, help="import: how many nodes are alike")
    cluster_order.add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="calibrate: take less than 20 s")
    parser.add_argument("--anyway", action="store_true", help=f"calibrate: {ANYWAY}")
    add_json_option(parser, "what is said; a cluster by the keys of its file,")


def run(args: argparse.Namespace) -> int:
    """Do what the first word says."""
    for name, actions in TAKEN_BY.items():
        if args.action not in actions and getattr(args, name) not in (None, False):
            raise IrcError(
                "option-value",
                f"--{name} is for irc cluster {' and '.join(actions)}, not for {args.action}",
            )
    args.name = next(iter(args.names), None)
    if args.name is not None and args.action in ("detect", "calibrate"):
        raise IrcError(
            "option-value",
            f"{args.action} looks at this machine and takes no name: '{args.name}'",
            help=f"irc cluster {args.action}, or irc cluster show {args.name}",
        )
    if len(args.names) > 1 and args.action != "import":
        raise IrcError("option-value", f"{args.action} takes one name: {' '.join(args.names)}")
    return ACTIONS[args.action](args)


def _show(args: argparse.Namespace) -> int:
    from irc.cluster.load import example, find_cluster
    from irc.cluster.text import as_facts, describe, to_toml

    for name in ("toml", "example"):
        if args.json and getattr(args, name):
            raise IrcError(
                "option-value", f"--{name} prints a file, and --json JSON", help="choose one"
            )

    if args.example:
        if args.output is not None or args.name is not None:
            raise IrcError(
                "option-value", "--example is shown alone",
                help="irc cluster show --example > my.toml",
            )  # fmt: skip
        print(example())
        return 0
    if args.name is None:
        for name in ("toml", "mesh", "output"):
            if getattr(args, name) not in (None, False):
                raise IrcError(
                    "option-value", f"--{name} is about one cluster, and none is named",
                    help=f"name one: irc cluster show 8xH100 --{name}",
                )  # fmt: skip
        return _show_all(args)
    cluster = find_cluster(args.name)
    mesh = None
    if args.mesh:
        from irc.sharding.mesh import parse_mesh

        mesh = parse_mesh(args.mesh)
    if args.output is not None:
        _write_file(args, to_toml(cluster))
    if args.json:
        from irc.cost.show import axis_costs

        axes = {} if mesh is None else {"axes": axis_costs(cluster, mesh)}
        print_json({**as_facts(cluster), **axes})
        return 0
    if args.output is None:
        print(to_toml(cluster) if args.toml else describe(cluster))
    if mesh is not None:
        from irc.cost.show import axis_table

        print(axis_table(cluster, mesh))
    return 0


def _show_all(args: argparse.Namespace) -> int:
    from irc.cluster.load import find_cluster
    from irc.cluster.presets import KINDS, PRESETS
    from irc.cluster.text import describe

    clusters = {name: find_cluster(name) for name in PRESETS}
    if args.json:
        known = [{"name": name, "devices": each.num_devices} for name, each in clusters.items()]
        print_json({"clusters": known, "kinds": [*KINDS]})
        return 0
    for cluster in clusters.values():
        print(describe(cluster).partition("\n")[0])
    print(f"also NODESxDEVICESxKIND, such as 64x8xH100; kinds: {', '.join(KINDS)}")
    return 0


def _order(args: argparse.Namespace) -> int:
    from irc.cluster.text import as_facts, to_toml

    order = cluster_order.order(args)
    if args.json:
        print_json(
            {
                "devices": order.devices,
                "seconds": order.seconds,
                "unordered_s": order.unordered_s,
                "cluster": as_facts(order.cluster),
            }
        )
    else:
        print(order)
    if args.output is not None:
        _write_file(args, to_toml(order.cluster, (order.note,)))
    return 0


def _import(args: argparse.Namespace) -> int:
    from pathlib import Path

    from irc.cluster.imports.build import import_cluster
    from irc.cluster.text import as_facts, to_toml

    if args.nodes is not None and args.nodes < 1:
        raise IrcError("option-value", f"--nodes is {args.nodes}; it must be 1 or more")
    if not args.names:
        raise IrcError(
            "option-value", "irc cluster import wants the files that describe the machines",
            help="nvidia-smi topo -m > node.txt; irc cluster import node.txt --kind H100",
        )  # fmt: skip
    stem = "imported" if args.output is None else Path(args.output).stem
    got = import_cluster(args.names, kind=args.kind or "", nodes=args.nodes, name=stem)
    text = to_toml(got.cluster, got.notes)
    if args.json:
        print_json({**as_facts(got.cluster), "notes": got.notes})
    elif args.output is None:
        print(text, end="")
    if args.output is not None:
        _write_file(args, text)
    return 0


def _detect(args: argparse.Namespace) -> int:
    from irc.tune.detect import detect

    machine = detect()
    if args.json:
        print_json(machine)
    else:
        print(machine)
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    import os

    from irc.tune.calibrate import QUICK, Effort, calibrate_host
    from irc.tune.launched import calibrate_launched, launch_environment

    effort = QUICK if args.quick else Effort()
    if not launch_environment(os.environ):
        with progress(asked(args)):
            measured = calibrate_host(effort, _generated)
        return _write(measured, args, install=True)
    calibration = calibrate_launched(effort, _generated)
    # Rank 0 writes for all.
    return 0 if calibration is None else _write(calibration, args, install=False)


def _interference(args: argparse.Namespace) -> int:
    from irc.cluster.interference import MOST
    from irc.cluster.interference_fit import fitted, points_of
    from irc.cluster.text import interference_toml

    if args.name is None:
        raise IrcError(
            "option-value", "irc cluster interference wants a CSV file of measurements",
            help="irc cluster --help names its columns",
        )  # fmt: skip
    points = [point for point in points_of(args.name) if len(point.alone) > 1]
    table = fitted(points)
    errors = sorted(abs(table.seconds(p.alone) / p.together - 1) for p in points)
    mean = sum(errors) / len(errors)
    if args.json:
        print_json(
            {
                "measurements": len(points),
                "mean_error": mean,
                "largest_error": errors[-1],
                "limit": MOST,
                "interference": [*table.slower.values()],
            }
        )
        return 0
    print(f"# Fits {len(points)} measurements of several kinds at a time, {mean:.1%} off in the")
    print(f"# mean and {errors[-1]:.1%} at worst; to stand in [device] of a cluster file.")
    if any(MOST in row.values() for row in table.slower.values()):
        print(f"# A factor of {MOST:.0f} is the limit: the measurements say nothing of it.")
    print("\n".join(interference_toml(table)))
    return 0


def _generated(_a: Any, _b: Any) -> Any:
    """Compile a matmul of two tensors to irc's own kernels."""
    import irc

    def product(a: Any, b: Any) -> Any:
        return a @ b

    return irc.compile(product)


def _write(calibration: "Calibration", args: argparse.Namespace, *, install: bool) -> int:
    from irc.cluster.cache import CALIBRATED, write_text
    from irc.cluster.text import to_toml

    if args.json:
        print_json(calibration.facts())
    else:
        print(calibration)
    if not args.anyway:
        calibration.others.check("this calibration is")
    output: str | None = args.output
    text = to_toml(calibration.cluster, ("Measured by `irc cluster calibrate`.",))
    if output is None and not install:
        if not args.json:
            print(f"\n{text}")
        return 0
    if not args.json:
        print()
    if output is None:
        path = write_text(CALIBRATED, text)
        _say(args, f"written to {path}: this is now the cluster 'this-host'")
        return 0
    _write_file(args, text)
    return 0


def _say(args: argparse.Namespace, line: str) -> None:
    """Say what was done: beside JSON on the standard error."""
    print(line, file=sys.stderr if args.json else sys.stdout)


def _write_file(args: argparse.Namespace, text: str) -> None:
    from pathlib import Path

    output: str = args.output
    try:
        Path(output).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise IrcError("output-write", f"cannot write '{output}': {reason}") from error
    _say(args, f"written to {output}: use it as --cluster {output}")


TAKEN_BY = {
    "toml": ("show",), "example": ("show",), "mesh": ("show", "order"), "quick": ("calibrate",),
    "anyway": ("calibrate",),
    "output": ("show", "calibrate", "order", "import"), "kind": ("import",), "nodes": ("import",),
    "traffic": ("order",),
}  # fmt: skip
"""Which actions take an option."""
ACTIONS = {
    "show": _show, "detect": _detect, "calibrate": _calibrate, "interference": _interference,
    "order": _order, "import": _import,
}  # fmt: skip
