"""The register of backends, and what each backend offers."""

import pytest

from irc.backends import BUILTIN
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
