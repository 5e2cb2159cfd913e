"""The register of passes: those of irc, and those that other packages bring.

A pass is an xDSL `ModulePass`, a frozen dataclass whose fields are its options, and whose ``apply``
changes a module in place. Another package registers one in its ``pyproject.toml``; nothing of it is
imported until a user names the pass (``irc opt FILE -p my-pass``, ``irc compile --pass my-pass``,
``irc.compile(passes=["my-pass{times=2}"])``)::

    [project.entry-points."irc.passes"]
    my-pass = "my_package.my_pass:MyPass"

**Where it goes.** The class says:

* ``name``: the one that it is registered by.
* ``level``: what it works on. ``flow``: whole tensors, as captured, each block of repeated layers a
  function. ``flow+sbp``: the same with a placement in each type, on a mesh only. ``spmd``: what one
  rank computes; on one device, the program of flow as it stands. ``task``: kernels. On another
  level it is refused (``pass-level``).
* ``after``, optional: the pass that it goes behind, of irc or of a plug-in; without it, it runs
  where its level ends. ``irc compile`` writes the program after every pass into ``ir/`` of the
  plan, in order.
* ``also_on``, optional: a tuple of further levels on whose text ``irc opt`` may run it.

**What it must keep.** After it the program must verify; ``@forward`` must take the same arguments
and give results of the same types (a named size may become a number). What breaks that, and what
``apply`` raises, is reported as ``pass-failed`` with the name of the pass and its package; an
`irc.errors.IrcError` of its own reaches the user as it is.

**What it builds with.** Ops are those of `irc.dialects.flow` (``irc list ops``), and
``Op.make(inputs, result_types, **attributes)`` builds each: ``PointwiseOp.make([x], [x.type],
fn="exp")``; the functions are in `irc.ops.functions`. An op is read by the names of its class:
``gather.x`` and ``gather.index`` are values, ``gather.dim`` is an int, ``pointwise.fn`` a str.
`irc.dialects.builder.FlowBuilder(block, "my_", before=op)` finds the result types too, and gives
ids that begin so. An op that takes the place of another needs its source line and its id: `carry`
gives it both. An id names a value, which ``irc check`` compares on every level, so where several
ops stand for one, the last carries its id and the others are parts of it::

    for old in [o for o in module.walk() if isinstance(o, PointwiseOp) and o.fn == "silu"]:
        x, kind = old.a, old.outputs[0].type
        gate = PointwiseOp.make([x], [kind], fn="sigmoid")
        product = PointwiseOp.make([x, gate.outputs[0]], [kind], fn="mul")
        carry(gate, old, part=1)  # n2.1
        carry(product, old)  # n2
        old.parent.insert_ops_before([gate, product], old)
        old.outputs[0].replace_all_uses_with(product.outputs[0])
        old.detach()
        old.erase()

New ops that repeat an id get such numbers anyway, all but the last.

**How it is tested.** Write ``Before:`` and ``After:`` programs into its docstring, which ``irc
explain pass`` prints, and compare them in a test::

    from irc.dialects.text import load
    from irc.pipeline import run_passes

    module = load(before)
    run_passes(module, [MyPass()], verify_each="exec")  # runs it before and after, in float64
    assert module.is_structurally_equivalent(load(after))

``irc opt FILE -p my-pass --verify-each=exec`` does the same for any program, and ``irc check
PLAN`` holds each value of a plan after each pass against eager PyTorch. ``examples/plugin`` is a
whole package.
"""

import re
from dataclasses import fields
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, cast

from irc.entry_points import (
    BACKENDS,
    PASSES,
    Registered,
    broken,
    clash,
    load,
    provider,
    registered,
)
from irc.errors import InternalError, IrcError, did_you_mean
from irc.installed import warn_of_disabled

if TYPE_CHECKING:
    from xdsl.passes import ModulePass

    from irc.backends import Backend

GROUP = PASSES


def builtin_passes() -> list[Registered]:
    """The passes of irc itself, by name."""
    from irc.passes import BUILTIN

    return [
        Registered(name, "irc", EntryPoint(name, BUILTIN[name], GROUP)) for name in sorted(BUILTIN)
    ]


def plugin_passes() -> list[Registered]:
    """The passes that other installed packages register, by name; none is imported."""
    return registered(PASSES)


def pass_names() -> list[str]:
    """Every name that `find_pass` knows."""
    return sorted({registered.name for registered in (*builtin_passes(), *plugin_passes())})


def builtin_pass(name: str) -> "type[ModulePass]":
    """Import a pass of irc itself, whatever other packages call theirs.

    Raises:
        InternalError: irc has no such pass.
    """
    for each in builtin_passes():
        if each.name == name:
            return _load(each)
    raise InternalError(f"irc has no pass '{name}'")


def find_pass(name: str) -> "type[ModulePass]":
    """Import a pass by its name, as a user gives it.

    Raises:
        IrcError: No package provides it (``pass-unknown``), two do (``plugin-clash``), or the one
            that does is broken (``plugin-broken``).
    """
    warn_of_disabled()
    providers = [p for p in (*builtin_passes(), *plugin_passes()) if p.name == name]
    if not providers:
        raise IrcError("pass-unknown", f"no pass '{name}'", help=did_you_mean(name, pass_names()))
    if len(providers) > 1:
        raise clash(PASSES, providers)
    return _load(providers[0])


