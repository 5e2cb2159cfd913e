"""Plan folders to explain, made once."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from irc.exports import export_plan
from tests.report.pages import write_plans

PAIR = "*up.weight = [tensor = S(0)]; *down.weight = [tensor = S(1)]"
"""Column then row: the sum that is left takes an all-reduce."""

MEGATRON = """
*.up.weight = [tensor = S(0)]
*.down.weight = [tensor = S(1)]
*.q.weight = [tensor = S(0)]; *.k.weight = [tensor = S(0)]; *.v.weight = [tensor = S(0)]
*.o.weight = [tensor = S(1)]
head.weight = [tensor = S(0)]; tokens.weight = [tensor = S(0)]
"""


def _nets() -> ModuleType:
    name = "irc_report_nets"
    spec = importlib.util.spec_from_file_location(name, NETS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Capture asks for the module of a class by its name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


NETS = Path(__file__).with_name("nets.py")
nets = _nets()


def line_of(method: object, text: str) -> str:
    """Return the source line of a method that holds a text, as constraints name it."""
    lines, first = inspect.getsourcelines(method)  # type: ignore[arg-type]
    (offset,) = [i for i, line in enumerate(lines) if text in line]
    return f"nets.py:{first + offset}"


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of the net: on one device, split in pairs, on two axes; and of the odd op."""
    folder = tmp_path_factory.mktemp("plans")
    module, x = nets.net()
    folders: dict[str, Path] = {}
    for name, mesh, pins in (
        ("one", "", ""),
        ("pair", "tensor=2", PAIR),
        ("free", "tensor=2", ""),
        ("grid", "data=2,tensor=2", f"{PAIR}\nnorm.* = [tensor = S(0)]"),
    ):
        folders[name] = folder / name
        export_plan(
            module.eval(), (x,), out=folders[name], mesh=mesh, cluster="demo-gpus", pins=pins
        )
    folders["odd"] = folder / "odd"
    square = torch.randn(8, 8)
    export_plan(
        nets.Odd(), (square, square), out=folders["odd"], mesh="tensor=2", cluster="demo-gpus"
    )
    return folders


@pytest.fixture(scope="session")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of the transformer, split as Megatron does, without and with sequences."""
    folder = tmp_path_factory.mktemp("transformers")
    module, tokens = nets.transformer()
    forward = nets.Transformer.forward
    rows, columns = (line_of(forward, text) for text in ("self.tokens(", "self.head("))
    ends = f'at "{rows}" = [tensor = P]\nat "{columns}" = [tensor = S(2)]\n'
    # The residual stream is what the two lines of a layer add to.
    residuals = [line_of(nets.Layer.forward, text) for text in ("self.o(", "self.down(")]
    whole = "".join(f'at "{line}" = [tensor = B]\n' for line in residuals)
    norm = line_of(forward, "self.norm(")
    parts = "".join(f'at "{line}" = [tensor = S(1)]\n' for line in (*residuals, norm))
    folders: dict[str, Path] = {}
    for name, mesh, pins in (
        ("whole", "tensor=2", MEGATRON + ends + whole),
        ("sequence", "data=2,tensor=2", MEGATRON + ends + parts),
    ):
        folders[name] = folder / name
        inputs = (tokens,)
        export_plan(
            module.eval(), inputs, out=folders[name], mesh=mesh, cluster="demo-gpus", pins=pins
        )
    return folders


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a plan of each kind, for pages."""
    folder = tmp_path_factory.mktemp("kinds")
    write_plans(folder)
    return folder
