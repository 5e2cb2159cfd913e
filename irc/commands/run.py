"""`irc run`: run a plan on this machine."""

import argparse

HELP = "run a plan on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc run`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")
    parser.add_argument(
        "--nproc", metavar="N", type=int, help="processes to start (default: the ranks of the plan)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the plan, and print what it reports."""
    from irc.runtime.launch import run_plan

    print(run_plan(args.plan, inputs=args.inputs, nproc=args.nproc))
    return 0
