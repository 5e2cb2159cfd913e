"""`irc tune`: time what a plan runs, on this machine."""

import argparse

from irc.commands.code_options import add_code_options
from irc.commands.json_output import add_json_option, print_json
from irc.commands.progress import asked, progress
from irc.errors import IrcError
from irc.logs import PROGRESS

ANYWAY = "keep what is measured although other programs compute meanwhile"
HELP = "time a plan's kernels on this machine, for better predictions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc tune`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument(
        "--rounds", metavar="N", type=int, default=9, help="how often to run it (default: 9)"
    )
    parser.add_argument("--anyway", action="store_true", help=ANYWAY)
    add_json_option(parser, "the times")
    add_code_options(parser)


def run(args: argparse.Namespace) -> int:
    """Time the plan, print a table, and keep the times for later predictions."""
    from irc.frontends.torch.named import import_all
    from irc.plan.load import load_plan
    from irc.tune.plan import tune_plan

    if args.rounds < 1:
        raise IrcError("option-value", f"--rounds is {args.rounds}; it must be positive")
    import_all(args.imports)
    with progress(asked(args)):
        PROGRESS.info("reading %s", args.plan)
        plan = load_plan(args.plan, trust=args.trust)
        tuned = tune_plan(plan, rounds=args.rounds, anyway=args.anyway, imports=args.imports)
    if args.json:
        print_json(tuned)
    else:
        print(tuned)
    if tuned.path is None:
        tuned.others.check("these times are")
    return 0
