"""Compiling and loading the files of the Triton backend."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from irc.backends import KernelReport
from irc.backends.triton.file import TORCH, emit_kernel
from irc.backends.triton.functions import SIGNATURES
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError


def compile_for(kernel: KernelOp, arch: int) -> KernelReport:
    """Compile a kernel ahead of time for ``sm_<arch>``; needs no GPU.

    Of one that takes sizes, this is the variant for any of them.

    Raises:
        IrcError: ``compiler-missing`` without Triton, ``op-unsupported``.
    """
    return compile_text(emit_kernel(kernel), arch)


def compile_text(text: str, arch: int) -> KernelReport:
    """Compile a kernel file ahead of time for ``sm_<arch>``; needs no GPU.

    Raises:
        IrcError: ``compiler-missing`` without Triton.
    """
    import_triton()
    with tempfile.TemporaryDirectory() as folder:
        # Triton reads the source of a function from its file.
        path = Path(folder) / "kernel.py"
        path.write_text(text, encoding="utf-8")
        compiled = compile_module(import_kernel(path), arch)
    return _report(compiled, arch)


ALIGNMENT = 16
"""Bytes that wide and asynchronous loads need; buffers of a plan have it, a caller's may not."""


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, beside its file.

    Attributes:
        alignment: bytes that every buffer is known to be aligned to.
        is_even: all sizes of the launch are multiples of 16.
        is_wide: positions need 64 bits.
    """

    alignment: int = ALIGNMENT
    is_even: bool = False
    is_wide: bool = False


def variant_of(module: ModuleType, sizes: Sequence[int], alignment: int) -> Variant:
    """Return what a launch of a kernel that takes sizes is compiled for."""
    even = module.HAS_STRIDES and not any(size % ALIGNMENT for size in sizes)
    return Variant(alignment, even, module.is_wide(*sizes))


def compile_module(module: ModuleType, arch: int, variant: Variant = Variant()) -> Any:
    """Compile the kernel of an imported file; Triton keeps the binary on disk.

    Args:
        module: as :func:`import_kernel` gives it.
        arch: compute capability, 90 for 9.0.
        variant: of the launch.

    Returns:
        Triton's compiled kernel: ``found[grid](*pointers)`` launches it where there is a GPU, with
        the sizes that it takes, and a word for each constant, behind the pointers.
    """
    triton = import_triton()
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    alignment = variant.alignment
    aligned = [["tt.divisibility", alignment]] if alignment > 1 else []
    attrs: dict[tuple[int], Any] = {(0,): [["tt.divisibility", ALIGNMENT]]}
    constants: dict[str, Any] = {}
    if hasattr(module, "HEAD"):  # it reads addresses from a table
        signature = {"table": "*i64", "ALIGNMENT": "constexpr"}
        constants = {"ALIGNMENT": alignment}
    else:
        rows = module.described(*module.EXAMPLE) if hasattr(module, "described") else module.BUFFERS
        signature = {name: SIGNATURES[_short(dtype)] for name, _, dtype, _ in rows}
        # Without it no wide or asynchronous loads.
        attrs = {(i,): aligned for i in range(len(rows)) if aligned}
    if hasattr(module, "EXAMPLE"):
        kind, first = ("i64" if variant.is_wide else "i32"), len(signature)
        count = len(module.EXAMPLE)
        signature |= {f"N{i}": kind for i in range(count)} | {"INDEX": "constexpr"}
        constants["INDEX"] = triton.language.int64 if variant.is_wide else triton.language.int32
        if variant.is_even:
            attrs |= {(first + i,): [["tt.divisibility", ALIGNMENT]] for i in range(count)}
    source = triton.compiler.ASTSource(
        fn=getattr(module, module.KERNEL), signature=signature, constexprs=constants, attrs=attrs
    )
    return triton.compile(source, target=target, options=dict(module.OPTIONS))


def _short(dtype: Any) -> str:
    return next(short for short, name in TORCH.items() if str(dtype) == f"torch.{name}")


def _report(compiled: Any, arch: int) -> KernelReport:
    from triton.backends.nvidia.compiler import get_ptxas

    name = f"sm_{arch}a" if arch >= 90 else f"sm_{arch}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
        ptx.write(compiled.asm["ptx"])
        ptx.flush()
        done = subprocess.run(
            [get_ptxas(arch).path, f"-arch={name}", "-v", "-o", os.devnull, ptx.name],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise InternalError(f"ptxas rejects what Triton made: {done.stderr}")
    return KernelReport.of_ptxas(done.stderr, compiled.metadata.shared)


def load(path: str | Path) -> Callable[..., None]:
    """Import a kernel file; the result takes torch tensors, inputs then outputs.

    Under ``TRITON_INTERPRET=1`` it runs on CPU tensors.

    Raises:
        IrcError: ``compiler-missing`` without Triton, ``file-missing``.
    """
    if not Path(path).is_file():
        raise IrcError("file-missing", f"no kernel file {path}")
    return import_kernel(Path(path)).launch


def import_kernel(path: Path) -> ModuleType:
    """Import a kernel file.

    Raises:
        IrcError: ``compiler-missing`` without Triton.
    """
    import_triton()
    if is_interpreted():
        from irc.backends.triton.interpreter import complete_interpreter

        complete_interpreter()
    return import_file(path)


def is_interpreted() -> bool:
    """True where kernels run in Triton's interpreter, on the host."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def import_triton() -> ModuleType:
    """Import Triton.

    Raises:
        IrcError: ``compiler-missing``.
    """
    try:
        # Callers read the inner modules as attributes of it.
        import triton
        import triton.backends.compiler  # pyright: ignore[reportUnusedImport]
        import triton.compiler  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise IrcError(
            "compiler-missing",
            "the Triton backend needs the package triton",
            because=str(error),
            help="pip install 'irc-compiler[triton]', or use --backend cuda",
        ) from None
    return triton


def import_file(path: Path) -> ModuleType:
    """Import a file under a name of its own."""
    name = f"irc_kernel_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
