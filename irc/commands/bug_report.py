"""`irc bug-report`: what is to be known to mend a bug, and nothing of the user's own."""

import argparse
from pathlib import Path

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


def run(args: argparse.Namespace) -> int:
    """Write the archive and say what is in it."""
    from irc.reproduce.bug import write_report

    folder = Path(args.reproducer) if args.reproducer else None
    for line in write_report(Path(args.output), folder):
        print(line)
    print(f"written {args.output}: look at it before you send it")
    return 0
