"""Manifests as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, as people do."""


def _text(_dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(content: Mapping[str, Any]) -> str:
    r"""Return a manifest, its keys in their own order.

    >>> print(to_yaml({"name": "yes", "run": "a\nb\n"}), end="")
    name: 'yes'
    run: |
      a
      b
    """
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=96)
