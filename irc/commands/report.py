"""`irc report`: a plan as one page of HTML."""

import argparse

from irc.commands.json_output import add_json_option, print_json

HELP = "write a plan as one page of HTML: what it is, where time and memory go, and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc report`."""
    parser.epilog = (
        "The page is one file that loads nothing and has no scripts: it can be sent, printed, and"
        " read without a network."
    )
    add = parser.add_argument
    add("plan", metavar="PLAN", help="the folder of the plan")
    add(
        "-o", "--output", metavar="FILE", help="write there (default: PLAN.html, beside the folder)"
    )
    add("--run", metavar="TRACE", help="hold a measured call or step against the predicted one: of "
        "irc run PLAN --trace, or a Chrome trace of torch.profiler")  # fmt: skip
    add("--beside", metavar="PLAN", help="hold another plan against this one")
    add("--force", action="store_true", help="replace a file that irc report has not written")
    add_json_option(parser, "where the page is, and its size")


def run(args: argparse.Namespace) -> int:
    """Write the page, and say where."""
    from irc.report.html.write import write_report

    path = write_report(args.plan, args.output, run=args.run, beside=args.beside, force=args.force)
    if args.json:
        print_json({"file": f"{path}", "bytes": path.stat().st_size})
        return 0
    print(f"{path}: {path.stat().st_size / 2**10:,.0f} KiB")
    return 0
