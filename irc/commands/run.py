"""`irc run`: run a plan on this machine."""

import argparse

from irc.commands.code_options import add_code_options

HELP = "run a plan on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc run`."""
    parser.epilog = (
        "The numbers are compared with those of the model run eagerly: the last line is OK, exit"
        " status 0, or FAIL, exit status 1. Other statuses come with an error that has a code."
    )
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")
    parser.add_argument(
        "--nproc", metavar="N", type=int, help="processes to start (default: the ranks of the plan)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of random inputs (default: 0)"
    )
    parser.add_argument(
        "--outputs",
        metavar="F.safetensors",
        help="write the outputs there; of a plan of training, parameters and states",
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, help="steps of a plan of training (default: 3)"
    )
    parser.add_argument(
        "--check",
        metavar="N",
        type=int,
        default=0,
        help="after every N steps of a plan of training, compare what several ranks hold copies of",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="make a few more calls or steps, their kernels launched one by one, and write what"
        " each rank does in the quickest, for Perfetto and irc compare: Chrome trace events, packed"
        " where the name ends in .gz; registers and arena are there twice meanwhile",
    )
    parser.add_argument(
        "--links",
        action="store_true",
        help="hold collectives and messages back for as long as they take on the links of the"
        " plan's cluster, so that the run shows what compute hides of them",
    )
    parser.add_argument(
        "--size",
        metavar="NAME=N",
        action="append",
        default=[],
        help="a number for an open size of the plan, of random inputs; may be given again",
    )
    parser.add_argument(
        "--no-compare", action="store_true", help="do not compare with the model run eagerly"
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare weights with their digests, again if need be"
    )
    add_code_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the plan, print what it reports, and return 1 where its numbers are wrong."""
    from irc.errors import IrcError
    from irc.plan.open_sizes import parse_sizes
    from irc.runtime.launch import run_plan

    if args.steps is not None and args.steps < 1:
        raise IrcError("option-value", f"--steps {args.steps}: a run has 1 step or more")

    if args.check < 0:
        raise IrcError("option-value", f"--check {args.check} is no number of steps")
    report = run_plan(
        args.plan,
        inputs=args.inputs,
        nproc=args.nproc,
        compare=not args.no_compare,
        seed=args.seed,
        outputs=args.outputs,
        steps=args.steps,
        check_every=args.check,
        sizes=parse_sizes(args.size),
        trust=args.trust,
        verify=args.verify,
        imports=args.imports,
        trace=args.trace,
        links=args.links,
    )
    print(report)
    return report.exit_code
