"""What a step that is made to fit takes at least, by pieces that are planned already.

A step is made smaller by layers that are computed again, and by what lies in parts
(:mod:`irc.search.fitting`). Each of these choices has pieces of its own, which take long to plan.
What they take at least is known from those of the step as it is:

- A layer that is computed again takes forward and backward together what it did, and at least its
  products once more that backward reads (:mod:`irc.search.again`), on all ranks of the stage at
  their peak. It saves what the layer before it gave at least, divided among all ranks.
- What lies in parts is gathered and summed in each micro-batch, so that functions take as long at
  least as where less of it does, on as many copies of the model or on fewer. The update, which is
  divided, is not counted, nor is anything that is held.
- A rank with the whole model takes as long at least in more micro-batches as in fewer.

The first is arithmetic. The others hold where a search of placements comes as close to the best
in one case as in the other; tests hold all prices of small models to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from irc.dialects.items import ITEM_BYTES
from irc.search.blocks import UPDATE, Blocks, Piece


def computed_again(blocks: Blocks, again_s: float, ranks: int) -> Blocks:
    """Return pieces with a layer that is computed again, of which none takes or holds more.

    Args:
        blocks: of the same step, whose layers are not computed again.
        again_s: seconds that a layer's products take at least once more.
        ranks: of a stage.
    """
    layer = blocks.layer
    # Of I and W the later one: what the stage before waits for is then there no later.
    kind = "W" if "W" in layer.seconds else "B"
    seconds = {**layer.seconds, kind: layer.seconds.get(kind, 0.0) + again_s}
    handed = sum(ITEM_BYTES[each.dtype] * prod(each.shape) for each in blocks.passed)
    saved = dict.fromkeys(layer.saved_bytes, 0.0)
    if "F-B" in saved or "F-I" in saved:
        saved["F-B" if "F-B" in saved else "F-I"] = handed / ranks
    again = replace(layer, seconds=seconds, saved_bytes=saved, arena_bytes={})
    return replace(blocks, again=again)


def in_more_parts(blocks: Blocks) -> Blocks:
    """Return pieces of which none of those that lie in more parts take less, or hold less."""

    def of(piece: Piece) -> Piece:
        return Piece(
            {**piece.seconds, UPDATE: 0.0},
            saved_bytes=_nothing(piece.saved_bytes),
        )

    return replace(
        blocks,
        each=of(blocks.each),
        first=of(blocks.first),
        layer=of(blocks.layer),
        last=of(blocks.last),
        again=None,
    )


def _nothing(own: Mapping[str, float]) -> dict[str, float]:
    return dict.fromkeys(own, 0.0)
