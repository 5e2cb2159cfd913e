"""`irc compile`: an ONNX file in, a plan folder out."""

import argparse

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
        force=args.force,
    )
    print(summary)
    return 0
