"""The register of passes: those of irc, and those that other packages bring.

A pass is an xDSL `ModulePass`, a frozen dataclass, with two class attributes more: ``level``, the
level it works on, and optionally ``after``, the pass that a pipeline puts it behind. Another
package registers one in its ``pyproject.toml``, and nothing of it is imported until a user names
the pass::

    [project.entry-points."irc.passes"]
    my-pass = "my_package.my_pass:MyPass"
"""

import sys
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from irc.errors import InternalError, IrcError, did_you_mean

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from irc.backends import Backend

GROUP = "irc.passes"
BACKEND_GROUP = "irc.backends"
LEVELS = ("flow", "flow+sbp", "spmd", "task", "plan")


class Registered(NamedTuple):
    """A name, the package that provides it, and the way to load it."""

    name: str
    package: str
    entry: EntryPoint


def builtin_passes() -> list[Registered]:
    """The passes of irc itself, by name."""
    from irc.passes import BUILTIN

    return [
        Registered(name, "irc", EntryPoint(name, BUILTIN[name], GROUP)) for name in sorted(BUILTIN)
    ]


def plugin_passes() -> list[Registered]:
    """The passes that other installed packages register, by name; none is imported."""
    return list(_plugin_passes(tuple((path, _changed_ns(path)) for path in sys.path)))


# Reading what all packages register takes 7 ms, as long as half a small program's compilation.
@lru_cache(maxsize=4)
def _plugin_passes(_: tuple[tuple[str, int], ...]) -> tuple[Registered, ...]:
    return tuple(
        sorted(
            Registered(entry.name, entry.dist.name if entry.dist else "unknown package", entry)
            for entry in entry_points(group=GROUP)
        )
    )


def _changed_ns(path: str) -> int:
    """Return when packages were last put into a folder of ``sys.path``, or taken out."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def pass_names() -> list[str]:
    """Every name that `find_pass` knows."""
    return sorted({registered.name for registered in (*builtin_passes(), *plugin_passes())})


def find_pass(name: str) -> "type[ModulePass]":
    """Import a pass by its name.

    Raises:
        IrcError: No package provides it (``pass-unknown``), two do (``plugin-clash``), or the one
            that does is broken (``plugin-broken``).
    """
    found = [p for p in (*builtin_passes(), *plugin_passes()) if p.name == name]
    if not found:
        raise IrcError("pass-unknown", f"no pass '{name}'", help=did_you_mean(name, pass_names()))
    if len(found) > 1:
        owners = [f"{p.package} (built in)" if p.package == "irc" else p.package for p in found]
        raise IrcError(
            "plugin-clash",
            f"{len(found)} packages provide pass '{name}': {' and '.join(owners)}",
            because=[f"{p.package} registers it as {p.entry.value}" for p in found],
            help=f"uninstall {owners[-1]}, or rename the pass in it",
        )
    return _load(found[0])


def find_backend(name: str) -> "Backend":
    """Import a backend by its name and make one.

    Raises:
        IrcError: No package provides it (``backend-unknown``), or it does not import
            (``plugin-broken``).
    """
    from irc.backends import BUILTIN

    if name in BUILTIN:
        return EntryPoint(name, BUILTIN[name], BACKEND_GROUP).load()()
    plugins = {entry.name: entry for entry in entry_points(group=BACKEND_GROUP)}
    if name not in plugins:
        raise IrcError(
            "backend-unknown", f"no backend '{name}'", help=did_you_mean(name, [*BUILTIN, *plugins])
        )
    try:
        return plugins[name].load()()
    except (Exception, SystemExit) as error:
        # A plug-in runs code of others on import; whatever it raises is about the plug-in.
        raise IrcError(
            "plugin-broken",
            f"backend '{name}' does not load",
            where=plugins[name].value,
            because=f"{type(error).__name__}: {error}",
        ) from error


def parse_passes(text: str) -> "tuple[ModulePass, ...]":
    """Make the passes that a text such as ``fuse,order{overlap=true}`` names.

    Raises:
        IrcError: A name, an option or a value is wrong; nothing has run yet.
    """
    from xdsl.utils.arg_spec import parse_pipeline
    from xdsl.utils.exceptions import ArgSpecParseError

    try:
        specs = list(parse_pipeline(text))
    # Python refuses numbers of thousands of digits by a plain ValueError.
    except (ArgSpecParseError, ValueError) as error:
        raise IrcError(
            "option-value",
            "cannot read the list of passes",
            where=f"-p '{text}'",
            because=str(error),
            help="write it as: first-pass,second-pass{option=1 other=true}",
        ) from error
    passes: list[ModulePass] = []
    for spec in specs:
        cls = find_pass(spec.name)
        options = [field.name for field in fields(cls) if field.init]
        for option in spec.normalize_parameter_names().parameters:
            if option not in options:
                raise IrcError(
                    "option-unknown",
                    f"pass '{spec.name}' has no option '{option}'",
                    help=did_you_mean(option, options) or "it takes no options",
                )
        try:
            passes.append(cls.from_spec(spec))
        except ValueError as error:
            raise IrcError(
                "option-value",
                f"pass '{spec.name}' cannot take these options: {spec}",
                because=str(error),
                help=f"irc explain pass {spec.name}",
            ) from error
    return tuple(passes)


def _load(registered: Registered) -> "type[ModulePass]":
    name, package, entry = registered
    try:
        loaded: object = entry.load()
        problem = _flaw(name, loaded)
    except (Exception, SystemExit) as error:
        # A plug-in runs code of others on import; whatever it raises is about the plug-in.
        loaded, problem = None, f"{type(error).__name__}: {error}"
        if package == "irc":
            raise
    if problem is None:
        return loaded  # pyright: ignore[reportReturnType] - _flaw has checked it
    if package == "irc":
        raise InternalError(f"pass '{name}' ({entry.value}): {problem}")
    raise IrcError(
        "plugin-broken",
        f"package '{package}' does not provide the pass '{name}' that it registers",
        where=entry.value,
        because=problem,
        help=f"mend or uninstall '{package}'; other passes work without it",
    )


def _flaw(name: str, loaded: object) -> str | None:
    """Say why an object is not the pass of this name, or None if it is."""
    from xdsl.passes import ModulePass

    if not (isinstance(loaded, type) and issubclass(loaded, ModulePass)):
        return f"{loaded!r} is not a subclass of xdsl.passes.ModulePass"
    if getattr(loaded, "name", None) != name:
        return f"the class calls itself {getattr(loaded, 'name', None)!r}, not {name!r}"
    if (level := getattr(loaded, "level", None)) not in LEVELS:
        return f"its level is {level!r}; a level is one of {', '.join(LEVELS)}"
    return None
