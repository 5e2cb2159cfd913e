"""`irc check`: hold a plan against the reference, level by level."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from irc.commands.code_options import add_code_options
from irc.commands.json_output import add_json_option, print_json
from irc.commands.progress import asked, progress
from irc.logs import PROGRESS

if TYPE_CHECKING:
    from irc.interpret.check import CheckReport
    from irc.interpret.parts_check import CheckedStep
    from irc.runtime.host_run import CheckedHost

HELP = "compare what a plan computes with the reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc check`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")
    parser.add_argument(
        "--weights", action="store_true", help="compare weights with their digests, and no more"
    )
    add_json_option(parser, "what was compared")
    add_code_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the plan; a difference is the error ``check-failed``."""
    if args.weights:
        from irc.runtime.weights_check import check_all_weights

        checked = check_all_weights(args.plan)
        if args.json:
            print_json({"agrees": True, "weights": checked})
        else:
            print("\n".join(map(str, checked)) or f"{args.plan}: no weights")
        return 0
    with progress(asked(args)):
        PROGRESS.info("reading %s", args.plan)
        report = _report(args)
    if args.json:
        from dataclasses import asdict

        print_json({"agrees": True, **asdict(report)})
    else:
        print(report)
    return 0


def _report(args: argparse.Namespace) -> CheckReport | CheckedHost | CheckedStep:
    from irc.frontends.torch.named import import_all
    from irc.interpret.check import check_plan
    from irc.plan.host import is_host
    from irc.plan.parts_files import is_parts

    import_all(args.imports)
    if is_host(args.plan):
        from irc.runtime.host_run import check_host

        return check_host(args.plan, inputs=args.inputs, trust=args.trust)
    if is_parts(args.plan):
        from irc.interpret.parts_folder import check_parts_folder

        return check_parts_folder(args.plan, inputs=args.inputs, trust=args.trust)
    return check_plan(args.plan, inputs=args.inputs, trust=args.trust)
