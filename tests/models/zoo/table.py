"""All architectures of the zoo by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.models.zoo.decoders import DECODERS
from tests.models.zoo.encoders import ENCODERS, TRANSLATORS
from tests.models.zoo.model import Model
from tests.models.zoo.senses import SENSES

ZOO: Mapping[str, Model] = {
    model.name: model for model in (*DECODERS, *ENCODERS, *TRANSLATORS, *SENSES)
}
