"""Compiling and loading the files of the Triton backend."""

# pyright: basic
from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
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


def compile_module(module: ModuleType, arch: int, *, alignment: int = 16) -> Any:
    """Compile the kernel of an imported file; Triton keeps the binary on disk.

    Args:
        module: as :func:`import_kernel` gives it.
        arch: compute capability, 90 for 9.0.
        alignment: bytes that every buffer is known to be aligned to.

    Returns:
        Triton's compiled kernel: ``found[grid](*pointers)`` launches it where there is a GPU.
    """
    triton = import_triton()
    target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
    if hasattr(module, "HEAD"):  # it reads addresses from a table
        source = triton.compiler.ASTSource(
            fn=getattr(module, module.KERNEL),
            signature={"table": "*i64", "ALIGNMENT": "constexpr"},
            constexprs={"ALIGNMENT": alignment},
            attrs={(0,): [["tt.divisibility", 16]]},
        )
        return triton.compile(source, target=target, options=dict(module.OPTIONS))
    aligned = [["tt.divisibility", alignment]] if alignment > 1 else []
    source = triton.compiler.ASTSource(
        fn=getattr(module, module.KERNEL),
        signature={name: SIGNATURES[_short(dtype)] for name, _, dtype, _ in module.BUFFERS},
        constexprs={},
        # Without it no wide or asynchronous loads.
        attrs={(i,): aligned for i in range(len(module.BUFFERS)) if aligned},
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
        import triton
        import triton.backends.compiler
        import triton.compiler
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
