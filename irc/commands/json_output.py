"""What ``--json`` prints: one JSON value for programs."""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, cast


def add_json_option(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare ``--json``.

    Args:
        parser: of a command.
        what: the JSON holds, as --help says it.
    """
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def print_json(facts: object) -> None:
    """Print mappings, sequences, dataclasses and scalars; what is no finite number is null."""
    print(json.dumps(_plain(facts), indent=1, allow_nan=False))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): _plain(item) for k, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has neither infinity nor NaN
    return value
