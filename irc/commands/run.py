"""`irc run`: run a plan on this machine."""

import argparse

HELP = "run a plan on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc run`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")
    parser.add_argument(
        "--nproc", metavar="N", type=int, help="processes to start (default: the ranks of the plan)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of random inputs (default: 0)"
    )
    parser.add_argument("--outputs", metavar="F.safetensors", help="write the outputs there")
    parser.add_argument(
        "--no-compare", action="store_true", help="do not compare with the model run eagerly"
    )


def run(args: argparse.Namespace) -> int:
    """Run the plan, print what it reports, and return 1 where its numbers are wrong."""
    from irc.runtime.launch import run_plan

    report = run_plan(
        args.plan,
        inputs=args.inputs,
        nproc=args.nproc,
        compare=not args.no_compare,
        seed=args.seed,
        outputs=args.outputs,
    )
    print(report)
    return report.exit_code
