"""A folder of weights as Hugging Face libraries write it: safetensors, and an index of several.

    FOLDER/model.safetensors                      all weights, or
    FOLDER/model-00001-of-00002.safetensors       some of them each, and
    FOLDER/model.safetensors.index.json           which file has which

A slice of a weight is read without the rest of it.
"""

# pyright: basic
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from irc.errors import IrcError, did_you_mean
from irc.plan import json_text
from irc.plan.weights import write_safetensors
from irc.runtime.parts import Parts

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
METADATA = {"format": "pt"}
"""What transformers wants to read of a file."""


class WeightFiles:
    """The weights of a folder; they are opened when they are read.

    Args:
        folder: with an index, or with one file.

    Attributes:
        folder: the folder.
        names: of all weights.

    Raises:
        IrcError: ``checkpoint-missing``, ``checkpoint-corrupt``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._open = folder, dict[str, Any]()
        if (folder / INDEX).is_file():
            self._files = self._indexed()
        elif (folder / FILE).is_file():
            self._files = dict.fromkeys(self._handle(FILE).keys(), FILE)
        else:
            raise IrcError(
                "checkpoint-missing",
                f"'{folder}' has neither {INDEX} nor {FILE}",
                help="name the folder that save_pretrained or irc.save_safetensors wrote",
            )
        self.names = list(self._files)

    def _indexed(self) -> dict[str, str]:
        try:
            data = json_text.parse_object((self.folder / INDEX).read_bytes(), INDEX)
            files = json_text.decode(Mapping[str, str], data.get("weight_map"), INDEX)
        except IrcError as error:
            raise self._damaged(INDEX, error.message) from None
        for file in files.values():
            # A name is one of this folder: an index may come from anybody.
            if Path(file).name != file or not (self.folder / file).is_file():
                raise self._damaged(INDEX, f"there is no file '{file[:80]}'")
        return dict(files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight."""
        return tuple(self._sliced(name).get_shape())

    def read(self, name: str, where: tuple[slice, ...]) -> torch.Tensor:
        """Return a slice of a weight, in the dtype that it is stored in."""
        try:
            handle = self._handle(self._files[name])
            return self._sliced(name)[where] if where else handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise self._damaged(self._files[name], f"{error}") from None

    def _sliced(self, name: str) -> Any:
        try:
            return self._handle(self._files[name]).get_slice(name)
        except SafetensorError as error:
            raise self._damaged(self._files[name], f"{error}") from None

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.folder / file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise self._damaged(file, f"{error}") from None
        return self._open[file]

    def _damaged(self, file: str, reason: str) -> IrcError:
        return IrcError("checkpoint-corrupt", f"'{self.folder / file}' is damaged: {reason}")

    def stored(
        self, shapes: Mapping[str, tuple[int, ...]], aliases: Mapping[str, str], *, strict: bool
    ) -> dict[str, str]:
        """Return, for each tensor of a module, the name that the folder has it by.

        Args:
            shapes: of the module's tensors, by all their names.
            aliases: for each of them the name that ranks hold it by: tied ones have one.
            strict: whether the folder may have nothing else.

        Raises:
            IrcError: ``state-mismatch``.
        """
        found: dict[str, str] = {}
        for name, shape in shapes.items():
            if name in self._files:
                if self.shape(name) != shape:
                    raise IrcError(
                        "state-mismatch",
                        f"'{name}' is {list(self.shape(name))} in '{self.folder}'; the module has "
                        f"{list(shape)}",
                    )
                found.setdefault(aliases.get(name, name), name)
        if lacking := [name for name in shapes if aliases.get(name, name) not in found]:
            raise IrcError(
                "state-mismatch",
                f"'{self.folder}' lacks '{lacking[0]}'",
                help=did_you_mean(lacking[0], self.names),
            )
        if strict and (others := [name for name in self.names if name not in shapes]):
            raise IrcError(
                "state-mismatch",
                f"the module has no '{others[0]}' as '{self.folder}'",
                help=did_you_mean(others[0], shapes) or "strict=False leaves it out",
            )
        return found