def find_backend(name: str) -> "Backend":
    """Import a backend by its name and make one.

    A name of irc's own is irc's, whatever other packages register: the default has one.

    Raises:
        IrcError: No package provides it (``backend-unknown``), two do (``plugin-clash``), or it
            does not import or is no backend (``plugin-broken``).
    """
    from irc.backends import BUILTIN

    warn_of_disabled()
    if name in BUILTIN:
        return EntryPoint(name, BUILTIN[name], BACKENDS).load()()
    plugin = provider(BACKENDS, name)
    if plugin is None:
        known = [*BUILTIN, *(each.name for each in registered(BACKENDS))]
        raise IrcError("backend-unknown", f"no backend '{name}'", help=did_you_mean(name, known))
    return load_backend(plugin)


def load_backend(plugin: Registered) -> "Backend":
    """Import the backend of a plug-in and make one.

    Raises:
        IrcError: ``plugin-broken``.
    """
    backend = load(BACKENDS, plugin)
    if callable(backend):
        try:
            backend = backend()
        except Exception as error:  # the plug-in's own code
            raise broken(BACKENDS, plugin, f"{type(error).__name__}: {error}") from error
    if problem := _backend_flaw(plugin.name, backend):
        raise broken(BACKENDS, plugin, problem)
    return cast("Backend", backend)


def _backend_flaw(name: str, backend: object) -> str | None:
    """Say why an object is not the backend of this name, or None if it is."""
    from irc.kernels.schedule import TARGETS

    for method in ("emit", "emit_plan_sources"):
        if not callable(getattr(backend, method, None)):
            return f"{backend!r} has no method {method}"
    if (own := getattr(backend, "name", None)) != name:
        return f"the backend calls itself {own!r}, not {name!r}"
    extension = getattr(backend, "extension", None)
    if not (isinstance(extension, str) and EXTENSION.fullmatch(extension)):
        return f"its extension is {extension!r}; it is a dot and up to 16 of a-z, 0-9 and _"
    targets: object = getattr(backend, "targets", None)
    if not isinstance(targets, tuple) or not targets or not {*targets} <= {*TARGETS}:
        return f"its targets are {targets!r}; they are a tuple of some of {', '.join(TARGETS)}"
    return None


EXTENSION = re.compile(r"\.[a-z0-9_]{1,16}")
"""Of the source files of a backend (`irc.plan.files` allows as much)."""


def package_of(each: "type[ModulePass]") -> str:
    """Return the package that a pass is of: ``irc``, or that of the plug-in."""
    root = each.__module__.partition(".")[0]
    if root == "irc":
        return root
    return next((p.package for p in plugin_passes() if p.name == each.name), root)


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
            where=f"'{text}'",
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
        except IrcError:
            raise
        # What a plug-in's own __post_init__ raises is about the options, too.
        except Exception as error:
            package = package_of(cls)
            if not isinstance(error, ValueError) and package == "irc":
                raise
            owner = "" if package == "irc" else f" of package '{package}'"
            raise IrcError(
                "option-value",
                f"pass '{spec.name}'{owner} cannot take these options: {spec}",
                because=str(error),
                help=f"irc explain pass {spec.name}",
            ) from error
    return tuple(passes)


def load_pass(plugin: Registered) -> "type[ModulePass]":
    """Import the pass of a plug-in.

    Raises:
        IrcError: ``plugin-broken``.
    """
    pass_class = load(PASSES, plugin)
    if problem := _flaw(plugin.name, pass_class):
        raise broken(PASSES, plugin, problem)
    return cast("type[ModulePass]", pass_class)


def _load(each: Registered) -> "type[ModulePass]":
    if each.package != "irc":
        return load_pass(each)
    pass_class: object = each.entry.load()
    if problem := _flaw(each.name, pass_class):
        raise InternalError(f"pass '{each.name}' ({each.entry.value}): {problem}")
    return cast("type[ModulePass]", pass_class)


def _flaw(name: str, loaded: object) -> str | None:
    """Say why an object is not the pass of this name, or None if it is."""
    from xdsl.passes import ModulePass

    from irc.dialects.levels import LEVELS

    if not (isinstance(loaded, type) and issubclass(loaded, ModulePass)):
        return f"{loaded!r} is not a subclass of xdsl.passes.ModulePass"
    if getattr(loaded, "name", None) != name:
        return f"the class calls itself {getattr(loaded, 'name', None)!r}, not {name!r}"
    if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
        return f"the class does not define {', '.join(missing)}"
    if (level := getattr(loaded, "level", None)) not in LEVELS:
        return f"its level is {level!r}; a level is one of {', '.join(LEVELS)}"
    also: object = getattr(loaded, "also_on", ())
    if not isinstance(also, tuple) or not set(cast("tuple[object, ...]", also)) <= {*LEVELS}:
        return f"its also_on is {also!r}; it is a tuple of levels: {', '.join(LEVELS)}"
    if not isinstance(after := getattr(loaded, "after", None), str | None):
        return f"its after is {after!r}; it is the name of a pass"
    return None
