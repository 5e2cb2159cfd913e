"""Compiling the files of the CUDA backend: by NVRTC where it is there, else by nvcc."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from irc.backends import KernelReport
from irc.backends.cuda.file import MAIN_BEGINS, emit_kernel, shared_bytes
from irc.backends.cuda.nvrtc import HEADER, Nvrtc, find_nvrtc, header_folder
from irc.cluster import object_store
from irc.errors import InternalError, IrcError

if TYPE_CHECKING:
    from irc.dialects.task import KernelOp

# Products and sums round apart, as in eager PyTorch; a matmul asks for fma by name.
FLAGS = ("-std=c++17", "-O3", "-fmad=false")
NVRTC_FLAGS = ("-std=c++17", "-fmad=false")
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
    """Compile a file by nvcc and return what ptxas says of it.

    Raises:
        IrcError: ``compiler-missing`` without nvcc.
    """
    _, log = _by_nvcc(source, arch)
    if any(note in log for note in SLOW):
        raise InternalError(f"nvcc gives up what makes a kernel fast: {log}")
    return log


def machine_code(sources: Sequence[str], arch: int) -> list[bytes]:
    """Compile files for a GPU, several at once; what earlier processes compiled is read from disk.

    Args:
        sources: the files.
        arch: compute capability as a number (90).

    Raises:
        IrcError: ``compiler-missing`` with neither NVRTC nor nvcc.
    """
    compiler, version = _compiler()
    keys = [_key(version, arch_name(arch), source) for source in sources]
    with ThreadPoolExecutor(max_workers=max(1, min(len(sources), os.cpu_count() or 1))) as pool:
        work = [
            pool.submit(_kept, key, source, arch, compiler)
            for key, source in zip(keys, sources, strict=True)
        ]
        return [each.result() for each in work]


def _kept(key: str, source: str, arch: int, compiler: Callable[[str, int], bytes]) -> bytes:
    code = object_store.read(key)
    if code is None:
        code = compiler(source, arch)
        object_store.write(key, code)
    return code


def _compiler() -> tuple[Callable[[str, int], bytes], str]:
    """Return what compiles a file, and what its code depends on beside the file."""
    library = find_nvrtc()
    if library is not None:
        flags = " ".join(NVRTC_FLAGS)
        return lambda source, arch: _by_nvrtc(library, source, arch), f"{library.version} {flags}"
    return lambda source, arch: _by_nvcc(source, arch)[0], nvcc_version(find_nvcc())


def _by_nvrtc(library: Nvrtc, source: str, arch: int) -> bytes:
    options = [f"--gpu-architecture={arch_name(arch)}", *NVRTC_FLAGS]
    # The main, which is left out here, has halves of its own.
    if HEADER in source.partition(MAIN_BEGINS)[0]:
        options.append(f"--include-path={header_folder()}")
    return library.compile(source, options)


def _by_nvcc(source: str, arch: int) -> tuple[bytes, str]:
    """Return machine code, and what ptxas says."""
    command = [find_nvcc(), *FLAGS, f"-gencode={target_of(arch)}", "-cubin", "-Xptxas", "-v"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source, encoding="utf-8")
        built = path.with_suffix(".cubin")
        done = subprocess.run(
            [*command, "-o", str(built), str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise InternalError(f"nvcc rejects what irc made: {done.stderr}")
        return built.read_bytes(), done.stdout + done.stderr


def _key(*parts: str) -> str:
    digest = hashlib.sha256(b"cuda")
    for part in parts:
        data = part.encode()
        # Lengths, so that no two lists of texts are one text.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


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
    if path := shutil.which("nvcc"):
        return path
    raise IrcError(
        "compiler-missing",
        "the CUDA backend needs NVRTC or nvcc, and finds neither",
        because="no libnvrtc can be loaded, and nvcc is not on the PATH",
        help="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime, or use --backend triton",
    )


@cache
def nvcc_version(path: str) -> str:
    """Return what a compiler says of itself."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return f"{done.stdout} {' '.join(FLAGS)}"
