"""`irc completion`: what a shell needs to complete irc's commands and options."""

import argparse
from collections.abc import Iterator
from typing import Any, cast

HELP = "print what a shell completes irc's commands and options with"
SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
FOLDERS = {"DIR", "PLAN", "A", "B"}
"""What arguments are called that name folders."""
FILES = {"FILE", "FILE.toml", "F", "F.npz", "F.safetensors", "MODEL", "PREDICTED", "MEASURED"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc completion`."""
    parser.epilog = (
        "bash: irc completion bash > ~/.local/share/bash-completion/completions/irc."
        " zsh: write it as _irc into a folder of $fpath."
        " fish: irc completion fish > ~/.config/fish/completions/irc.fish."
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(args: argparse.Namespace) -> int:
    """Print the script for a shell."""
    import shtab

    for action in _actions(args.parser):
        name = action.metavar if isinstance(action.metavar, str) else ""
        if name in FILES or name in FOLDERS:
            cast("Any", action).complete = shtab.DIR if name in FOLDERS else shtab.FILE
    print(shtab.complete(args.parser, shell=args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser, those of its commands too."""
    for action in parser._actions:
        yield action
        choices: object = action.choices
        if isinstance(choices, dict):
            for command in cast("dict[str, argparse.ArgumentParser]", choices).values():
                yield from _actions(command)
