"""What a session says of its model, and the calls that rest on ``run``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from irc.frontends.onnx.read import Source
from irc.onnx.binding import IOBinding, OrtValue
from irc.onnx.boundary import shape_of, type_text
from irc.onnx.options import (
    ModelMetadata,
    NodeArg,
    RunOptions,
    SessionOptions,
    check_provider,
    get_available_providers,
)


class Described(ABC):
    """A session by ONNX Runtime's names, but for how it runs.

    Args:
        source: the model.
        inputs: what each call gives, in order.
        options: what the user chose.
        providers: names of execution providers; the CPU is the one there is.

    Raises:
        IrcError: ``backend-unknown`` for another provider.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[onnx.ValueInfoProto],
        options: SessionOptions,
        providers: Sequence[Any] | None,
    ) -> None:
        self.options = options
        self._source = source
        self._inputs = list(inputs)
        self._outputs = list(source.model.graph.output)
        self.set_providers(providers)

    @abstractmethod
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Run once."""

    def get_inputs(self) -> list[NodeArg]:
        """Return what each call gives, in order."""
        return [_argument(value) for value in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return what each call gives back, in order."""
        return [_argument(value) for value in self._outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights that a call may give instead: none, as they are compiled in."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the file says of itself."""
        model = self._source.model
        return ModelMetadata(
            model.producer_name,
            model.graph.name,
            model.domain,
            model.doc_string,
            model.graph.doc_string,
            model.model_version,
            {each.key: each.value for each in model.metadata_props},
        )

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self.options

    def get_providers(self) -> list[str]:
        """Return where the model runs."""
        return get_available_providers()

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each execution provider: there are none."""
        return {name: {} for name in self.get_providers()}

    def set_providers(
        self, providers: Sequence[str | tuple[str, Any]] | None = None, _: Any = None
    ) -> None:
        """Check where the model is to run.

        Raises:
            IrcError: ``backend-unknown`` for another place than the CPU.
        """
        for name in providers or ():
            check_provider(name[0] if isinstance(name, tuple) else name)

    def disable_fallback(self) -> None:
        """Change nothing: irc never runs elsewhere than it says."""
        return

    def enable_fallback(self) -> None:
        """Change nothing: there is nowhere to fall back to."""
        return

    def io_binding(self) -> IOBinding:
        """Return a binding of inputs and outputs."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, _: RunOptions | None = None) -> None:
        """Run once on what is bound."""
        iobinding.run()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run once on values that are wrapped."""
        feeds = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(value) for value in self.run(output_names, feeds, run_options)]


def _argument(value: onnx.ValueInfoProto) -> NodeArg:
    return NodeArg(value.name, type_text(value.type), shape_of(value.type))
