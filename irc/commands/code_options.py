"""The options of commands that run the code of a plan, or compile a user's own ops."""

import argparse


def add_code_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--trust`` and ``--import``."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the plan's code as it is, whoever made it (irc explain trust)",
    )
    add_import_option(parser, "ops that the plan runs")


def add_import_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``--import``, of a file that declares ``what``."""
    parser.add_argument(
        "--import",
        metavar="FILE.py|MODULE",
        dest="imports",
        action="append",
        default=[],
        help=f"import it before: it declares {what}; may be given again",
    )
