"""``flow.extern`` of target ``irc::effect``: an op that does something beside computing.

Such an op (a check that raises, a print) stands between two tokens, empty tensors that order it
among its like and keep it in the program although nobody reads its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from irc.ops import names

if TYPE_CHECKING:
    import torch

TARGET = names.EFFECT


def run(
    operator: Callable[[str], Callable[..., Any]],
    positional: Sequence[Any],
    keywords: dict[str, Any],
) -> list[torch.Tensor]:
    """Run the op and return the next token, then the op's results.

    Args:
        operator: finds an op by its name.
        positional: the op's name, the token, the op's own arguments.
        keywords: the op's.
    """
    import torch

    name, token, *arguments = positional
    returned: torch.Tensor | float | tuple[Any, ...] | list[Any] | None
    returned = operator(name)(*arguments, **keywords)
    flat = returned if isinstance(returned, tuple | list) else [returned]
    return [token.clone(), *(value for value in flat if isinstance(value, torch.Tensor))]