class WeightFilesStart:
    """A folder of weights, as a start of a step of training (:mod:`irc.runtime.starts`).

    Args:
        files: the folder.
        stored: by the names that ranks hold, those in the folder.
    """

    def __init__(self, files: WeightFiles, stored: Mapping[str, str]) -> None:
        self._files, self._stored = files, dict(stored)

    @property
    def names(self) -> Collection[str]:
        """What it has values of."""
        return self._stored.keys()

    def leave_out(self, names: Collection[str]) -> None:
        """Give no value to these: they have another."""
        self._stored = {n: key for n, key in self._stored.items() if n not in names}

    def fill(self, parts: Parts, names: Collection[str]) -> None:
        """Read this rank's parts, each its own slice."""
        for name in names:
            for each, where in parts.pieces(name).items():
                parts.local[each].copy_(self._files.read(self._stored[name], where))

    def read(self, name: str, where: tuple[slice, ...]) -> torch.Tensor:
        """Return a slice of a tensor, in the dtype that it is stored in."""
        return self._files.read(self._stored[name], where)

    def wholes(self, names: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole tensors by name, in the dtypes of others of these names."""
        for name, like in names.items():
            if name in self._stored:
                yield name, self._files.read(self._stored[name], ()).to(like.dtype)


def write_weight_files(
    folder: Path,
    sizes: Mapping[str, int],
    whole: Callable[[str], torch.Tensor | None],
    *,
    max_bytes: int,
    writes: bool,
) -> None:
    """Write weights into a folder, one file after the other; every rank calls it.

    Files get their names when all of them are on the disk, the index last.

    Args:
        folder: is made where it is not there.
        sizes: bytes of each weight, by name, in order.
        whole: gives a weight on the rank that writes; every rank calls it for all names in order.
        max_bytes: of a file, but for one that a single weight fills.
        writes: whether this is the rank that writes.

    Raises:
        OSError: where a file cannot be written; what it wrote is gone then.
    """
    groups = _groups(sizes, max_bytes)
    files = [FILE] if len(groups) == 1 else [
        f"model-{i:05}-of-{len(groups):05}.safetensors" for i in range(1, len(groups) + 1)
    ]  # fmt: skip
    failed: OSError | None = None
    for file, names in zip(files, groups, strict=True):
        read = ((name, whole(name)) for name in names)
        tensors = {name: value for name, value in read if value is not None}
        if writes and failed is None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_safetensors(folder / f".{file}.partial", tensors, METADATA)
            except OSError as error:
                failed = error  # the other ranks still send what they have
    if writes and failed is None:
        weight_map = {n: f for f, names in zip(files, groups, strict=True) for n in names}
        text = json_text.dump(
            {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
        )
        _publish(folder, files, text if len(files) > 1 else "")
    if failed is not None:
        for file in files:
            (folder / f".{file}.partial").unlink(missing_ok=True)
        raise failed


def _publish(folder: Path, files: Iterable[str], index: str) -> None:
    for file in files:
        with (folder / f".{file}.partial").open("rb") as written:
            os.fsync(written.fileno())
    for file in files:
        (folder / f".{file}.partial").replace(folder / file)
    if index:
        (folder / f".{INDEX}.partial").write_text(index, encoding="utf-8")
        (folder / f".{INDEX}.partial").replace(folder / INDEX)


def _groups(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Return which weights are in one file, in order.

    >>> _groups({"a": 3, "b": 3, "c": 9, "d": 1}, 6)
    [['a', 'b'], ['c'], ['d']]
    """
    found: list[list[str]] = [[]]
    total = 0
    for name, size in sizes.items():
        if found[-1] and total + size > max_bytes:
            found.append([])
            total = 0
        found[-1].append(name)
        total += size
    return found
