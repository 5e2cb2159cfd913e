"""`irc run`: run a plan on this machine."""

import argparse

from irc.commands.code_options import add_code_options
from irc.commands.json_output import add_json_option, print_json
from irc.commands.progress import asked, progress
from irc.logs import PROGRESS

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
        help="have collectives and messages arrive when the links of the plan's cluster would have"
        " brought them, so that the run shows what compute hides of them",
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
    add_json_option(parser, "what ran; of a rehearsal times of each action too,")
    _add_rehearsal(parser)
    add_code_options(parser)


def _add_rehearsal(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "rehearsal of one rank",
        "--comm fake runs one rank of a plan of any size here, without the others: its kernels,"
        " registers and arena are real, collectives have the right shapes and bring its own data,"
        " weights that the folder lacks are drawn. Peak memory and compute time stand beside the"
        " prediction; exit status 1 where the peak is more than 10 % above it. Where the plan is"
        " for GPUs and none is here, its kernels are compiled for this CPU. With --links,"
        " collectives and messages take as long as predicted",
    )
    group.add_argument("--comm", choices=("fake",), help="the other ranks are not there")
    group.add_argument("--rank", metavar="R", type=int, help="which rank (default: 0)")
    group.add_argument(
        "--layers",
        metavar="N",
        type=int,
        help="plan the model with N of its equal layers (of a plan of stages, in each stage), laid"
        " out as in the plan",
    )
    group.add_argument(
        "--micro-batches", metavar="N", type=int, help="run N of a step's (default: all)"
    )


REHEARSED = ("rank", "layers", "micro_batches")
"""Options of a rehearsal alone."""
TOGETHER = ("inputs", "nproc", "outputs", "steps", "check", "size", "verify", "no_compare")
"""Options of a run of all ranks alone."""


def _rehearse(args: argparse.Namespace) -> int:
    """Rehearse one rank, print what it took, and return 1 where that is more than predicted."""
    from irc.calls.rehearse import rehearse_plan
    from irc.errors import IrcError

    for name in TOGETHER:
        if getattr(args, name):
            raise IrcError(
                "option-value",
                f"--{name.replace('_', '-')} is of a run of all ranks, and --comm fake runs one",
                help="leave out one of the two",
            )
    with progress(asked(args)):
        PROGRESS.info("reading %s", args.plan)
        report = rehearse_plan(
            args.plan,
            args.rank or 0,
            layers=args.layers,
            micro_batches=args.micro_batches,
            seed=args.seed,
            links=args.links,
            trust=args.trust,
            imports=args.imports,
            trace=args.trace,
        )
    if args.json:
        print_json(report.as_json())
    else:
        print(report)
    return report.exit_code


def run(args: argparse.Namespace) -> int:
    """Run the plan, print what it reports, and return 1 where its numbers are wrong."""
    from dataclasses import asdict

    from irc.errors import IrcError
    from irc.plan.open_sizes import parse_sizes
    from irc.runtime.launch import run_plan

    if args.comm is not None:
        return _rehearse(args)
    for name in REHEARSED:
        # A number may be 0.
        if (value := getattr(args, name)) is not None and value is not False:
            raise IrcError(
                "option-value",
                f"--{name.replace('_', '-')} is of a rehearsal of one rank",
                help="add --comm fake, which runs one rank without the others",
            )
    if args.steps is not None and args.steps < 1:
        raise IrcError("option-value", f"--steps {args.steps}: a run has 1 step or more")

    if args.check < 0:
        raise IrcError("option-value", f"--check {args.check} is no number of steps")
    sizes = parse_sizes(args.size)
    with progress(asked(args)):
        report = run_plan(
            args.plan,
            inputs=args.inputs,
            nproc=args.nproc,
            compare=not args.no_compare,
            seed=args.seed,
            outputs=args.outputs,
            steps=args.steps,
            check_every=args.check,
            sizes=sizes,
            trust=args.trust,
            verify=args.verify,
            imports=args.imports,
            trace=args.trace,
            links=args.links,
        )
    if args.json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        print(report)
    return report.exit_code
