"""The register of backends, and what each backend offers."""

import pytest

from irc.backends import BUILTIN
from irc.dialects.task import KernelOp
from irc.errors import IrcErrors
from irc.plugin import find_backend
from tests.backends import gpu_kernels as g


@pytest.mark.parametrize("name", ["triton", "cuda"])
def test_a_backend_offers_what_the_protocol_says(name: str) -> None:
    backend = find_backend(name)
    assert backend.name == name
    assert "sm_90" in backend.targets
    sources = backend.emit_plan_sources([g.softmax(), g.matmul()])
    assert list(sources) == [f"softmax{backend.extension}", f"matmul{backend.extension}"]
    assert sources["matmul" + backend.extension] == backend.emit(g.matmul())


def test_the_register_names_each_backend_once() -> None:
    assert {"cpu", "cuda", "triton"} <= set(BUILTIN)


@pytest.mark.parametrize("name", ["triton", "cuda"])
def test_what_any_kernel_lacks_is_in_one_report(name: str) -> None:
    def bad(fn: str) -> KernelOp:
        b = g.Builder(f"bad_{fn}", (4,), 1)
        x, y = b.input(4, "i64"), b.output(4, "i64")
        b.store(b.fn(fn, b.load(x, (1,))), y, (1,))
        return b.kernel()

    with pytest.raises(IrcErrors) as caught:
        find_backend(name).emit_plan_sources([bad("exp"), g.softmax(), bad("tanh")])
    assert "exp on i64" in str(caught.value) and "tanh on i64" in str(caught.value)
