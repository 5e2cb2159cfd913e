"""`irc bug-report`: what is to be known to mend a bug, and nothing of the user's own."""

import argparse
from pathlib import Path

from irc.commands.json_output import add_json_option, print_json

HELP = "collect versions, hardware and a crash in one archive, without weights and names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc bug-report`."""
    parser.epilog = (
        "The archive has about.txt, which says what is in it; nothing is sent anywhere. A crash "
        "inside irc leaves a reproducer, and its message names the folder. "
        "Exit codes: 0 it is written, 2 it cannot be."
    )
    parser.add_argument(
        "-o", "--output", metavar="F.zip", default="irc-bug.zip", help="default: irc-bug.zip"
    )
    parser.add_argument(
        "--reproducer",
        metavar="DIR",
        help="a crash to take along: names of tensors, files and people are taken out of it",
    )
    add_json_option(parser, "where the archive is, and what is in it")


def run(args: argparse.Namespace) -> int:
    """Write the archive and say what is in it."""
    from irc.reproduce.bug import write_report

    folder = Path(args.reproducer) if args.reproducer else None
    archive = write_report(Path(args.output), folder)
    if args.json:
        print_json(archive)
    else:
        print(archive)
    return 0
