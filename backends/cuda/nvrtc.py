"""NVRTC: NVIDIA's compiler as a library, which torch's CUDA builds bring along.

Called by its C interface (NVRTC reference, "API Usage"); it needs no host compiler and no process,
and gives machine code of one architecture.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from irc.errors import InternalError, IrcError

LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
HEADER = "cuda_fp16.h"


class Nvrtc:
    """The library.

    Args:
        library: loaded.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p

    @property
    def version(self) -> str:
        """Of the compiler: ``13.0``."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, source: str, options: Sequence[str]) -> bytes:
        """Compile a file to machine code; other threads may do so meanwhile.

        Args:
            source: CUDA C++, without a host's part.
            options: of the compiler.

        Raises:
            InternalError: with what the compiler says, where it rejects the file.
        """
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None,
            None,
        )  # fmt: skip
        try:
            encoded = (ctypes.c_char_p * len(options))(*[each.encode() for each in options])
            if self._library.nvrtcCompileProgram(program, len(options), encoded):
                raise InternalError(f"NVRTC rejects what irc made: {self._log(program)}")
            return self._read(program, "nvrtcGetCUBIN")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _log(self, program: ctypes.c_void_p) -> str:
        return self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode("utf-8", "replace")

    def _read(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{name}Size", program, ctypes.byref(size))
        memory = ctypes.create_string_buffer(size.value)
        self._call(name, program, memory)
        return memory.raw

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            text = self._library.nvrtcGetErrorString(code).decode()
            raise InternalError(f"{name} fails: {text}")


@cache
def find_nvrtc() -> Nvrtc | None:
    """Return the library, None where there is none."""
    for folder in _folders("lib", "lib64"):
        for name in LIBRARIES:
            if (folder / name).is_file():
                # It opens them by name, and packages are not where the loader looks.
                for part in sorted(folder.glob("libnvrtc-builtins.so*")):
                    _opened(str(part.resolve()))
                if (nvrtc := _opened(str(folder / name))) is not None:
                    return Nvrtc(nvrtc)
    libraries = (_opened(name) for name in LIBRARIES)
    return next((Nvrtc(library) for library in libraries if library is not None), None)


def _opened(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


@cache
def header_folder() -> Path:
    """Return the folder of CUDA's headers.

    Raises:
        IrcError: ``compiler-missing``.
    """
    for folder in _folders("include"):
        if (folder / HEADER).is_file():
            return folder
    raise IrcError(
        "compiler-missing",
        f"kernels of half types need CUDA's headers, and there is no {HEADER}",
        because="NVRTC does not bring them along",
        help="pip install nvidia-cuda-runtime, set CUDA_HOME, or use --backend triton",
    )


def _folders(*names: str) -> Iterator[Path]:
    """Yield folders of some names in CUDA's installations: NVIDIA's packages, then toolkits."""
    roots: list[Path] = []
    for place in _package_folders("nvidia"):
        roots += sorted(part for part in place.iterdir() if part.is_dir())
    roots += [place / "backends" / "nvidia" for place in _package_folders("triton")]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            roots.append(Path(home))
    if nvcc := shutil.which("nvcc"):
        roots.append(Path(nvcc).resolve().parents[1])
    roots.append(Path("/usr/local/cuda"))
    for root in roots:
        for name in names:
            if (root / name).is_dir():
                yield root / name


def _package_folders(package: str) -> list[Path]:
    """Return where a package lies, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    places = None if spec is None else spec.submodule_search_locations
    return [Path(place) for place in places or ()]
