"""`irc list`: the names that irc knows, and the packages that add to them."""

import argparse
from collections.abc import Callable, Iterable

from irc.commands.json_output import add_json_option, print_json
from irc.errors import IrcError

PLUGINS = "plugins"

HELP = "list the passes, errors, backends or ops that irc knows, and installed plug-ins"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `irc list`."""
    parser.add_argument(
        "kind", choices=[*KINDS, PLUGINS], nargs="?", help="what to list (default: plugins)"
    )
    parser.add_argument(
        "--verbose", action="store_true",
        help="plugins: import each, and show whether it can be used, and what it registers",
    )  # fmt: skip
    add_json_option(parser, "a list of names and words")


def run(args: argparse.Namespace) -> int:
    """Print one name a line, with a few words about it, or all as JSON."""
    kind = args.kind or PLUGINS
    if args.verbose and kind != PLUGINS:
        raise IrcError(
            "option-value", f"--verbose is about plug-ins, not for irc list {kind}",
            help="irc list plugins --verbose",
        )  # fmt: skip
    if kind == PLUGINS:
        from irc.commands import list_plugins

        those = list_plugins.installed_plugins(imported=args.verbose)
        if args.json:
            print_json(those)
        else:
            print(list_plugins.text(those))
        return 0
    rows = [*KINDS[kind]()]
    if args.json:
        print_json([{"name": name, "about": " ".join(words.split())} for name, words in rows])
        return 0
    width = max((len(name) for name, _ in rows), default=0)
    for name, words in rows:
        print(f"{name:{width}}  {words}".rstrip())
    return 0


def _passes() -> Iterable[tuple[str, str]]:
    """The passes in the order in which they run, each with its number, level and scope.

    One that stands in several places has a line for each; those of plug-ins come last.
    """
    from irc.pipeline.order import ORDER
    from irc.plugin import builtin_pass, builtin_passes, plugin_passes

    for number, row in enumerate(ORDER, 1):
        try:
            each = builtin_pass(row.name)
            level, words = getattr(each, "level", "?"), _first_line(each)
        except IrcError as error:
            level, words = "?", f"({error.message})"
        when = f"  [{row.when}]" if row.when else ""
        yield row.name, f"{number:2}  {level:8}  {row.scope:8}  {words}{when}"
    # What a plug-in says of itself would cost its import, which waits until it is named.
    own = {name for name, _, _ in builtin_passes()}
    for name, package, _ in plugin_passes():
        clash = ", which cannot be named: irc has a pass of this name" if name in own else ""
        yield name, f"[plug-in: {package}{clash}]"


def _errors() -> Iterable[tuple[str, str]]:
    from irc.error_pages import PAGES

    return sorted((page.code, f"{page.title} (exit code {page.exit_code})") for page in PAGES)


def _backends() -> Iterable[tuple[str, str]]:
    from irc.backends import BUILTIN
    from irc.entry_points import BACKENDS, registered
    from irc.installed import disabled

    yield from ((name, "[irc]") for name in sorted(BUILTIN))
    why = disabled(BACKENDS)
    for each in registered(BACKENDS):
        clash = f", disabled: {why[each]}" if each in why else ""
        yield each.name, f"[plug-in: {each.package}{clash}]"


def _ops() -> Iterable[tuple[str, str]]:
    from irc.universe import DIALECTS, load_dialect

    ops = (op for dialect in DIALECTS for op in load_dialect(dialect).operations)
    return sorted((op.name, _first_line(op)) for op in ops)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


KINDS: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
    "passes": _passes,
    "errors": _errors,
    "backends": _backends,
    "ops": _ops,
}
