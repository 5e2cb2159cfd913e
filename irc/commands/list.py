"""`irc list`: the names that irc knows."""

import argparse
from collections.abc import Callable, Iterable

HELP = "list the passes, errors, backends or ops that irc knows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc list`."""
    parser.add_argument("kind", choices=[*KINDS], help="what to list")


def run(args: argparse.Namespace) -> int:
    """Print one name a line, with a few words about it."""
    rows = sorted(KINDS[args.kind]())
    width = max((len(name) for name, _ in rows), default=0)
    for name, words in rows:
        print(f"{name:{width}}  {words}".rstrip())
    return 0


def _passes() -> Iterable[tuple[str, str]]:
    from irc.errors import IrcError
    from irc.plugin import builtin_pass, builtin_passes, plugin_passes

    for name, package, _ in builtin_passes():
        try:
            words = _first_line(builtin_pass(name))
        except IrcError as error:
            words = f"({error.message})"
        yield name, f"{words}  [{package}]"
    # What a plug-in says of itself would cost its import, which waits until it is named.
    own = {name for name, _, _ in builtin_passes()}
    for name, package, _ in plugin_passes():
        clash = ", which cannot be named: irc has a pass of this name" if name in own else ""
        yield name, f"[plug-in: {package}{clash}]"


def _errors() -> Iterable[tuple[str, str]]:
    from irc.error_pages import PAGES

    return ((page.code, f"{page.title} (exit code {page.exit_code})") for page in PAGES)


def _backends() -> Iterable[tuple[str, str]]:
    from importlib.metadata import entry_points

    from irc.backends import BUILTIN

    yield from ((name, "[irc]") for name in BUILTIN)
    for entry in entry_points(group="irc.backends"):
        yield entry.name, f"[plug-in: {entry.dist.name if entry.dist else entry.value}]"


def _ops() -> Iterable[tuple[str, str]]:
    from irc.universe import DIALECTS, load_dialect

    for dialect in DIALECTS:
        for op in load_dialect(dialect).operations:
            yield op.name, _first_line(op)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


KINDS: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
    "passes": _passes,
    "errors": _errors,
    "backends": _backends,
    "ops": _ops,
}
