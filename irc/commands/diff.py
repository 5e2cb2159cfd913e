"""`irc diff`: what differs between two plans."""

import argparse

HELP = "say what differs between two plans"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc diff`."""
    parser.add_argument("before", metavar="A", help="a plan folder")
    parser.add_argument("after", metavar="B", help="another plan folder")
    parser.add_argument("--json", action="store_true", help="print all facts as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the difference; 0 also where there is one, as it is an answer and no fault."""
    import json
    from dataclasses import asdict

    from irc.report.diff import diff_plans, write
    from irc.report.terminal import for_stdout

    found = diff_plans(args.before, args.after)
    print(json.dumps(asdict(found), indent=1) if args.json else for_stdout(write(found)))
    return 0
