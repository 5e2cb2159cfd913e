"""What every trial would load again: imports, and a first compilation."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from irc.cli import main
from tests.malformed.models import perceptron


def warm(*more: Sequence[str]) -> None:
    """Compile a well-formed model, so that children inherit the imports.

    Args:
        more: other command lines that children will give.

    Raises:
        AssertionError: where it does not compile.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        path = Path(name) / "model.onnx"
        path.write_bytes(perceptron().SerializeToString())
        assert main(["compile", str(path), "-o", str(Path(name) / "out")]) == 0
        for words in more:
            assert main([*words]) == 0, words
