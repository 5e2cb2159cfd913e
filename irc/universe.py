"""What irc adds to xDSL's universe: `xdsl-opt`, `irc opt` and the GUI all see it.

Everything is loaded when it is first used, so this module costs no more than xDSL's own.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from xdsl.ir import Dialect
from xdsl.transforms import get_all_passes
from xdsl.universe import Universe

from irc.plugin import find_pass, pass_names

DIALECTS: Mapping[str, str] = {
    "comm": "irc.dialects.comm:Comm",
    "flow": "irc.dialects.flow_ops:Flow",
    "sbp": "irc.dialects.sbp:Sbp",
    "task": "irc.dialects.task_ops:Task",
}


def load_dialect(name: str) -> Dialect:
    """Import one of our dialects."""
    module, _, attribute = DIALECTS[name].partition(":")
    return getattr(import_module(module), attribute)


def _published_passes() -> dict[str, Callable[[], type]]:
    # xDSL refuses two universes that share a name, and xdsl-opt would then not start at all.
    # `irc opt` still finds a pass that has the name of one of xDSL's, such as canonicalize.
    theirs = get_all_passes()
    return {name: partial(find_pass, name) for name in pass_names() if name not in theirs}


UNIVERSE = Universe(
    all_dialects={name: partial(load_dialect, name) for name in DIALECTS},
    all_passes=_published_passes(),
)
