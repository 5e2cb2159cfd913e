"""The options of commands that run the code of a plan."""

import argparse


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--trust`` and ``--import``."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the plan's code as it is, whoever made it (irc explain trust)",
    )
    parser.add_argument(
        "--import",
        metavar="FILE.py|MODULE",
        dest="imports",
        action="append",
        default=[],
        help="import it before: it declares ops that the plan runs; may be given again",
    )
