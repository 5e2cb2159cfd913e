"""`irc compare`: a measured step held against the predicted one."""

import argparse

HELP = "hold a measured step against the predicted one, by kind of time and by line"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc compare`."""
    parser.epilog = (
        "A rank's time is kernels, collectives and values on their way that kernels do not hide,"
        " bubbles of a pipeline, ranks that come late, and the host; these add up to the step. What"
        " is lost is what was measured beyond what was predicted, in the mean over the ranks that"
        " were measured."
    )
    add = parser.add_argument
    add("predicted", metavar="PREDICTED", help="of irc simulate PLAN --trace")
    add("measured", metavar="MEASURED", help="of irc run PLAN --trace, or a Chrome trace of "
        "torch.profiler, whose kernels are known by their names; packed as .gz or not")  # fmt: skip
    add("--json", metavar="FILE", help="write all facts there as JSON")
    add("-o", "--output", metavar="FILE", help="write both traces there as one, for Perfetto: each "
        "rank twice, what was predicted above what was measured")  # fmt: skip
    add("--all", action="store_true", help="show every line of the model that lost time")


def run(args: argparse.Namespace) -> int:
    """Print the comparison; 0 however much they differ, as it is an answer and no fault."""
    import json
    from dataclasses import asdict

    from irc.commands.schedule import write as write_text
    from irc.report.compare import MOST_LINES, compare, read_both, write
    from irc.report.terminal import for_stdout
    from irc.trace.write import side_by_side, write_trace

    predicted, measured = read_both(args.predicted, args.measured)
    comparison = compare(predicted, measured)
    if args.json:
        write_text(json.dumps(asdict(comparison), indent=1) + "\n", args.json)
    if args.output:
        write_trace(args.output, side_by_side(predicted, measured))
    print(for_stdout(write(comparison, most=None if args.all else MOST_LINES)))
    return 0
