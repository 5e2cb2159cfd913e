"""Digests of the weights beside a plan, which are outside its hash.

    FOLDER/weights.safetensors
    FOLDER/weights.digests.json   its bytes, and the SHA-256 of each piece of it

A file that was written or compared here before, and not written to since, is not read again for it:
that is known by its place, size and times (:mod:`irc.plan.built`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from irc.cluster.host import num_cores
from irc.plan import built, json_text
from irc.plan.files import SIGNATURE, WEIGHTS, read_file
from irc.plan.json_text import corrupt
from irc.plan.signature import is_signed
from irc.plan.version import check_format

DIGESTS = "weights.digests.json"
FORMAT = 1
PIECE_BYTES = 16 << 20
MOST_THREADS = 8


@dataclass(frozen=True)
class WeightDigests:
    """The content of weights.digests.json; a piece has :data:`PIECE_BYTES`, the last one less."""

    bytes: int
    sha256: tuple[str, ...]


def write_digests(folder: Path) -> None:
    """Write the digests of the weights in a folder."""
    path = folder / WEIGHTS
    size = path.stat().st_size
    digests = WeightDigests(size, _digests_of(path, range(_count(size))))
    text = json_text.dump({"format": FORMAT, **json_text.encode(digests)})
    (folder / DIGESTS).write_text(text, encoding="utf-8")


def note_weights(folder: Path) -> None:
    """Put the weights in a folder, which were written now, on the list of what is as it should."""
    if (folder / DIGESTS).is_file():
        digest = hashlib.sha256((folder / DIGESTS).read_bytes()).hexdigest()
        built.note(built.stamp(folder / WEIGHTS, digest))


def check_weights(
    path: Path,
    ranges: Sequence[tuple[int, int]] | None = None,
    *,
    known: bool,
    always: bool = False,
) -> bool:
    """Compare a file of weights with the digests beside it, unless that was done before.

    Args:
        path: of the file; one that is not a plan's own has no digests.
        ranges: bytes that are going to be read, as (first, behind the last); by default all.
        known: whether the plan is this user's, or of somebody trusted: only such a one may lack
            digests, as older ones do.
        always: compare also what was compared before, and ask for digests.

    Returns:
        Whether anything was compared.

    Raises:
        IrcError: ``plan-corrupt``; ``signature-invalid``.
    """
    folder = path.parent
    if path.name != WEIGHTS or not (folder / DIGESTS).is_file():
        if path.name == WEIGHTS and (always or not known):
            raise corrupt(f"there are no digests of the weights: no {DIGESTS}", str(folder))
        return False
    content = read_file(folder, DIGESTS, json_text.MAX_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    if (folder / SIGNATURE).is_file():
        is_signed(folder, DIGESTS, digest)
    try:
        stamp = built.stamp(path, digest)
        if not always and built.is_noted(stamp):
            return False
        _compare(path, content, ranges)
        if ranges is None:
            # Who writes to it meanwhile changes the stamp.
            built.note(stamp)
    except OSError as error:
        raise corrupt(f"cannot be read: {error.strerror}", str(path)) from None
    return True


def _compare(path: Path, content: bytes, ranges: Sequence[tuple[int, int]] | None) -> None:
    where = str(path.parent / DIGESTS)
    data = json_text.parse_object(content, where)
    check_format(data.pop("format", None), where, FORMAT, "the list of digests")
    expected: WeightDigests = json_text.decode(WeightDigests, data, where)
    size = path.stat().st_size
    if size != expected.bytes or len(expected.sha256) != _count(size):
        raise corrupt(f"it has {size} bytes; {DIGESTS} says {expected.bytes}", str(path))
    wanted: Sequence[int] = range(_count(size))
    if ranges is not None:
        touched = {n for a, b in ranges for n in range(a // PIECE_BYTES, -(-b // PIECE_BYTES))}
        wanted = sorted({0, *touched} & {*wanted})
    for number, digest in zip(wanted, _digests_of(path, wanted), strict=True):
        if digest != expected.sha256[number]:
            raise corrupt(
                f"the weights are not what {DIGESTS} says: bytes {number * PIECE_BYTES} to "
                f"{min((number + 1) * PIECE_BYTES, size)} were changed",
                str(path),
            )


def _count(size: int) -> int:
    return -(-size // PIECE_BYTES)


def _digests_of(path: Path, numbers: Sequence[int]) -> tuple[str, ...]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:

        def digest(number: int) -> str:
            piece = hashlib.sha256()
            start, end = number * PIECE_BYTES, (number + 1) * PIECE_BYTES
            while start < end and (part := os.pread(descriptor, min(end - start, 1 << 20), start)):
                piece.update(part)
                start += len(part)
            return piece.hexdigest()

        threads = min(len(numbers), num_cores(), MOST_THREADS)
        if threads <= 1:
            return tuple(map(digest, numbers))
        with ThreadPoolExecutor(threads) as pool:
            return tuple(pool.map(digest, numbers))
    finally:
        os.close(descriptor)
