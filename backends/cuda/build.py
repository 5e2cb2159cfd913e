"""Compiling and loading the files of the CUDA backend."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from irc.backends import KernelReport
from irc.backends.cuda.file import emit_kernel, shared_bytes
from irc.errors import InternalError, IrcError

if TYPE_CHECKING:
    import torch

    from irc.dialects.task import KernelOp

# Products and sums round apart, as in eager PyTorch; a matmul asks for fma by name.
FLAGS = ("-std=c++17", "-O3", "-fmad=false")
# How ptxas says that it could not keep asynchronous products apart from what uses their registers,
# or does not know with how many a warpgroup that takes more starts.
SLOW = ("wgmma.mma_async instructions are serialized", "'setmaxnreg' ignored")


def compile_for(kernel: KernelOp, arch: int) -> KernelReport:
    """Compile a kernel ahead of time for ``sm_<arch>``; needs no GPU.

    Raises:
        IrcError: ``compiler-missing`` without nvcc, ``op-unsupported``.
    """
    log = compile_source(emit_kernel(kernel, arch), arch)
    return KernelReport.of_ptxas(log, shared_bytes(kernel, arch))


def compile_source(source: str, arch: int) -> str:
    """Compile a file to machine code and return what ptxas says of it.

    Raises:
        IrcError: ``compiler-missing`` without nvcc.
    """
    nvcc = find_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source, encoding="utf-8")
        command = [nvcc, *FLAGS, f"-gencode={target_of(arch)}", "-cubin", "-Xptxas", "-v"]
        log = _run([*command, "-o", str(path.with_suffix(".cubin")), str(path)])
    if any(note in log for note in SLOW):
        raise InternalError(f"nvcc gives up what makes a kernel fast: {log}")
    return log


def load(path: str | Path, arch: int | None = None) -> Callable[..., None]:
    """Compile a kernel file into a library; the result takes CUDA tensors, inputs then outputs.

    Libraries are kept under the digest of their source, compiler and flags.

    Args:
        path: the ``.cu`` file.
        arch: compute capability as a number (90); that of the current device by default.

    Raises:
        IrcError: ``compiler-missing`` without nvcc, ``file-missing``.
    """
    source = Path(path)
    if not source.is_file():
        raise IrcError("file-missing", f"no kernel file {path}")
    if arch is None:
        import torch

        major, minor = torch.cuda.get_device_capability()
        arch = 10 * major + minor
    return _bound(ctypes.CDLL(str(_library(source, arch))))


def _bound(library: ctypes.CDLL) -> Callable[..., None]:
    entry = library.launch
    entry.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    entry.restype = ctypes.c_int

    def launch(*buffers: torch.Tensor) -> None:
        """Start the kernel on the current stream; contiguous CUDA tensors."""
        import torch

        pointers = (ctypes.c_void_p * len(buffers))(*[b.data_ptr() for b in buffers])
        code = entry(pointers, torch.cuda.current_stream().cuda_stream)
        if code:
            raise InternalError(f"a kernel did not start: CUDA error {code}")

    return launch


def _library(source: Path, arch: int) -> Path:
    nvcc = find_nvcc()
    command = [nvcc, *FLAGS, f"-gencode={target_of(arch)}", "-shared", "-Xcompiler", "-fPIC"]
    key = "\0".join([source.read_text(encoding="utf-8"), *command])
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / library.name
            _run([*command, "-o", str(built), str(source)])
            # Renamed, so that another process sees the whole library or none.
            built.rename(library)
    return library


def cache_folder() -> Path:
    """Return where compiled libraries are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "irc" / "cuda"


def arch_name(arch: int) -> str:
    """Return nvcc's name of an architecture.

    >>> arch_name(80), arch_name(90)
    ('sm_80', 'sm_90a')
    """
    return f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"


def target_of(arch: int) -> str:
    """Return what ``-gencode`` takes: machine code of one architecture alone.

    The short form ``-arch=sm_90a`` adds PTX of 9.0, which has no wgmma, to what it links.

    >>> target_of(90)
    'arch=compute_90a,code=sm_90a'
    """
    name = arch_name(arch)
    return f"arch={name.replace('sm', 'compute')},code={name}"


def find_nvcc() -> str:
    """Return the compiler.

    Raises:
        IrcError: ``compiler-missing``.
    """
    if found := shutil.which("nvcc"):
        return found
    raise IrcError(
        "compiler-missing",
        "the CUDA backend needs nvcc, which is not on the PATH",
        help="install the CUDA toolkit, or use --backend triton",
    )


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InternalError(f"nvcc rejects what irc made: {done.stderr}")
    return done.stdout + done.stderr
