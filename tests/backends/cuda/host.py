"""Runs the sources of CUDA kernels on the CPU, by g++ against the shim of this folder.

``run_on_host(kernel, inputs)`` is one kernel in every order of threads; ``build`` and ``run`` are
its halves, for tests that share a library among many kernels.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from irc.backends.cuda.file import emit_kernel
from irc.dialects.task import KernelOp
from irc.kernels.source import identifier
from tests.backends import gpu_kernels as g

SHIM = Path(__file__).with_name("shim.h")
ORDERS = ("forward", "reversed", "shuffled")
PAD = 64
"""Elements around each buffer, filled with NaN or 1, that must stay as they are."""
FLAGS = (
    "-std=c++17", "-O1", "-fPIC", "-shared", "-fwrapv", "-ffp-contract=off", "-Wno-unknown-pragmas",
)  # fmt: skip


class HostError(AssertionError):
    """A kernel broke a rule of the machine: the code says which (shim.h)."""


def build(
    folder: Path,
    kernels: Mapping[str, KernelOp],
    change: Callable[[str], str] | Mapping[str, Callable[[str], str]] = str,
    arch: int | Mapping[str, int] | None = None,
) -> ctypes.CDLL:
    """Compile the files of many kernels as one library, each in a namespace.

    Args:
        folder: where the sources go.
        kernels: by the name of their launcher, ``launch_<name>``.
        change: what happens to each source before it is compiled (a planted bug), or to those that
            it names.
        arch: compute capability for which the sources are made, all or by name; a kernel's own by
            default.
    """
    text: list[str] = []
    for name, kernel in kernels.items():
        changed = change.get(name, str) if isinstance(change, Mapping) else change
        target = arch.get(name) if isinstance(arch, Mapping) else arch
        (folder / f"{name}.cu").write_text(changed(emit_kernel(kernel, target)))
        # C names have no namespace: each is renamed around its file.
        own = identifier(kernel.sym_name.data)
        renamed = {"launch": f"launch_{name}"}
        renamed |= {f"{own}{end}": f"shim_{name}{end}" for end in ("", "_sum")}
        text += [f"#define {old} {new}" for old, new in renamed.items()]
        text.append(f'namespace space_{name} {{\n#include "{name}.cu"\n}}')
        text += [f"#undef {old}" for old in renamed]
    (folder / "all.cpp").write_text("\n".join(text))
    library = folder / "all.so"
    done = subprocess.run(
        ["g++", *FLAGS, "-include", str(SHIM), str(folder / "all.cpp"), "-o", str(library)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


class Libraries:
    """The kernels of a test file in two libraries, each built on first use: quick ones, the rest.

    Args:
        folder: where they go.
        kernels: all of them by name.
        quick: names of those that the ordinary run needs.
        options: as ``build`` has them.
    """

    def __init__(
        self, folder: Path, kernels: Mapping[str, KernelOp], quick: Collection[str], **options: Any
    ) -> None:
        self.folder, self.kernels, self.quick, self.options = folder, kernels, quick, options
        self.built: dict[bool, ctypes.CDLL] = {}

    def __getitem__(self, name: str) -> ctypes.CDLL:
        is_quick = name in self.quick
        if is_quick not in self.built:
            folder = self.folder / ("quick" if is_quick else "rest")
            folder.mkdir()
            chosen = {n: k for n, k in self.kernels.items() if (n in self.quick) == is_quick}
            self.built[is_quick] = build(folder, chosen, **self.options)
        return self.built[is_quick]


def with_bugs(
    folder: Path,
    kernels: Mapping[str, KernelOp],
    bugs: Mapping[str, tuple[str, str, str]],
    quick: Collection[str],
) -> Libraries:
    """Return kernels with one planted bug each, under the name of the bug.

    Args:
        folder: where they go.
        kernels: those that are right, by name.
        bugs: the kernel, what is replaced in its source, and by what.
        quick: bugs that the ordinary run needs.
    """

    def plant(text: str, bug: str) -> Callable[[str], str]:
        def change(source: str) -> str:
            assert text in source, "the bug is not planted"
            return source.replace(text, bug)

        return change

    return Libraries(
        folder,
        {bug: kernels[name] for bug, (name, _, _) in bugs.items()},
        quick,
        change={bug: plant(text, wrong) for bug, (_, text, wrong) in bugs.items()},
    )


def marked(names: Collection[str], quick: Collection[str]) -> list[Any]:
    """Return names as parameters of a test; all but the quick ones are slow."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def run(
    library: ctypes.CDLL,
    kernel: KernelOp,
    inputs: Sequence[torch.Tensor],
    order: int,
    name: str | None = None,
    sizes: Sequence[int] = (),
) -> list[torch.Tensor]:
    """Run a kernel of a library in one order; its buffers are exact, and so is what it touches.

    Args:
        library: the result of ``build``.
        kernel: the kernel.
        inputs: one tensor for each input buffer.
        order: of threads, an index of ``ORDERS``.
        name: under which it was built; the kernel's own by default.
        sizes: that the one that was built takes.

    Raises:
        HostError: an access outside a buffer, a barrier that some threads miss, shared memory
            beyond the limit, or a write around a buffer.
    """
    padded: list[torch.Tensor] = []
    views: list[torch.Tensor] = []
    for i, arg in enumerate(kernel.args):
        size, dtype = arg.type.num_elements, g.dtypes()[arg.type.dtype]
        fill = torch.nan if dtype.is_floating_point else 1
        whole = torch.full((size + 2 * PAD,), fill, dtype=dtype)
        view = whole[PAD : PAD + size]
        if i < len(inputs):
            view.copy_(inputs[i].reshape(-1))
        padded.append(whole)
        views.append(view)
    before = [w.clone() for w in padded]
    library.shim_reset(order)
    for view in views:
        size = ctypes.c_longlong(view.numel() * view.element_size())
        library.shim_buffer(ctypes.c_void_p(view.data_ptr()), size)
    pointers = (ctypes.c_void_p * len(views))(*[v.data_ptr() for v in views])
    size_arguments = [(ctypes.c_longlong * len(sizes))(*sizes)] if sizes else []
    code = getattr(library, f"launch_{name or kernel.sym_name.data}")(
        pointers, *size_arguments, None
    )
    if code:
        raise HostError(f"CUDA error {code}")
    for i, (was, now) in enumerate(zip(before, padded, strict=True)):
        if i >= len(inputs):
            was[PAD:-PAD] = now[PAD:-PAD]
        if not torch.equal(was.view(torch.uint8), now.view(torch.uint8)):
            raise HostError(f"buffer {i} was overrun")
    return [v.clone() for v in views[len(inputs) :]]


