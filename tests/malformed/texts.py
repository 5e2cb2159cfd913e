"""Ways to spoil text: JSON by its fields, TOML and IR by their words, all by their bytes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from tests.malformed.mutations import EXTREMES, HOSTILE

Place: TypeAlias = "tuple[str | int, ...]"

WORDS = re.compile(r"[A-Za-z_][\w.]*|-?\d+(?:\.\d+)?|[#%@!][\w.]+|[<>{}()\[\],:=]|->")
OTHERS = (
    "", "0", "-1", "1e400", "nan", "inf", str(2**40), str(2**63), "9" * 50, "[" * 300, "{", "}",
    '"', "'", "#a", "%nobody", "@nobody", "!x", "tensor<", "f64", "i99999999999", "true",
    "flow.nothing", "\0", "\u202e", "?" * 5000,
)  # fmt: skip
JSON_VALUES: tuple[Any, ...] = (
    *EXTREMES, 2**64, 1.5, None, True, "x", "", [], {}, [2**40], "../../canary", "a\0b",
)  # fmt: skip


def spoiled_bytes(data: bytes, chance: random.Random) -> bytes:
    """Change, remove, repeat or insert a few bytes."""
    spoiled, what = bytearray(data), chance.randrange(4)
    at = chance.randrange(max(len(spoiled), 1))
    length = chance.randint(1, 40)
    if what == 0:
        for _ in range(chance.randint(1, 8)):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
    elif what == 1:
        del spoiled[at : at + length]
    elif what == 2:
        spoiled[at:at] = spoiled[at : at + length * 20]
    else:
        spoiled = spoiled[:at]
    return bytes(spoiled)


def spoiled_words(data: bytes, chance: random.Random) -> bytes:
    """Replace words by other words of the text, or by what should not stand there."""
    text = data.decode("utf-8")
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        words = list(WORDS.finditer(text))
        place = chance.choice(words)
        other = chance.choice([chance.choice(words)[0], chance.choice([*OTHERS, *HOSTILE])])
        text = text[: place.start()] + other + text[place.end() :]
    return text.encode("utf-8", "surrogatepass")


def spoiled_lines(data: bytes, chance: random.Random) -> bytes:
    """Remove, repeat, move or exchange lines."""
    lines, what = data.decode("utf-8").splitlines(keepends=True), chance.randrange(3)
    one, other = (chance.randrange(len(lines)) for _ in range(2))
    if what == 0:
        del lines[one]
    elif what == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines).encode()


def spoiled_json(data: bytes, chance: random.Random) -> bytes:
    """Replace, remove or repeat a field at any depth."""
    value = json.loads(data)
    for _ in range(chance.choice([1, 1, 2])):
        path = chance.choice([path for path in _paths(value) if path])
        owner = value
        for key in path[:-1]:
            owner = owner[key]
        what = chance.randrange(6)
        if what == 0:
            del owner[path[-1]]
        elif what == 1 and isinstance(owner, list):
            owner.append(owner[path[-1]])
        elif what == 2 and isinstance(owner, dict):
            owner[chance.choice(HOSTILE)] = owner[path[-1]]
        elif what == 3 and type(owner[path[-1]]) is int:
            owner[path[-1]] += chance.choice([-64, -1, 1, 64])
        else:
            owner[path[-1]] = chance.choice(JSON_VALUES)
    return json.dumps(value, indent=1).encode()


def _paths(value: Any, path: Place = ()) -> Iterator[Place]:
    yield path
    if isinstance(value, dict | list):
        items: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _paths(item, (*path, key))
