"""Models of transformers from a configuration alone: on the meta device, without weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from irc.errors import IrcError, did_you_mean
from irc.frontends.torch.named import Example

CONFIG = "config.json"
CAUSAL = "ForCausalLM"
BATCH, SEQUENCE = 8, 2048
"""Of an example batch, where nobody says."""


class LanguageLoss(nn.Module):
    """A language model with its own loss: ``forward(ids, labels)``, both int64 of one shape."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of the next tokens."""
        return self.model(ids, labels=labels, use_cache=False).loss


class Logits(nn.Module):
    """A language model without a cache: ``forward(ids)``, int64 (batch, sequence)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of all positions."""
        return self.model(ids, use_cache=False).logits


def is_huggingface(text: str) -> bool:
    """True for a ``config.json`` or a folder with one, and for the name of a class.

    >>> is_huggingface("LlamaConfig"), is_huggingface("llama/config.json")
    (True, True)
    >>> is_huggingface("model.onnx"), is_huggingface("net.py:build")
    (False, False)
    """
    path = Path(text)
    return path.suffix == ".json" or (path / CONFIG).is_file() or text.isidentifier()


def huggingface_example(
    text: str, *, batch: int | None = None, sequence: int | None = None, training: bool = True
) -> Example:
    """Return a language model on the meta device, in its configuration's dtype, and a batch.

    Args:
        text: a ``config.json``, a folder with one, or the name of a configuration's or a model's
            class in transformers, whose defaults then count.
        batch: sequences; 8 where nobody says.
        sequence: tokens of each; 2048, or the most that the model has positions for.
        training: the module gives its loss, for ids and labels; otherwise logits, for ids.

    Raises:
        IrcError: ``package-missing`` without transformers; ``model-missing``, ``model-invalid``.
    """
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise IrcError(
            "package-missing",
            f"'{text}' is a configuration of transformers, which is not installed",
            because=str(error),
            help="pip install transformers; or name a function that returns (module, example_args)",
        ) from None
    config = _config(transformers, text)
    most = getattr(config, "max_position_embeddings", None)
    length = sequence or min(SEQUENCE, most if isinstance(most, int) else SEQUENCE)
    if isinstance(most, int) and length > most:
        raise IrcError(
            "option-value",
            f"a sequence of {length} tokens, and '{text}' has {most} positions",
            help=f"choose --sequence {most} or less",
        )
    model = _model(transformers, config, text)
    model.train(training)
    ids = torch.zeros((batch or BATCH, length), dtype=torch.int64, device="meta")
    if training:
        return Example(LanguageLoss(model), (ids, ids.clone()))
    return Example(Logits(model), (ids,))


def _config(transformers: Any, text: str) -> Any:
    path = Path(text) / CONFIG if (Path(text) / CONFIG).is_file() else Path(text)
    if path.suffix == ".json":
        return _read(transformers, path)
    named = getattr(transformers, text, None)
    if isinstance(named, type) and issubclass(named, transformers.PreTrainedConfig):
        return named()
    kind = getattr(named, "config_class", None)
    if kind is None:
        known = [
            name for name in dir(transformers) if name.endswith(("Config", CAUSAL, "LMHeadModel"))
        ]
        raise IrcError(
            "model-missing",
            f"no file '{text}', and transformers {transformers.__version__} has no such class",
            help=did_you_mean(text, known)
            or "name an ONNX file, net.py:build, a config.json, or a class such as LlamaConfig",
        )
    return kind()


def _read(transformers: Any, path: Path) -> Any:
    try:
        data: Mapping[str, Any] | Sequence[Any] | float | None = json.loads(
            path.read_text(encoding="utf-8")
        )
    except OSError as error:
        raise IrcError("model-missing", f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise IrcError("model-invalid", f"'{path}' is no JSON: {error}") from None
    kind = data.get("model_type") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        known = list(transformers.CONFIG_MAPPING.keys())
        raise IrcError(
            "model-invalid",
            f"'{path}' has model_type {kind!r}, which transformers {transformers.__version__} "
            "does not know",
            help=did_you_mean(str(kind), known),
        )
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(data)
    except Exception as error:
        raise IrcError(
            "model-invalid", f"transformers refuses '{path}'", because=_first_line(error)
        ) from error


def _model(transformers: Any, config: Any, text: str) -> nn.Module:
    config.use_cache = False
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.bfloat16
    try:
        with torch.device("meta"):
            return transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    except Exception as error:
        raise IrcError(
            "model-invalid",
            f"'{text}' is no language model that transformers can make of it",
            because=_first_line(error),
            help="name a function that returns (module, example_args): net.py:build",
        ) from error


def _first_line(error: Exception) -> str:
    # transformers says in the second line what is wrong where the first one ends in a colon.
    lines = str(error).strip().splitlines()
    text = " ".join(line.strip() for line in lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {text}"
