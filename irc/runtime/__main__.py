"""Run the native program of a plan, and say what it costs: ``python -m irc.runtime PLAN``."""

import time

STARTED = time.perf_counter()

import argparse  # noqa: E402 - what is imported here is what is timed
import json  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402

from irc.errors import ExitCode, IrcError  # noqa: E402
from irc.plan.open_sizes import parse_sizes  # noqa: E402
from irc.runtime.native.report import Run, measure, report  # noqa: E402

IMPORTED = time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m irc.runtime", description=__doc__)
    parser.add_argument("plan", metavar="PLAN", help="the folder of a plan, or its native folder")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs by name (default: random)")
    parser.add_argument("--outputs", metavar="F.npz", help="write the outputs there, in order")
    parser.add_argument("--threads", metavar="N", type=int, help="of a call (default: the cores)")
    parser.add_argument("--code", metavar="NAME", default="", help="the kind of processor")
    parser.add_argument("--hash", metavar="DIGITS", default="", help="what the program must be")
    parser.add_argument("--mapped", action="store_true", help="leave weights in their file")
    parser.add_argument("--trust", action="store_true", help="run it, whoever made it")
    parser.add_argument("--repeat", metavar="N", type=int, default=10, help="timed calls")
    parser.add_argument("--size", metavar="NAME=N", action="append", default=[],
                        help="of random inputs: a number for an open size")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    try:
        run = Run(args.plan, args.inputs, args.outputs, args.threads, args.code, args.hash,
                  args.mapped, args.trust, args.repeat, parse_sizes(args.size))  # fmt: skip
        figures = measure(run, import_s=IMPORTED - STARTED)
    except IrcError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures) if args.json else report(figures))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
