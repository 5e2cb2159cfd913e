"""The CUDA driver by its C interface: modules, launches, tensor maps.

CUDA Driver API, "Module Management", "Execution Control", "Tensor Map Object Management". torch has
made the device's primary context, and its streams are the driver's own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from irc.backends.cuda.launch_table import MapSpec
from irc.errors import IrcError

LIBRARIES = ("libcuda.so.1", "libcuda.so")
# CUfunction_attribute, CUtensorMapDataType, -Interleave, -Swizzle, -L2promotion, -FloatOOBfill.
MAX_DYNAMIC_SHARED = 8
ELEMENT_TYPES = {"f16": 6, "bf16": 9}
NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_256B, FILL_ZERO = 0, 3, 3, 0
MAP_BYTES, MAP_ALIGNMENT = 128, 64

Handle: TypeAlias = int


class Driver:
    """The library; each method is one call of it.

    Args:
        library: loaded.

    Raises:
        IrcError: ``device-failed``, from every method, with what the driver says.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._call("cuInit", 0)
        launch = library.cuLaunchKernel
        launch.argtypes = [
            ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_void_p,
        ]  # fmt: skip
        self._launch: Any = launch

    def activate(self, device: int) -> None:
        """Let this thread use a device's primary context, where it uses none yet."""
        context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        if context.value is None:
            number = ctypes.c_int()
            self._call("cuDeviceGet", ctypes.byref(number), device)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self._call("cuCtxSetCurrent", context)

    def load_module(self, image: bytes) -> Handle:
        """Load machine code; it stays loaded as long as the process runs."""
        module = ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        return module.value or 0

    def function(self, module: Handle, name: str, shared: int) -> Handle:
        """Return a kernel of a module, allowed so much shared memory of the launch's choice."""
        kernel = ctypes.c_void_p()
        self._call(
            "cuModuleGetFunction", ctypes.byref(kernel), ctypes.c_void_p(module), name.encode()
        )
        if shared:
            self._call("cuFuncSetAttribute", kernel, MAX_DYNAMIC_SHARED, shared)
        return kernel.value or 0

    def launch(
        self,
        function: Handle,
        blocks: int,
        threads: int,
        shared: int,
        stream: Handle,
        arguments: int,
    ) -> None:
        """Start a kernel on a stream; ``arguments`` is the address of its arguments' addresses.

        The arguments are copied before this returns.
        """
        code = self._launch(
            function, blocks, 1, 1, threads, 1, 1, shared, stream or None, arguments, None
        )
        if code:
            raise self._error("cuLaunchKernel", code)

    def encode(self, to: int, spec: MapSpec, address: int) -> None:
        """Write a tensor map of :data:`MAP_BYTES` at an address that is aligned for it."""
        ndim = len(spec.sizes)
        self._call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(to), ELEMENT_TYPES[spec.dtype], ndim,
            ctypes.c_void_p(address), _array(ctypes.c_uint64, spec.sizes),
            _array(ctypes.c_uint64, spec.strides), _array(ctypes.c_uint32, spec.box),
            _array(ctypes.c_uint32, [1] * ndim), NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_256B,
            FILL_ZERO,
        )  # fmt: skip

    def copy(self, to: int, source: int, num_bytes: int, stream: Handle) -> None:
        """Copy device memory on a stream."""
        self._call(
            "cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(source),
            ctypes.c_size_t(num_bytes), ctypes.c_void_p(stream),
        )  # fmt: skip

    def _call(self, name: str, *arguments: object) -> None:
        if code := getattr(self._library, name)(*arguments):
            raise self._error(name, code)

    def _error(self, name: str, code: int) -> IrcError:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        said = (text.value or b"an error that it has no word for").decode("utf-8", "replace")
        return IrcError(
            "device-failed",
            f"the GPU's driver refuses {name}: {said} (CUresult {code})",
            because="once a kernel has failed, every later call fails until the process ends",
            help="run again with CUDA_LAUNCH_BLOCKING=1 to see which call is the first",
        )


def _array(kind: Any, values: Sequence[int]) -> Any:
    return (kind * len(values))(*values)


@cache
def find_driver() -> Driver:
    """Return the driver of this machine.

    Raises:
        IrcError: ``device-missing``.
    """
    for name in LIBRARIES:
        try:
            return Driver(ctypes.CDLL(name))
        except OSError:
            continue
    raise IrcError(
        "device-missing",
        "kernels of backend 'cuda' run on a GPU, and there is no NVIDIA driver here",
        because=f"no {LIBRARIES[0]} can be loaded",
        help="run the plan where there is one, or compile it with the backend cpu",
    )
