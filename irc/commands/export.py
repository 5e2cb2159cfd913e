"""`irc export`: a plan for PyTorch's own tensor parallelism, torchtitan or Megatron-LM."""

import argparse
import sys
from pathlib import Path

from irc.errors import IrcError

HELP = "write a plan for PyTorch's own tensor parallelism, torchtitan or Megatron-LM"

FORMATS = ("parallelize-module", "torchtitan", "megatron", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc export`."""
    parser.add_argument("plan", metavar="PLAN", help="a plan folder")
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to (default: standard output)"
    )


def run(args: argparse.Namespace) -> int:
    """Print or write the export."""
    from irc.report.export import export_plan

    text = export_plan(args.plan, args.format)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        # Not over something that is there: an export is quickly made again elsewhere.
        with Path(args.output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise IrcError(
            "output-exists", f"'{args.output}' exists already", help="choose another file"
        ) from None
    except OSError as error:
        raise IrcError("output-write", f"cannot write '{args.output}': {error.strerror}") from None
    return 0
