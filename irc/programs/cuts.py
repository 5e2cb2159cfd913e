"""What each stage has of a model of equal layers, for any number of stages."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from irc.dialects.builder import entry
from irc.pipeline import run_passes
from irc.pipeline.training import Training
from irc.search.blocks import Content
from irc.search.layers import layers_of
from irc.training.stage_choice import Costs, balanced, ops_in_line


class Cuts:
    """Cuts a model as ``cut-stages`` would; its ops are prepared and priced once for all cuts.

    Args:
        module: level flow, as captured, with a run of layers; it stays as it is.
        cluster: that prices ops.
    """

    def __init__(self, module: ModuleOp, cluster: str) -> None:
        self._module, self._cluster = module, cluster
        self._costs: Costs | None = None
        self._known: dict[int, tuple[Content, ...]] = {}

    def contents(self, stages: int) -> tuple[Content, ...]:
        """Return the layers of each stage where the model is cut into so many.

        Raises:
            IrcError: ``pipeline-stages`` for more of them than there is to share out.
        """
        if stages not in self._known:
            self._known[stages] = self._cut(stages)
        return self._known[stages]

    def _cut(self, stages: int) -> tuple[Content, ...]:
        if self._costs is None:
            self._module = self._module.clone()
            run_passes(self._module, Training(stream={}).of_model)
            self._costs = Costs(self._module, self._cluster)
        func, layers = entry(self._module), layers_of(self._module)
        assert layers is not None
        stage_of = balanced(func, self._costs, stages)
        last_of = [stage_of[layers.layer(number)[-1]] for number in range(layers.count)]
        line = ops_in_line(func)
        ends = stage_of[line[0]], stage_of[line[-1]]
        return tuple(
            Content(last_of.count(stage), stage == ends[0], stage == ends[1])
            for stage in range(stages)
        )
