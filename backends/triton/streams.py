"""What the attention templates share: where roles lie in memory, masks of features, products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from irc.backends.triton.sizes import as_index
from irc.dialects.attention import PER_KEY, AttentionForm
from irc.kernels.arithmetic import power_of_two
from irc.kernels.form import Form
from irc.kernels.gpu.attention import LEAST_TILE
from irc.kernels.source import Source

LOG2E = math.log2(math.e)
LOWEST = -3.4028e38 / LOG2E
"""The least that a mask adds: ``finfo.min``, which hides a key, is -inf times ``LOG2E``."""


def mask_added(source: Source, mask: str) -> None:
    """Append what adds a mask to ``x``, scores in powers of two; minus infinity hides a key."""
    source.line(f"hides = {mask}.to(tl.float32)")
    source.line(f'hides = tl.where(hides > float("-inf"), tl.maximum(hides, {LOWEST!r}), hides)')
    source.line(f"x = x + hides * {LOG2E!r}")


class Stream:
    """A kernel that walks over keys, or over rows.

    Args:
        form: name, buffers and options of the kernel.
        attention: what it computes.
    """

    def __init__(self, form: Form, attention: AttentionForm) -> None:
        self.form, self.of = form, attention
        self.dtype = attention.places["q"].dtype

    @property
    def wide(self) -> str:
        """The conversion of a position that needs 64 bits."""
        return as_index(self.form)

    @staticmethod
    def extent(wanted: int | None, default: int, size: int) -> int:
        """Return a power of two for a tile: at least what a tensor core takes."""
        extent = default if wanted is None else power_of_two(wanted)
        return max(LEAST_TILE, min(extent, power_of_two(size)))

    def start(self) -> str:
        """Return the statement that sets ``start``: row s sees key t where s + start >= t."""
        place = self.of.places.get("start")
        if place is None:
            return "start = 0"
        return f"start = tl.load({self.form.buffer_name(place.buffer)} + {place.offset})"

    def head(self, number: int) -> str:
        """Return the name of a coordinate of [*lead, G, R]."""
        lead = len(self.of.lead)
        return f"b{number}" if number < lead else "gr"[number - lead]

    def place_heads(self, source: Source, heads: Sequence[int], inner: int) -> None:
        """Append the coordinates of a program's head: ``pid`` counts ``inner`` programs of each."""
        for number in reversed(range(len(heads))):
            text = f"pid // {inner}" if inner > 1 else "pid"
            text += f" % {heads[number]}" if number else ""
            source.line(f"{self.head(number)} = {text}")
            inner *= heads[number]

    def features(self, source: Source, name: str, size: int) -> str:
        """Append the feature numbers and return their name; a mask where the size is padded."""
        padded = power_of_two(max(size, LEAST_TILE))
        source.line(f"{name} = tl.arange(0, {padded})")
        if padded != size:
            source.line(f"m{name} = {name} < {size}")
        return name

    def both_features(self, source: Source) -> tuple[str, str]:
        """Append the numbers of the features of q and k and of those of v; return their names."""
        depth = self.features(source, "d", self.of.depth)
        if self.of.width == self.of.depth:
            return depth, depth
        return depth, self.features(source, "e", self.of.width)

    def feature_mask(self, name: str, size: int, index: str) -> list[str]:
        """Return the mask of padded features."""
        return [f"m{name}[{index}]"] if power_of_two(max(size, LEAST_TILE)) != size else []

    def address(self, role: str, key: str = "", feature: str = "", row: str = "s") -> str:
        """Return where a role's elements are for some rows, keys and features.

        A dim of one element has no stride, but a tile of rows or keys is a block all the same, with
        a mask of its shape; so the index of a role's own dim is always in the address.
        """
        place, lead = self.of.places[role], len(self.of.lead)
        strides = place.strides
        terms = [(f"b{d}", strides[d]) for d in range(lead)]
        terms += [("g", strides[lead]), ("r", strides[lead + 1]), (row, strides[lead + 2])]
        if self.of.parts > 1 and role not in PER_KEY:
            terms.append(("p", strides[lead + 3]))
        terms += [(key, strides[lead + 4])] if key else []
        terms += [(feature, place.feature)] if feature else []
        own = "" if role == "mask" else key if role in PER_KEY else row
        texts = [
            name if stride == 1 else f"{name} * {stride}"
            for name, stride in terms
            if stride or (name == own and ("[" in own or own == "s"))
        ]
        if place.offset or not texts:
            texts.append(str(place.offset))
        return f"{self.form.buffer_name(place.buffer)} + {' + '.join(texts)}"

    def has_rows(self, role: str) -> bool:
        """True where a role depends on the row, or on the query head of a key."""
        lead = len(self.of.lead)
        return any(self.of.places[role].strides[lead + 1 : lead + 3])

    def dot(self, a: str, b: str, onto: str = "") -> str:
        """Return a product that adds up in float32."""
        precision = "tf32" if self.form.options.get("tf32") else "ieee"
        first = f"{a}, {b}, {onto}" if onto else f"{a}, {b}"
        return f'tl.dot({first}, input_precision="{precision}", out_dtype=tl.float32)'


def load(address: str, masks: Sequence[str], other: str = "0") -> str:
    """Return a load; where a mask does not hold it gives ``other``."""
    if not masks:
        return f"tl.load({address})"
    return f"tl.load({address}, mask={' & '.join(masks)}, other={other})"
