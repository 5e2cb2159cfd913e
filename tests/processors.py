"""Instruction sets that tests write kernels for, and which of them run on this machine."""

from __future__ import annotations

import pytest

from irc.backends.cpu.features import AVX2, AVX512, BASELINE, Features, host

needs_avx512 = pytest.mark.skipif(not AVX512.runs_on(host()), reason="no AVX-512 here")


def runnable() -> list[Features]:
    """Return the sets whose kernels run here, the most capable first."""
    return [features for features in (AVX512, AVX2, BASELINE) if features.runs_on(host())]


EVERY = [
    pytest.param(AVX512, marks=needs_avx512, id="avx512"),
    pytest.param(AVX2, marks=pytest.mark.skipif(not AVX2.runs_on(host()), reason="no AVX2 here"),
                 id="avx2"),
    pytest.param(BASELINE, id="baseline"),
]  # fmt: skip
"""Parameters of a test that runs kernels on each."""
