"""`irc launch`: the file that starts a plan on a cluster."""

import argparse

HELP = "print the file that starts a plan with a launcher"
FORMATS = ("torchrun", "slurm", "kubeflow", "skypilot", "torchx", "ssh", "json")
"""As in irc.backends.launch.render, which takes longer to import than --help may."""
OPTIONS = ("partition", "account", "time", "image", "hosts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc launch`."""
    parser.epilog = (
        "Nodes, GPUs and what else a launcher asks for come from the cluster that the plan is for"
        " (the table [launch] of a cluster file: partition, account, time, image, hosts); options"
        " here go before it. A plan holds launch/torchrun.sh and launch/slurm.sbatch already."
    )
    add = parser.add_argument
    add("plan", metavar="PLAN", help="the folder of the plan")
    add("--format", choices=FORMATS, default="torchrun", help="a script for torchrun (default), "
        "a batch script for Slurm, a TrainJob for Kubeflow, a task for SkyPilot, a script for "
        "TorchX or ssh, or the command as JSON")  # fmt: skip
    add("--nodes", metavar="N", type=int, help="machines that share the ranks (default: as many as "
        "the plan's cluster has for them)")  # fmt: skip
    add("--partition", metavar="P", help="of Slurm, one or several with commas")
    add("--account", metavar="A", help="of Slurm")
    add("--time", metavar="T", help="of Slurm: the job ends after it, as in 2:00:00 or 1-12")
    add("--image", metavar="I", help="of kubeflow, skypilot and torchx: the container's image")
    add("--hosts", metavar="H,H", help="of ssh: the machines, the first one first")


def run(args: argparse.Namespace) -> int:
    """Print the launch file."""
    from irc.backends.launch.render import render_launch

    options = {key: value for key in OPTIONS if (value := getattr(args, key)) is not None}
    print(render_launch(args.plan, args.format, args.nodes, options), end="")
    return 0
