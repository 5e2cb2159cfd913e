"""The backends of irc, one folder each; this table is their register.

A row is ``"name": "irc.backends.name.target:NameTarget"``. Rows are text, so that naming one
backend imports one module.
"""

from collections.abc import Mapping

BUILTIN: Mapping[str, str] = {}
