"""The command line: `irc COMMAND ...`.

Each command is a file of `irc.commands` with ``HELP``, ``add_arguments`` and ``run``. Their heavy
imports are inside ``run``, so that `irc --help` answers at once.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from irc import __version__
from irc.commands import (
    bug_report,
    check,
    cluster,
    compare,
    compile,
    completion,
    demo,
    diff,
    docs,
    explain,
    export,
    launch,
    list,
    opt,
    plan,
    reduce,
    replay,
    report,
    run,
    schedule,
    sign,
    simulate,
    trust,
    tune,
)
from irc.errors import ExitCode, IrcError, did_you_mean


class Command(Protocol):
    """What the module of a command provides."""

    @property
    def HELP(self) -> str: ...

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, args: argparse.Namespace, /) -> int: ...


COMMANDS: dict[str, Command] = {
    "compile": compile,
    "plan": plan,
    "run": run,
    "check": check,
    "opt": opt,
    "list": list,
    "explain": explain,
    "docs": docs,
    "diff": diff,
    "report": report,
    "export": export,
    "demo": demo,
    "launch": launch,
    "trust": trust,
    "sign": sign,
    "tune": tune,
    "schedule": schedule,
    "simulate": simulate,
    "compare": compare,
    "cluster": cluster,
    "replay": replay,
    "reduce": reduce,
    "bug-report": bug_report,
    "completion": completion,
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are registered errors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    @property
    def options(self) -> set[str]:
        """The options that it has, those of groups too."""
        return set(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        raise IrcError("option-value", f"{self.prog}: {message}", help=usage)

    def refuse_unknown_options(self, arguments: Sequence[str]) -> None:
        """Raise ``option-unknown`` for the first option that this parser lacks."""
        for argument in arguments:
            name = argument.partition("=")[0]
            if name == "--":
                return
            if name.startswith("--") and name not in self.options:
                long_options = [option for option in self.options if option.startswith("--")]
                raise IrcError(
                    "option-unknown",
                    f"{self.prog} has no option '{name}'",
                    help=did_you_mean(name, long_options),
                )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status; no error of the user gives a traceback."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except IrcError as error:
        if "--traceback" in arguments:
            raise
        more = "\n".join(f"  more: irc explain error {code}" for code in error.codes)
        left = "".join(f"\n  help: {note}" for note in _reproducers(error))
        print(f"{error.render()}{left}\n{more}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has enough; Python's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if "--traceback" in arguments:
            raise
        bug = IrcError(
            "internal",
            f"{type(error).__name__}: {error}",
            because="this is a bug in irc, not in your model",
            help="\n".join(
                ["run it again with --traceback, and report what that prints", *_reproducers(error)]
            ),
        )
        print(bug.render(), file=sys.stderr)
        return bug.exit_code
    return status


def _reproducers(error: Exception) -> Sequence[str]:
    # Where no pass has run none is left, and xDSL is not imported to say so.
    reproducer = sys.modules.get("irc.pipeline.reproducer")
    return () if reproducer is None else reproducer.notes_of(error)


def _dispatch(arguments: Sequence[str]) -> int:
    parser, commands = _parsers()
    # Looked up before argparse runs, which would rather complain about a missing argument.
    named = next((i for i, word in enumerate(arguments) if not word.startswith("-")), None)
    if named is None:
        parser.refuse_unknown_options(arguments)
        if {"-h", "--help", "--version"} & set(arguments):
            parser.parse_args(arguments)
        raise IrcError(
            "command-unknown", "no command given", help=f"use one of: {', '.join(COMMANDS)}"
        )
    word = arguments[named]
    if word not in COMMANDS:
        raise IrcError("command-unknown", f"no command '{word}'", help=did_you_mean(word, COMMANDS))
    parser.refuse_unknown_options(arguments[:named])
    commands[word].refuse_unknown_options(arguments[named + 1 :])
    args, rest = parser.parse_known_args(_with_values(arguments))
    if rest:
        # argparse itself would give the usage of `irc`, which says nothing about the command.
        commands[word].error(f"unrecognized arguments: {' '.join(rest)}")
    args.parser = parser
    return COMMANDS[word].run(args)


def _with_values(arguments: Sequence[str]) -> Sequence[str]:
    """Join --verify-each to the value that follows it; a bare one is ``ir``.

    argparse would take any word that follows for its value, the file as well.
    """
    words = [""]
    for word in arguments:
        if words[-1] == "--verify-each=" and word in opt.VERIFY_EACH:
            words[-1] += word
        else:
            words.append("--verify-each=" if word == "--verify-each" else word)
    return ["--verify-each=ir" if word == "--verify-each=" else word for word in words[1:]]


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(
        prog="irc", description="A distributed machine learning compiler.", epilog=_EPILOG
    )
    parser.add_argument("--version", action="version", version=f"irc {__version__}")
    _add_traceback(parser, default=False)
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    commands: dict[str, Parser] = {}
    for name, command in COMMANDS.items():
        commands[name] = subparsers.add_parser(name, help=command.HELP, description=command.HELP)
        _add_traceback(commands[name], default=argparse.SUPPRESS)
        command.add_arguments(commands[name])
        own = commands[name].epilog or ""
        if "Exit codes" not in own:
            commands[name].epilog = f"{own} {_EPILOG}".strip()
    return parser, commands


def _add_traceback(parser: Parser, default: object) -> None:
    parser.add_argument(
        "--traceback",
        action="store_true",
        default=default,
        help="show where in irc an error comes from",
    )


_EPILOG = "Exit codes: 0 ok, 1 check failed, 2 your input, 3 unsupported, 4 infeasible, 70 bug."


if __name__ == "__main__":
    sys.exit(main())
