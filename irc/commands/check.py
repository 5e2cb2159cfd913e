"""`irc check`: hold a plan against the reference, level by level."""

import argparse

from irc.commands.code_options import add_code_options

HELP = "compare what a plan computes with the reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc check`."""
    parser.add_argument("plan", metavar="PLAN", help="the folder of the plan")
    parser.add_argument("--inputs", metavar="F.npz", help="the inputs (default: random ones)")
    parser.add_argument(
        "--weights", action="store_true", help="compare weights with their digests, and no more"
    )
    add_code_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the plan; a difference is the error ``check-failed``."""
    from irc.plan.host import is_host
    from irc.plan.parts_files import is_parts

    if args.weights:
        from irc.runtime.weights_check import check_all_weights

        print(check_all_weights(args.plan))
        return 0
    from irc.frontends.torch.named import import_all
    from irc.interpret.check import check_plan

    import_all(args.imports)
    if is_host(args.plan):
        from irc.runtime.host_run import check_host

        print(check_host(args.plan, inputs=args.inputs, trust=args.trust))
        return 0
    if is_parts(args.plan):
        from irc.interpret.parts_folder import check_parts_folder

        print(check_parts_folder(args.plan, inputs=args.inputs, trust=args.trust))
        return 0
    print(check_plan(args.plan, inputs=args.inputs, trust=args.trust))
    return 0
