"""irc: a distributed machine learning compiler.

The public names are resolved when they are first used, because torch takes seconds to import
and `irc --help` should not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from irc.api import compile as compile
    from irc.api import compile_entries as compile_entries
    from irc.api import explain as explain
    from irc.api import load as load
    from irc.api import original as original
    from irc.calls.frozen import freeze as freeze
    from irc.calls.sampler import data_sampler as data_sampler
    from irc.exports import export_entries as export_entries
    from irc.exports import export_plan as export_plan
    from irc.frontends.torch.annotations import place as place
    from irc.frontends.torch.capture import capture as capture
    from irc.ops.custom import register_op as register_op
    from irc.report.html.write import write_report as write_report
    from irc.runtime.whole import whole as whole
    from irc.step_api import compile_step as compile_step
    from irc.training.precision import Precision as Precision
    from irc.weight_files import load_safetensors as load_safetensors
    from irc.weight_files import save_safetensors as save_safetensors
    from irc.weight_only import quantize as quantize

__version__ = "0.1.0"

_LAZY = {
    "Precision": "irc.training.precision",
    "capture": "irc.frontends.torch.capture",
    "compile": "irc.api",
    "compile_entries": "irc.api",
    "compile_step": "irc.step_api",
    "data_sampler": "irc.calls.sampler",
    "explain": "irc.api",
    "export_entries": "irc.exports",
    "export_plan": "irc.exports",
    "freeze": "irc.calls.frozen",
    "load": "irc.api",
    "load_safetensors": "irc.weight_files",
    "original": "irc.api",
    "place": "irc.frontends.torch.annotations",
    "quantize": "irc.weight_only",
    "register_op": "irc.ops.custom",
    "save_safetensors": "irc.weight_files",
    "whole": "irc.runtime.whole",
    "write_report": "irc.report.html.write",
}

__all__ = [
    "Precision",
    "__version__",
    "capture",
    "compile",
    "compile_entries",
    "compile_step",
    "data_sampler",
    "explain",
    "export_entries",
    "export_plan",
    "freeze",
    "load",
    "load_safetensors",
    "original",
    "place",
    "quantize",
    "register_op",
    "save_safetensors",
    "whole",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'irc' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
