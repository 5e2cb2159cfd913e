"""Reading the native folder of a plan: nothing is used but what was verified."""

from __future__ import annotations

import builtins
import ctypes
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from irc.errors import IrcError
from irc.plan import files, json_text
from irc.plan.json_text import corrupt
from irc.plan.native import (
    FOLDER,
    MANIFEST,
    PIECE_BYTES,
    PROGRAM,
    SIZES,
    WEIGHTS,
    Code,
    NativeFile,
    NativeManifest,
    Program,
    digests,
    owner_digest,
    parse_native_manifest,
    parse_program,
)
from irc.plan.native_host import HOST
from irc.plan.open_sizes import MadeKernel, made_again
from irc.plan.trust import NAMES, is_trusted, untrusted
from irc.runtime.native.memory import Array, zero_bytes
from irc.runtime.native.processor import flags, system

if TYPE_CHECKING:
    from irc.plan.native_sizes import NativeSizes


@dataclass(frozen=True)
class Native:
    """A verified native folder, its code and weights not read yet.

    Attributes:
        folder: where it lies.
        program: the content of program.json.
        manifest: what the folder holds.
        hash: digest of the manifest, which names the program and its weights.
        sizes: the content of sizes.json, where sizes are open.
        owner: the digest of both, which the code ends with.
    """

    folder: Path
    program: Program
    manifest: NativeManifest
    hash: str
    sizes: NativeSizes | None = None
    owner: builtins.bytes = b""

    @property
    def bytes(self) -> dict[str, int]:
        """The size of each file."""
        return {name: entry.bytes for name, entry in self.manifest.files.items()}

    def code_bytes(self, name: str) -> int:
        """Return the bytes of the machine code of one kind."""
        code = next(each for each in self.program.codes if each.name == name)
        return self.bytes[code.file]

    @property
    def weight_bytes(self) -> int:
        """The bytes of the weights."""
        return self.bytes[WEIGHTS]


def open_native(folder: str | os.PathLike[str], expected: str = "") -> Native:
    """Read the description of a program.

    Args:
        folder: of a plan, or its native folder itself.
        expected: the hash, or its beginning (8 digits or more), that the program must have.

    Raises:
        IrcError: ``native-missing``, ``plan-missing``, ``plan-corrupt``, ``plan-version``;
            ``plan-hash-mismatch`` where it is another program than expected.
    """
    return open_at(native_place(folder), expected)


def open_at(place: Path, expected: str = "") -> Native:
    """Read the description of a program in a native folder; raises as :func:`open_native`."""
    text = files.read_file(place, MANIFEST, json_text.MAX_BYTES)
    manifest = parse_native_manifest(text, str(place / MANIFEST))
    program_hash = files.plan_hash(text)
    check_expected(place, program_hash, expected)
    content = verified(place, PROGRAM, manifest)
    program = parse_program(content, str(place / PROGRAM))
    _check_origin(place, program)
    sizes: NativeSizes | None = None
    texts = [content]
    if SIZES in manifest.files:
        # What fixed sizes do not need is not imported for them.
        from irc.plan.native_sizes import parse_native_sizes

        texts.append(verified(place, SIZES, manifest))
        sizes = parse_native_sizes(texts[-1], program, str(place / SIZES))
    owner = owner_digest(texts, program.codes)
    return Native(place, program, manifest, program_hash, sizes, owner)


def check_expected(folder: Path, program_hash: str, expected: str) -> None:
    """Refuse another program than the one that is asked for by its hash, or the beginning of it.

    Raises:
        IrcError: ``plan-hash-mismatch``.
    """
    if expected and (len(expected) < 8 or not program_hash.startswith(expected.lower())):
        raise IrcError(
            "plan-hash-mismatch",
            f"the program in '{folder}' is {program_hash[:16]}, not {expected[:64]}",
            help="load the program that you compiled, or ask for the hash of this one",
        )


