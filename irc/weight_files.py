"""Weights in the form of Hugging Face: a step or a module on a mesh reads and writes folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from irc.calls.step_state import StepState
from irc.dialects.placement import Mesh
from irc.errors import IrcError
from irc.plan.weights import local_slices
from irc.runtime.agreement import fail_together
from irc.runtime.held import is_held, part_of, placement_of
from irc.runtime.join import own_rank
from irc.runtime.module_tensors import canonical_names
from irc.runtime.weight_files import INDEX, WeightFiles, WeightFilesStart
from irc.runtime.weight_writing import write_weight_files

T = TypeVar("T")

MAX_BYTES = 5 * 10**9
"""Of a file, as transformers writes them."""


def load_safetensors(target: Any, folder: str | Path, *, strict: bool = True) -> None:
    """Take weights from a folder of ``model.safetensors``, or several and their index.

    Each rank reads the slices that it holds. A step that has not run yet reads them when its ranks
    take their parts, also where its module is on the meta device; optimiser states stay as they
    are. A number stored in another dtype of its kind (of floats of 16 to 64 bits, of integers) is
    converted; 8-bit floats, or integers for floats, mean nothing without their scales, and are
    refused. On a mesh every rank calls it::

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        options = {"loss": "loss", "mesh": "data=2,tensor=2"}
        # Buffers that no file has, such as tables of angles, are what the model makes them.
        step = irc.compile_step(model, init=model._init_weights, **options)
        irc.load_safetensors(step, "Llama-3.1-8B")

    Args:
        target: what :func:`irc.compile_step` or :func:`irc.compile` of a module returned, or a
            module.
        folder: with the names that the module has; of tied weights one name is enough.
        strict: refuse a folder that has weights that the module has not.

    Raises:
        IrcError: ``checkpoint-missing``, ``checkpoint-corrupt``, ``state-mismatch``, on every rank
            where one of them fails; ``weights-missing`` for a module on the meta device;
            ``input-mismatch`` for another target. Nothing is written then, but for what is read of
            a file that is damaged further on.
    """
    module = _module(target)
    state = module.state_dict(keep_vars=True)
    own = {n: v for n, v in state.items() if isinstance(v, torch.Tensor)}
    names = canonical_names(module)

    def opened() -> WeightFilesStart:
        files = WeightFiles(Path(folder))
        start = WeightFilesStart(files, files.stored(own, names, strict=strict))
        if not isinstance(target, StepState):
            _check_memory(own)
        return start

    start = _agreed(opened)
    if isinstance(target, StepState):
        target.take_weights(start)
    else:
        _agreed(lambda: _fill({names.get(n, n): v for n, v in own.items()}, start))


def _check_memory(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_meta:
            raise IrcError(
                "weights-missing",
                f"'{name}' is on the meta device, and has no memory to read into",
                help="module.to_empty(device='cpu') gives it some",
            )


def _fill(tensors: Mapping[str, Any], start: WeightFilesStart) -> None:
    """Read what this rank has of each tensor."""
    with torch.no_grad():
        for name, value in tensors.items():
            part, where = part_of(value), ()
            if is_held(value):
                axes = zip(value.device_mesh.mesh_dim_names, value.device_mesh.shape, strict=True)
                mesh = Mesh(tuple(axes))
                shape = tuple(value.shape)
                where = local_slices(placement_of(value, mesh), mesh, own_rank(), shape)
            part.copy_(start.read(name, where))


def save_safetensors(target: Any, folder: str | Path, *, max_bytes: int = MAX_BYTES) -> None:
    """Write weights as transformers does: into one file, or several with an index.

    On a mesh every rank calls it; rank 0 puts one weight after the other together and writes. Of
    tied weights one is written, under its first name. Where the module has a ``config`` of
    transformers, that is written beside them, so that ``from_pretrained(folder)`` loads all.

    Args:
        target: as :func:`load_safetensors` takes it.
        folder: without weights; rank 0 writes into it.
        max_bytes: of a file, but for one that a single weight fills.

    Raises:
        IrcError: ``checkpoint-failed`` on every rank; ``option-value``; ``weights-missing`` of a
            module on the meta device.
    """
    if type(max_bytes) is not int or max_bytes < 1:
        raise IrcError("option-value", f"max_bytes={max_bytes!r} is no number of bytes")
    module, place = _module(target), Path(folder)

    def clear() -> None:
        if own_rank() == 0 and (any(place.glob("model*.safetensors")) or (place / INDEX).exists()):
            raise FileExistsError("it has weights already: name another folder, or take them away")

    def write() -> None:
        is_first = own_rank() == 0
        write_weight_files(
            place, sizes, whole, max_bytes=max_bytes, writes=is_first, beside=configure
        )

    def configure() -> None:
        config: Any = getattr(module, "config", None)
        if hasattr(config, "save_pretrained"):
            config.save_pretrained(place)

    _agreed(clear, place)
    if isinstance(target, StepState):
        sizes, whole = target.weights()
    else:
        sizes, whole = _weights_of(module)
    _agreed(write, place)


def _module(target: Any) -> nn.Module:
    """Return the module; the ranks of a step join here, as far as they have not."""
    if isinstance(target, StepState):
        target.join()
    module = target.module if isinstance(target, StepState) else target
    if not isinstance(module, nn.Module):
        raise IrcError(
            "input-mismatch",
            f"weights are of a module or a step of training, not of {type(target).__name__}",
        )
    for name, value in module.state_dict(keep_vars=True).items():
        if is_lazy(value):
            raise IrcError(
                "weights-missing",
                f"'{name}' has no shape yet",
                because="lazy modules get theirs from the first input",
                help="call the module once before that",
            )
    return module


def _agreed(act: Callable[[], T], place: Path | None = None) -> T:
    """Do something on all ranks; where one of them cannot, all fail.

    Args:
        act: may raise an IrcError; an OSError, too, where a place is given.
        place: what is written to.
    """
    result, failed = None, None
    try:
        result = act()
    except IrcError as error:
        failed = error
    except OSError as error:
        if place is None:
            raise
        message = f"weights cannot be written to '{place}': {error.strerror or error}"
        failed = IrcError("checkpoint-failed", message)
    fail_together(failed)
    return cast(T, result)


def _weights_of(
    module: nn.Module,
) -> tuple[dict[str, int], Callable[[str], torch.Tensor | None]]:
    names = canonical_names(module)
    state: dict[str, Any] = {
        n: v for n, v in module.state_dict().items()
        if isinstance(v, torch.Tensor) and names.get(n, n) == n
    }  # fmt: skip

    def whole(name: str) -> torch.Tensor | None:
        value = state[name].full_tensor() if is_held(state[name]) else state[name]
        return value if own_rank() == 0 else None

    if absent := [name for name, value in state.items() if value.is_meta]:
        raise IrcError("weights-missing", f"'{absent[0]}' has no value yet")
    return {n: v.numel() * v.element_size() for n, v in state.items()}, whole
