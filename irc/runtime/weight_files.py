"""A folder of weights as Hugging Face libraries write it: safetensors, and an index of several.

    FOLDER/model.safetensors                      all weights, or
    FOLDER/model-00001-of-00002.safetensors       some of them each, and
    FOLDER/model.safetensors.index.json           which file has which

A slice of a weight is read without the rest of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from irc.errors import IrcError, did_you_mean
from irc.plan import json_text
from irc.plan.weights import SAFETENSORS_DTYPES
from irc.runtime.agreement import fail_together
from irc.runtime.parts import Parts
from irc.runtime.starts import StoredStart

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F16", "BF16", "F32", "F64")
"""Of what is stored; numbers of 8-bit floats have a scale beside them."""


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
            for file in set(files.values()):
                # A name is one of this folder: an index may come from anybody.
                if Path(file).name != file or not (self.folder / file).is_file():
                    raise IrcError("checkpoint-corrupt", f"there is no file '{file[:80]}'")
        except IrcError as error:
            raise self._damaged(INDEX, error.message) from None
        except OSError as error:  # also of a name that is too long
            raise self._damaged(INDEX, f"{error.strerror or error}"[:200]) from None
        return dict(files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight."""
        return tuple(self._sliced(name).get_shape())

    def dtype(self, name: str) -> str:
        """Return the dtype of a weight, as safetensors names it."""
        return str(self._sliced(name).get_dtype())

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
        self, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str], *, strict: bool
    ) -> dict[str, str]:
        """Return, for each tensor of a module, the name that the folder has it by.

        Args:
            tensors: of the module, by all their names; shapes and dtypes of them count.
            aliases: for each of them the name that ranks hold it by: tied ones have one.
            strict: whether the folder may have nothing else.

        Raises:
            IrcError: ``state-mismatch``.
        """
        stored: dict[str, str] = {}
        for name, tensor in tensors.items():
            if name in self._files:
                self._check(name, tensor)
                stored.setdefault(aliases.get(name, name), name)
        if lacking := [name for name in tensors if aliases.get(name, name) not in stored]:
            raise IrcError(
                "state-mismatch",
                f"'{self.folder}' lacks '{lacking[0]}'",
                help=did_you_mean(lacking[0], self.names),
            )
        if strict and (others := [name for name in self.names if name not in tensors]):
            raise IrcError(
                "state-mismatch",
                f"the module has no '{others[0]}' as '{self.folder}'",
                help=did_you_mean(others[0], tensors) or "strict=False leaves it out",
            )
        return stored

    def _check(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse a weight of another shape, or of numbers that mean something else."""
        if self.shape(name) != tuple(tensor.shape):
            raise IrcError(
                "state-mismatch",
                f"'{name}' is {list(self.shape(name))} in '{self.folder}'; the module has "
                f"{list(tensor.shape)}",
            )
        own = str(tensor.dtype).removeprefix("torch.")
        stored = self.dtype(name)
        if conversion_kind(stored) != conversion_kind(SAFETENSORS_DTYPES.get(own, own)):
            raise IrcError(
                "state-mismatch",
                f"'{name}' is {stored} in '{self.folder}'; the module has {own}",
                because="numbers of another kind have scales, without which they are other values",
                help="store it as it is without quantisation, or load it into a module that has "
                f"'{name}' in the dtype of the file",
            )


def conversion_kind(dtype: str) -> str:
    """Return within which kind of dtypes, as safetensors names them, one is converted to another.

    >>> [conversion_kind(dtype) for dtype in ("F32", "BF16", "I64", "U8", "BOOL", "F8_E4M3")]
    ['float', 'float', 'integer', 'integer', 'BOOL', 'F8_E4M3']
    """
    if dtype in FLOATS:
        return "float"
    return "integer" if dtype[0] in "IU" else dtype


class WeightFilesStart(StoredStart):
    """A folder of weights, as a start of a step of training (:mod:`irc.runtime.starts`).

    Args:
        files: the folder.
        stored: by the names that ranks hold, those in the folder.
    """

    def __init__(self, files: WeightFiles, stored: Mapping[str, str]) -> None:
        super().__init__(stored)
        self._files = files

    def fill(self, parts: Parts, names: Collection[str]) -> None:
        """Read this rank's parts, each its own slice; every rank calls it.

        Raises:
            IrcError: ``checkpoint-corrupt`` on every rank, also for a slice of one alone.
        """
        self.write(parts, names, {})

    def write(
        self, parts: Parts, names: Collection[str], wholes: Mapping[str, torch.Tensor]
    ) -> None:
        """Read whole tensors, and this rank's parts of others; see :meth:`fill`."""
        failed: IrcError | None = None
        try:
            for name, value in self.wholes(wholes):
                wholes[name].copy_(value)
            for name in names:
                for each, where in parts.pieces(name).items():
                    parts.local[each].copy_(self._files.read(self._stored[name], where))
        except IrcError as error:
            failed = error
        if parts.world > 1:
            fail_together(failed)
        elif failed is not None:
            raise failed

    def read(self, name: str, where: tuple[slice, ...]) -> torch.Tensor:
        """Return a slice of a tensor, in the dtype that it is stored in."""
        return self._files.read(self._stored[name], where)

    def wholes(self, names: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield whole tensors by name, in the dtypes of others of these names."""
        for name, like in names.items():
            if name in self._stored:
                yield name, self._files.read(self._stored[name], ()).to(like.dtype)
