"""Lists and dictionaries of modules that a trace leaves to them.

After a trace torch.export puts copies of them into the modules, so that what a forward did to them
is undone. Whoever holds one would then write to what the module no longer reads.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def own_containers(module: nn.Module) -> Generator[None]:
    """Give modules their own containers back at the end, with the items that they had before."""
    held = [*_containers(module)]
    try:
        yield
    finally:
        for slots, name, value in held:
            if (copy := slots.get(name)) is not value:
                slots[name] = _filled(value, copy)


@contextmanager
def containers_as_they_are(module: nn.Module) -> Generator[None]:
    """Undo at the end what is done to the lists and dictionaries of modules, and in them."""
    before = [(*place, _copied(place[-1])) for place in _containers(module)]
    try:
        yield
    finally:
        for slots, name, value, items in before:
            slots[name] = _filled(value, items)


def _containers(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield the lists and dictionaries that modules have: whose attribute, its name, and it."""
    for child in module.modules():
        slots = vars(child)
        yield from ((slots, n, value) for n, value in slots.items() if type(value) in (dict, list))


def _copied(container: object) -> Any:
    """Return containers of the same items."""
    items: Any = container
    if type(container) is dict:
        return {key: _copied(value) for key, value in items.items()}
    return [_copied(each) for each in items] if type(container) is list else container


def _filled(own: object, copy: Any) -> Any:
    """Return a container with the items of its copy; a leaf of the copy as it is."""
    held: Any = own
    if type(own) is not type(copy):
        return copy
    if type(own) is dict:
        items = {key: _filled(held.get(key), value) for key, value in copy.items()}
        held.clear()
        held.update(items)
    elif type(own) is list:
        before = held + [None] * (len(copy) - len(held))
        held[:] = [_filled(a, b) for a, b in zip(before, copy, strict=False)]
    else:
        return copy
    return held
