"""`irc opt`: run passes over a program in text form."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from irc.errors import IrcError

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from irc.pipeline import VerifyEach

HELP = "run passes over a program in text form"
VERIFY_EACH = ("ir", "exec")
SEPARATOR = re.compile(r"^// -----.*\n?", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc opt`."""
    parser.add_argument("file", metavar="FILE", help="the program; - reads standard input")
    parser.add_argument(
        "-p",
        "--passes",
        metavar="PASSES",
        default="",
        help='the passes, such as "fuse,order{overlap=true}"',
    )
    parser.add_argument("-o", "--output", metavar="F", help="write to a file instead of the screen")
    parser.add_argument(
        "--verify-each",
        choices=VERIFY_EACH,
        help="after each pass verify the program (=ir, or no value), or run it and compare (=exec)",
    )
    parser.add_argument(
        "--split-input-file",
        action="store_true",
        help="treat the parts between '// -----' lines as programs of their own",
    )
    parser.add_argument(
        "--verify-diagnostics",
        action="store_true",
        help="print an error in place of the program that has it, and go on",
    )


def run(args: argparse.Namespace) -> int:
    """Parse, run the passes, print."""
    from irc.plugin import parse_passes

    passes = parse_passes(args.passes)
    where = "<stdin>" if args.file == "-" else args.file
    text = sys.stdin.read() if args.file == "-" else _read(args.file)
    parts = SEPARATOR.split(text) if args.split_input_file else [text]
    printed: list[str] = []
    for part in parts:
        try:
            printed.append(_transform(part, where, passes, args.verify_each))
        except IrcError as error:
            if not args.verify_diagnostics:
                raise
            printed.append(error.render() + "\n")
    result = "// -----\n".join(printed)
    if args.output:
        try:
            Path(args.output).write_text(result, encoding="utf-8")
        except OSError as error:
            raise IrcError(
                "output-write", f"cannot write '{args.output}': {error.strerror}"
            ) from error
    else:
        print(result, end="")
    return 0


def _transform(
    text: str, where: str, passes: "tuple[ModulePass, ...]", verify_each: "VerifyEach"
) -> str:
    from irc.dialects.text import dump, load

    module = load(text, where)
    if passes:
        from irc.pipeline import run_passes

        run_passes(module, passes, verify_each=verify_each)
    return dump(module)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise IrcError("file-missing", f"cannot read '{path}': {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise IrcError("ir-syntax", "the file is not UTF-8 text", path, str(error)) from error
