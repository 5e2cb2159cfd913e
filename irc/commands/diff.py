"""`irc diff`: what differs between two plans."""

import argparse

from irc.commands.placements_option import add_placements_option

HELP = "say what differs between two plans"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc diff`."""
    parser.add_argument("before", metavar="A", help="a plan folder")
    parser.add_argument("after", metavar="B", help="another plan folder")
    parser.add_argument("--json", action="store_true", help="print all facts as JSON")
    add_placements_option(parser, "S(0)R, as DTensor prints them in graphs")


def run(args: argparse.Namespace) -> int:
    """Print the difference; 0 also where there is one, as it is an answer and no fault."""
    import json
    from dataclasses import asdict

    from irc.errors import IrcError
    from irc.plan.parts_files import is_parts
    from irc.report.diff import diff_plans, write
    from irc.report.terminal import for_stdout

    several = [is_parts(folder) for folder in (args.before, args.after)]
    if any(several):
        from irc.report.parts_diff import diff_parts, write_parts

        if not all(several):
            raise IrcError(
                "option-value",
                f"'{args.before}' and '{args.after}': only one of them is of several programs",
                help="name two plans of one kind",
            )
        between = diff_parts(args.before, args.after, args.placements or "")
        text = json.dumps(asdict(between), indent=1) if args.json else write_parts(between)
    else:
        difference = diff_plans(args.before, args.after, args.placements or "")
        text = json.dumps(asdict(difference), indent=1) if args.json else write(difference)
    print(text if args.json else for_stdout(text))
    return 0
