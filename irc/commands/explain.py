"""`irc explain`: what a pass does, what an error means, why a plan is as it is."""

import argparse
import inspect

from irc.errors import IrcError, did_you_mean

HELP = "explain a pass, an error or a plan"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc explain`."""
    parser.add_argument("kind", choices=[*KINDS], help="what to explain")
    parser.add_argument("name", metavar="NAME", help="a pass, an error code, or a plan folder")


def run(args: argparse.Namespace) -> int:
    """Print the explanation."""
    print(KINDS[args.kind](args.name).rstrip())
    return 0


def _pass(name: str) -> str:
    from xdsl.passes import get_pass_option_infos

    from irc.plugin import find_pass

    cls = find_pass(name)
    after = getattr(cls, "after", None)
    place = f"Level: {getattr(cls, 'level', '?')}" + (f", after {after}" if after else "")
    options = [
        f"  {option.name}: {option.expected_type}"
        + (f" = {option.default_value}" if option.default_value is not None else "")
        for option in get_pass_option_infos(cls)
    ]
    lines = [name, "", inspect.cleandoc(cls.__doc__ or ""), "", place, "Options:"]
    return "\n".join([*lines, *(options or ["  none"])])


def _error(code: str) -> str:
    from irc.error_pages import REGISTRY

    if code not in REGISTRY:
        raise IrcError(
            "option-value", f"no error has the code '{code}'", help=did_you_mean(code, REGISTRY)
        )
    return REGISTRY[code].render()


def _plan(folder: str) -> str:
    from irc.report.explain import explain_plan

    return explain_plan(folder)


KINDS = {"pass": _pass, "error": _error, "plan": _plan}