def check_trusted(place: Path, digest: str, expected: str, *, trust: bool) -> None:
    """Refuse machine code of which it is not known whose it is.

    Args:
        place: the native folder.
        digest: of its manifest, which names all of it.
        expected: the hash that was asked for; a long one names nothing else.
        trust: the caller trusts who made it.

    Raises:
        IrcError: ``plan-untrusted``; ``signature-invalid``.
    """
    if trust or len(expected) >= NAMES or is_trusted(place, MANIFEST, digest):
        return
    raise untrusted(
        f"the program in '{place}' is machine code, and nothing says whose",
        str(place),
        f"program {digest[:16]} was not written by your irc on this machine, nor signed by a key "
        "that you trust",
        also=f'; or hash="{digest}", if that is what you were told; or compile the model here',
    )


def native_place(path: str | os.PathLike[str]) -> Path:
    """Return the native folder of a plan, or the folder itself where it is one.

    Raises:
        IrcError: ``native-missing``, ``plan-missing``.
    """
    folder = Path(path)
    if (folder / FOLDER / MANIFEST).is_file():
        return folder / FOLDER
    if (folder / MANIFEST).is_file() and any((folder / n).is_file() for n in (PROGRAM, HOST)):
        return folder
    if (folder / SIZES).is_file():
        raise IrcError(
            "native-missing",
            f"the plan in '{folder}' holds no native program for its open sizes",
            because=_made_again(folder) or "it was compiled without",
            help="give each size a number: irc compile ... --size NAME=N; or use irc.load",
        )
    if (folder / files.PLAN).is_file():
        raise IrcError(
            "native-missing",
            f"the plan in '{folder}' holds no native program",
            because="it is for several ranks, for a GPU, or was compiled without",
            help="compile it for one CPU device, or run it with torch: irc run PLAN",
        )
    if (folder / HOST).is_file():
        raise IrcError(
            "native-missing",
            f"the host program in '{folder}' holds no native one",
            because="an op of it is torch's, or it was compiled without; irc compile says which",
            help="load it with irc.load, or run it: irc run PLAN",
        )
    if (folder / "parts.json").is_file():
        raise IrcError(
            "native-missing",
            f"the plan of several programs in '{folder}' holds no native ones",
            help="run it: irc run PLAN",
        )
    raise IrcError(
        "plan-missing",
        f"no plan in '{folder}'",
        help="irc compile MODEL.onnx -o PLAN writes one",
    )


def _made_again(folder: Path) -> str:
    """Return which kernels of a plan are compiled for each size, which takes irc and LLVM."""
    where = str(folder / SIZES)
    data = json_text.parse_object(files.read_file(folder, SIZES, json_text.MAX_BYTES), where)
    kernels: tuple[MadeKernel, ...] = json_text.decode(
        tuple[MadeKernel, ...], data.get("kernels", []), where
    )
    return made_again(kernels)


def _check_origin(place: Path, program: Program) -> None:
    """Refuse a program beside another plan than it was made from."""
    beside = place.parent / files.MANIFEST
    if place.name != FOLDER or not beside.is_file():
        return
    plan = files.plan_hash(files.read_file(place.parent, files.MANIFEST, json_text.MAX_BYTES))
    if plan != program.plan:
        raise corrupt(
            f"the native program was made from plan {program.plan[:16]}, "
            f"the plan beside it is {plan[:16]}",
            str(place),
        )


def _entry(name: str, manifest: NativeManifest) -> NativeFile:
    if name not in manifest.files:
        raise corrupt(f"the manifest lists no {name[:80]}")
    return manifest.files[name]


