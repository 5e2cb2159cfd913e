"""What frontends give and the pipeline takes: IR, and the tensors that it refers to by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import arguments, entry, results

if TYPE_CHECKING:
    import torch


@dataclass
class Program:
    """A module whose entry is ``@forward``.

    Attributes:
        module: the IR, at any level.
        tensors: value of each argument of role parameter, buffer or constant, by its name.
        source: what the program was made from, for reports (``gpt.py:GPT``, ``model.onnx``).
    """

    module: ModuleOp
    tensors: dict[str, torch.Tensor] = field(default_factory=dict[str, "torch.Tensor"])
    source: str = "program"

    @property
    def input_names(self) -> list[str]:
        """Names of the arguments that each call gives, in order."""
        return [name for role, name, _ in arguments(entry(self.module)) if role == "input"]

    @property
    def output_names(self) -> list[str]:
        """Names of the results that each call gives back, in order."""
        return [name for role, name in results(entry(self.module)) if role == "output"]

    def copy(self) -> Program:
        """Return the same program, whose module may be changed; the tensors are shared."""
        return Program(self.module.clone(), dict(self.tensors), self.source)

    def bind(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return all arguments in order, given the inputs by name."""
        return [
            inputs[name] if role == "input" else self.tensors[name]
            for role, name, _ in arguments(entry(self.module))
        ]
