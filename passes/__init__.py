"""The passes of irc, one per file; this table is their register.

A row is ``"pass-name": "irc.passes.pass_name:PassNamePass"``. Rows are text, so that naming one
pass imports one module.
"""

from collections.abc import Mapping

BUILTIN: Mapping[str, str] = {
    "map-tasks": "irc.passes.map_tasks:MapTasksPass",
}