def verified(place: Path, name: str, manifest: NativeManifest) -> bytes:
    """Read a file whose content is what the manifest says.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    entry = _entry(name, manifest)
    content = files.read_file(place, name)
    if len(content) != entry.bytes or digests(content) != entry.sha256:
        raise _changed(name)
    return content


def _changed(name: str) -> IrcError:
    return corrupt(f"the content of {name} is not what the manifest says")


def choose(program: Program, name: str = "") -> Code:
    """Return the best code that the processor at hand runs.

    Args:
        program: says what there is, the best first.
        name: of the kind to take, if it is not to be the best.

    Raises:
        IrcError: ``processor-unsupported``, naming what is missing; ``option-value`` for a name
            that the program does not have.
    """
    names = [code.name for code in program.codes]
    if name and name not in names:
        raise IrcError(
            "option-value",
            f"the program has no code for '{name}'",
            help=f"it has {', '.join(names)}",
        )
    wanted = [code for code in program.codes if name in ("", code.name)]
    for code in wanted:
        if code.system == system() and not set(code.requires) - flags():
            return code
    raise IrcError(
        "processor-unsupported",
        "this machine runs none of the program's code",
        because=[f"{code.name}: {_lack(code)}" for code in wanted],
        help="compile the model on such a machine, or for one: irc compile --native NAMES",
    )


def _lack(code: Code) -> str:
    if code.system != system():
        return f"is for {code.system}, this is {system()}"
    return f"the processor lacks {', '.join(sorted(set(code.requires) - flags()))}"


def load_code(native: Native, code: Code) -> ctypes.CDLL:
    """Load the shared object of a code.

    Its name holds its digest: where two programs have one path, the loader would give the second
    one the first one's code.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    content = verified(native.folder, code.file, native.manifest)
    if not content.endswith(native.owner):
        raise corrupt("the code was compiled for another program", str(native.folder / code.file))
    path = native.folder.absolute() / code.file
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise corrupt(f"the code cannot be loaded: {error}", str(path)) from None


def load_weights(native: Native, *, mapped: bool, threads: int) -> Array:
    """Return the weights, u8: in memory of their own, or mapped from the file.

    Args:
        native: the folder.
        mapped: leave them in the file: processes share them, and none of them has huge pages.
        threads: verify them.

    Raises:
        IrcError: ``plan-corrupt``.
    """
    entry = _entry(WEIGHTS, native.manifest)
    path = native.folder / WEIGHTS
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise corrupt(f"cannot be read: {error.strerror}", str(path)) from None
    try:
        if os.fstat(descriptor).st_size != entry.bytes:
            raise _changed(WEIGHTS)
        if mapped and entry.bytes:
            region = mmap.mmap(descriptor, entry.bytes, mmap.MAP_PRIVATE, mmap.PROT_READ)
            weights: Array = np.frombuffer(region, np.uint8)
        else:
            weights = zero_bytes(entry.bytes)
        _read_pieces(None if mapped else descriptor, weights, entry.sha256, threads)
    finally:
        os.close(descriptor)
    return weights


def _read_pieces(
    descriptor: int | None, weights: Array, expected: Sequence[str], threads: int
) -> None:
    """Read pieces, where they are not mapped, and compare their digests, several at a time."""
    starts = list(range(0, max(len(weights), 1), PIECE_BYTES))
    wrong: list[Any] = []
    if len(starts) != len(expected):
        raise _changed(WEIGHTS)

    def verify(each: int) -> None:
        try:
            for number in range(each, len(starts), threads):
                piece = weights.data[starts[number] : starts[number] + PIECE_BYTES]
                if descriptor is not None and not _read(descriptor, piece, starts[number]):
                    wrong.append(number)
                if digests(piece) != (expected[number],):
                    wrong.append(number)
        except Exception as error:
            wrong.append(error)

    others = [threading.Thread(target=verify, args=(each,)) for each in range(1, threads)]
    for other in others:
        other.start()
    verify(0)
    for other in others:
        other.join()
    if wrong:
        raise _changed(WEIGHTS)


def _read(descriptor: int, piece: memoryview, start: int) -> bool:
    done = 0
    while done < len(piece):
        count = os.preadv(descriptor, [piece[done:]], start + done)
        if not count:
            return False
        done += count
    return True
