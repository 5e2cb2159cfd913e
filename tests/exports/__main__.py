"""Compares exports with ONNX Runtime: ``python -m tests.exports [--only NAME] [--named]``.

Each architecture is exported by torch.onnx and run by both, then again as ONNX Runtime's own
optimiser writes it. Exits with 1 where a result differs by more than 1e-4 of its largest element.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.exports.compare import CLOSE, difference
from tests.exports.export import ARCHITECTURES, export, optimised
from tests.models.zoo.table import ZOO


def main() -> int:
    """Run."""
    options = _parser().parse_args()
    torch.set_num_threads(1)
    wrong = 0
    names = options.only or ARCHITECTURES
    for name in names:
        start = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            line, good = _one(name, Path(folder), named=options.named)
        wrong += not good
        print(f"{name:<14}{line}  {time.process_time() - start:5.1f} s", flush=True)
    print(f"{len(names) - wrong} of {len(names)} architectures agree within {CLOSE:g}")
    return int(wrong > 0)


def _one(name: str, folder: Path, *, named: bool) -> tuple[str, bool]:
    try:
        feeds = export(ZOO[name], folder / "model.onnx", named=named)
    except Exception as error:
        return f"torch.onnx does not export it: {type(error).__name__}", False
    figures: list[float] = []
    for file in ("model.onnx", "optimised.onnx"):
        if file == "optimised.onnx":
            optimised(folder / "model.onnx", folder / file)
        try:
            figures.append(difference(folder / file, feeds))
        except Exception as error:
            return f"{file}: {type(error).__name__}: {str(error)[:300]}", False
    return "  ".join(f"{figure:.1e}" for figure in figures), max(figures) <= CLOSE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.exports", description=__doc__)
    parser.add_argument("--only", action="append", help="an architecture of the zoo")
    parser.add_argument("--named", action="store_true", help="leave batch and sequence open")
    return parser


if __name__ == "__main__":
    sys.exit(main())
