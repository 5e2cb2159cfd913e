"""`irc trust`: note that you trust who made a plan."""

import argparse

from irc.commands.json_output import add_json_option, print_json

HELP = "note that you trust who made a plan, or say whether it is trusted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc trust`."""
    parser.epilog = "irc explain trust says what a plan can do, and what is asked of one."
    parser.add_argument("plan", metavar="PLAN", help="the folder of a plan, or its native folder")
    parser.add_argument(
        "--show", action="store_true", help="print its hashes and whether it is trusted; note none"
    )
    add_json_option(parser, "each hash, its file and whether it is trusted")


def run(args: argparse.Namespace) -> int:
    """Print the hashes of a plan, and note them."""
    from irc.plan.roots import trust_folder

    roots = trust_folder(args.plan, note=not args.show)
    if args.json:
        print_json(roots)
    else:
        print("\n".join(map(str, roots)))
    return 0
