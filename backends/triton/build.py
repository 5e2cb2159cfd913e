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
from irc.backends.triton.file import emit_form
from irc.backends.triton.functions import SIGNATURES
from irc.dialects.task import KernelOp
from irc.errors import InternalError, IrcError
from irc.kernels.form import read
from irc.kernels.source import identifier


def compile_for(kernel: KernelOp, arch: int) -> KernelReport:
    """Compile a kernel ahead of time for ``sm_<arch>``; needs no GPU.

    Raises:
        IrcError: ``compiler-missing`` without Triton, ``op-unsupported``.
    """
    triton = import_triton()
    form = read(kernel)
    with tempfile.TemporaryDirectory() as folder:
        # Triton reads the source of a function from its file.
        path = Path(folder) / f"{identifier(form.name)}.py"
        path.write_text(emit_form(form), encoding="utf-8")
        module = import_file(path)
        function = getattr(module, identifier(form.name))
        names = [form.buffer_name(i) for i in range(len(form.buffers))]
        source = triton.compiler.ASTSource(
            fn=function,
            signature={n: SIGNATURES[b.dtype] for n, b in zip(names, form.buffers, strict=True)},
            constexprs={},
            # Buffers of a plan are aligned to 64 bytes; without this no wide or asynchronous loads.
            attrs={(i,): [["tt.divisibility", 16]] for i in range(len(names))},
        )
        target = triton.backends.compiler.GPUTarget("cuda", arch, 32)
        compiled = triton.compile(source, target=target, options=dict(module.OPTIONS))
    return _report(compiled, arch)


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
    import_triton()
    if os.environ.get("TRITON_INTERPRET") == "1":
        from irc.backends.triton.interpreter import complete_libdevice

        complete_libdevice()
    if not Path(path).is_file():
        raise IrcError("file-missing", f"no kernel file {path}")
    return import_file(Path(path)).launch


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
