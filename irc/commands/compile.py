"""`irc compile`: an ONNX file in, a plan folder out."""

import argparse

from irc.errors import IrcError

HELP = "compile an ONNX model into a plan"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc compile`."""
    parser.add_argument("model", metavar="MODEL.onnx", help="the model")
    parser.add_argument(
        "-o", "--output", metavar="DIR", required=True, help="the folder for the plan"
    )
    parser.add_argument("--mesh", metavar="AXES", help="the mesh, such as data=2,tensor=2")
    parser.add_argument(
        "--backend", metavar="NAME", default="cpu", help="what writes the kernels (default: cpu)"
    )
    parser.add_argument("--cluster", metavar="NAME|FILE", help="the machines the plan is for")
    parser.add_argument(
        "--size",
        metavar="NAME=N",
        action="append",
        default=[],
        help="a number for a named size of the model; may be given again",
    )
    parser.add_argument(
        "--pass",
        metavar="NAME",
        dest="passes",
        action="append",
        default=[],
        help="run a plug-in's pass, where it says it goes; may be given again",
    )
    parser.add_argument(
        "--pins",
        metavar="TEXT|FILE",
        default="",
        help="placements to pin and to forbid, as in '*.weight = [tensor = S(0)]'",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a plan that is in the folder already"
    )


def run(args: argparse.Namespace) -> int:
    """Compile, and print a summary of the plan."""
    from irc.api import compile_file

    summary = compile_file(
        args.model,
        args.output,
        mesh=args.mesh,
        backend=args.backend,
        cluster=args.cluster,
        sizes=_sizes(args.size),
        passes=args.passes,
        pins=args.pins,
        force=args.force,
    )
    print(summary)
    return 0


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not (name and number.isascii() and number.isdigit()):
            raise IrcError(
                "option-value", f"cannot read --size '{text}'", help="write it as --size batch=1"
            )
        sizes[name] = int(number)
    return sizes