def run_in_all_orders(
    library: ctypes.CDLL,
    kernel: KernelOp,
    inputs: Sequence[torch.Tensor],
    name: str | None = None,
    sizes: Sequence[int] = (),
) -> list[torch.Tensor]:
    """Run a kernel in every order of threads; all of them give the same.

    Raises:
        HostError: as ``run``, and where the result depends on the order.
    """
    runs = [run(library, kernel, inputs, order, name, sizes) for order in range(len(ORDERS))]
    for other in runs[1:]:
        for one, two in zip(runs[0], other, strict=True):
            if not torch.equal(one.view(torch.uint8), two.view(torch.uint8)):
                raise HostError("the result depends on the order of threads")
    return runs[0]


def run_on_host(
    kernel: KernelOp,
    inputs: Sequence[torch.Tensor],
    change: Callable[[str], str] = str,
    arch: int | None = None,
) -> list[torch.Tensor]:
    """Emit, compile and run one kernel in all orders; return its outputs, flat.

    Args:
        kernel: the kernel.
        inputs: one tensor for each input buffer, of its size and dtype.
        change: what happens to the source before it is compiled (a planted bug).
        arch: compute capability for which the source is made; the kernel's own by default.

    Raises:
        HostError: whatever the machine would not do.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder), {kernel.sym_name.data: kernel}, change, arch)
        return run_in_all_orders(library, kernel, inputs)
