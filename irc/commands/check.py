"""`irc check`: hold a plan against the reference, level by level."""

import argparse

HELP = "compare what a plan computes with the reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc check`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")


def run(args: argparse.Namespace) -> int:
    """Check the plan; a difference is the error ``check-failed``."""
    from irc.interpret.check import check_plan
    from irc.plan.host import is_host

    if is_host(args.plan):
        from irc.runtime.host_run import check_host

        print(check_host(args.plan, inputs=args.inputs))
        return 0
    print(check_plan(args.plan, inputs=args.inputs))
    return 0
