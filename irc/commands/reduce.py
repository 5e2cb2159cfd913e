"""`irc reduce`: a small program or ONNX file that fails as a large one does."""

import argparse
from pathlib import Path

from irc.commands.progress import asked, progress
from irc.errors import IrcError
from irc.logs import PROGRESS

HELP = "make a program or an ONNX file that fails small, to a handful of ops"
SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc reduce`."""
    parser.epilog = (
        "FILE is the folder of a reproducer that a crash has left, a program in text form (with "
        "-p, the passes that fail on it), or an ONNX file that irc does not compile, or compiles "
        "to other numbers than onnxruntime's (where that is not installed, onnx's own reference). "
        "The small one is written beside FILE, with .small in its name. "
        "Weights of ONNX files are drawn anew where it fails all the same. "
        "Exit codes: 0 it is written, 2 nothing fails."
    )
    parser.add_argument("file", metavar="FILE", help="a reproducer, a program or an ONNX file")
    parser.add_argument("-p", "--passes", metavar="PASSES", default="", help="as irc opt has them")
    parser.add_argument(
        "--differs",
        action="store_true",
        help="run the program before and after each pass, and take other numbers for a failure",
    )
    parser.add_argument("-o", "--output", metavar="F", help="where the small one is written")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"search for so long at most (default {SECONDS:.0f})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Search, write what is smallest, say how small it is."""
    import json

    if not args.seconds > 0:
        raise IrcError("option-value", f"--seconds is a time above 0, not {args.seconds:g}")
    path, out = Path(args.file), Path(args.output) if args.output else None
    is_text = not path.is_dir() and path.suffix != ".onnx"
    if not is_text and (args.passes or args.differs):
        raise IrcError("option-value", "-p and --differs are for programs in text form")
    with progress(asked(args)):
        PROGRESS.info("reading %s", path)
        if path.is_dir():
            from irc.reproduce.text_files import reduce_folder

            small = reduce_folder(path, out, args.seconds)
        elif is_text:
            from irc.reproduce.text_files import reduce_program

            small = reduce_program(path, args.passes, out, args.seconds, compares=args.differs)
        else:
            from irc.reproduce.onnx_files import reduce_onnx

            small = reduce_onnx(path, out, args.seconds)
    print(json.dumps(small.facts(), indent=2) if args.json else small)
    return 0
