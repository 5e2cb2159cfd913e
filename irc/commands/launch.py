"""`irc launch`: the file that starts a plan on a cluster."""

import argparse

HELP = "print the file that starts a plan with a launcher"
FORMATS = ("torchrun", "slurm", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc launch`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument(
        "--format", choices=FORMATS, default="torchrun", help="the launcher (default: torchrun)"
    )
    parser.add_argument(
        "--nodes", metavar="N", type=int, default=1, help="machines that share the ranks"
    )


def run(args: argparse.Namespace) -> int:
    """Print the launch file."""
    from irc.backends.launch.target import render_launch

    print(render_launch(args.plan, args.format, args.nodes), end="")
    return 0
