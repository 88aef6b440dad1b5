"""Asks a dataset for items, again and again. Only for a forked child: what the dataset holds may change.

Nothing here depends on a threshold of a statistic: two items are equal bit for bit, or they are not.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

__all__ = ["evaluate"]

_SECONDS = 3.0  # of the processor, for all questions together
_ITEMS = 8  # that are asked for
_TIMES = 12  # that one item is asked for, with another seed each time
_SEED = 20261128
_HELD = 1 << 26  # bytes of arrays that the dataset holds
_ARRAYS = 1 << 14
_LEVELS = 4
_LEAST_NUMBERS = 4  # of an array that changes: a counter is one
_FEW_VALUES = 32  # of a mask
_MOST_PIXELS = 1 << 16  # that are looked at for it
_LEAST_APART = 4
Array = np.ndarray[Any, np.dtype[Any]]


class _Over(Exception):
    """Time is over."""


class _Asks:
    """Asks a dataset, with seeds."""

    def __init__(self, until: float) -> None:
        self._until = until

    def __call__(self, dataset: Any, index: int, seed: int) -> list[Array]:
        if time.process_time() > self._until:
            raise _Over
        torch.manual_seed(_SEED + seed)
        np.random.seed(_SEED + seed)
        random.seed(_SEED + seed)
        return [array.copy() for array in _arrays_of(dataset[index])]


def evaluate(dataset: Any, others: list[Any], kept: bool) -> dict[str, Any] | None:
    """Returns what asking has shown.

    Parameters
    ----------
    dataset
        What a training reads.
    others
        Datasets that evaluations read.
    kept
        Whether changes of the dataset last: workers of a loader that end with the epoch take theirs along.
    """
    asks = _Asks(time.process_time() + _SECONDS)
    size = len(dataset)
    indices = [round(i * (size - 1) / (_ITEMS - 1)) for i in range(_ITEMS)]
    told: dict[str, Any] = {"dataset": _name_of(dataset), "samples": size}
    found: dict[str, Any] = {}
    questions: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: _changed(asks, dataset, indices) if kept else {},
        lambda: _apart(asks, dataset, indices),
        lambda: _of_evaluations(asks, dataset, others),
    )
    for question in questions:
        try:
            found = question()
        except _Over:
            break
        except Exception:  # it reads files, which are out of reach here
            found = {}
        if found:
            break
    return {**told, **found} if found else None


def _name_of(dataset: Any) -> str:
    for _ in range(_LEVELS):
        if type(dataset).__name__ == "Subset":
            dataset = dataset.dataset
    return type(dataset).__name__[:80]


def _arrays_of(item: Any, level: int = 0) -> list[Array]:
    """Returns the arrays of an item, in its order; numbers are arrays without axes."""
    if isinstance(item, torch.Tensor):
        return [item.detach().cpu().numpy()]
    if isinstance(item, np.ndarray):
        return [item] if item.dtype.kind in "biufc" else []
    if isinstance(item, bool | int | float | np.generic):
        return [np.asarray(item)]
    if level < _LEVELS and isinstance(item, tuple | list):
        return [array for one in item for array in _arrays_of(one, level + 1)]
    if level < _LEVELS and isinstance(item, dict):
        return [array for one in item.values() for array in _arrays_of(one, level + 1)]
    if hasattr(item, "getbands"):  # an image of Pillow
        return [np.asarray(item)]
    return []


def _equal(one: list[Array], other: list[Array]) -> bool:
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Array, other: Array) -> bool:
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    )


# What it holds ----------------------------------------------------------------------------------------------------


def _held(value: Any, seen: set[int], level: int = 0) -> Iterator[Array]:
    """Yields the arrays that an object holds, themselves."""
    if id(value) in seen or level > _LEVELS:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if not value.is_sparse and value.device.type == "cpu":
            yield value.detach().numpy()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc":
            yield value
        elif value.dtype.kind == "O":
            for one in value.reshape(-1)[:_ARRAYS]:
                yield from _held(one, seen, level + 1)
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            if not isinstance(one, int | float | str | bytes):
                yield from _held(one, seen, level + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module) and not callable(value):
        yield from _held(vars(value), seen, level)


def _kept_arrays(dataset: Any) -> list[Array]:
    """Returns the arrays that may be written, of which each has some numbers; none if there are too many."""
    found: list[Array] = []
    size = 0
    for array in _held(dataset, set()):
        if array.size < _LEAST_NUMBERS or not array.flags.writeable:
            continue
        size += array.nbytes
        if size > _HELD or len(found) >= _ARRAYS:
            return []
        found.append(array)
    return found


def _changed(asks: _Asks, dataset: Any, indices: list[int]) -> dict[str, Any]:
    """Asks for an item three times with one seed. If it is another one each time, and the first one again once the
    arrays that have changed are put back, the dataset writes into what it holds.
    """
    changed, most = 0, 0.0
    for index in indices[: _ITEMS // 2]:
        asks(dataset, index, index)  # fills what is filled when it is asked for
        held = _kept_arrays(dataset)
        if not held:
            return {}
        before = [array.copy() for array in held]
        items = [asks(dataset, index, index) for _ in range(3)]
        if any(_equal(items[i], items[j]) for i in range(3) for j in range(i)):
            continue
        moved = [i for i, array in enumerate(held) if not _same(array, before[i])]
        if not any(np.count_nonzero(held[i] != before[i]) >= _LEAST_NUMBERS for i in moved):
            continue
        if not any(_is_of_rows(held, before, i, moved, len(dataset)) for i in moved):
            continue
        for i in moved:
            held[i][...] = before[i]
        if _equal(asks(dataset, index, index), items[0]):
            changed += 1
            most = max([most, *(_distance(items[1], items[2])), *(_distance(items[0], items[1]))])
    return {"changed": changed, "distance": most} if changed and most > 1e-3 else {}


def _is_of_rows(held: list[Array], before: list[Array], place: int, moved: list[int], size: int) -> bool:
    """Whether an array that has changed holds rows of the data: not a pool that is shuffled in place to draw from, nor
    the state of a simulation or running statistics, which change as a whole, with fewer rows than there are items.
    """
    now, then = held[place], before[place]
    if _same(np.sort(now, axis=None), np.sort(then, axis=None)):
        return False
    if now.ndim > 0 and now.shape[0] >= size:
        return True
    changed = (now != then).reshape(now.shape[0], -1).any(axis=1)
    if 2 * np.count_nonzero(changed) <= now.shape[0] and now.shape[0] >= _ITEMS:
        return True
    alike = [
        i for i, one in enumerate(held) if i not in moved and (one.dtype, one.ndim) == (now.dtype, now.ndim)
    ]
    return len(alike) >= _ITEMS // 2  # one of a list of rows


def _distance(one: list[Array], other: list[Array]) -> list[float]:
    """Returns how far the arrays of two items are apart, as a share of their largest number."""
    shares = []
    for a, b in zip(one, other, strict=False):
        if a.shape != b.shape or not a.size or a.dtype.kind == "c":
            continue
        large = max(float(np.abs(a.astype(float)).max()), float(np.abs(b.astype(float)).max()))
        if 0 < large < 1e300:
            shares.append(float(np.abs(a.astype(float) - b.astype(float)).max()) / large)
    return shares


# Picture and mask -------------------------------------------------------------------------------------------------

_NAMES = ("as it was", "mirrored", "upside down", "turned by 180 degrees")
_TURNED = ("transposed", "turned by 90 degrees", "turned by 270 degrees", "transposed the other way")


def _turns(array: Array, rows: int, columns: int) -> list[Array]:
    """Returns an image in its four or, if it is a square, eight positions. `rows`, `columns`: its axes."""
    found = [array, np.flip(array, columns), np.flip(array, rows), np.flip(array, (rows, columns))]
    if array.shape[rows] == array.shape[columns]:
        turned = np.swapaxes(array, rows, columns)
        found += [turned, np.flip(turned, columns), np.flip(turned, rows), np.flip(turned, (rows, columns))]
    return found


def _image_axes(array: Array) -> tuple[int, int] | None:
    """Returns the axes of the rows and columns of a picture of 1 to 4 channels."""
    if array.ndim == 2 and min(array.shape) >= 6:
        return 0, 1
    if array.ndim == 3 and array.shape[0] <= 4 and min(array.shape[1:]) >= 6:
        return 1, 2
    if array.ndim == 3 and array.shape[2] <= 4 and min(array.shape[:2]) >= 6:
        return 0, 1
    return None


def _size_of(array: Array) -> tuple[int, int] | None:
    axes = _image_axes(array)
    return None if axes is None else (array.shape[axes[0]], array.shape[axes[1]])


def _positions(array: Array, first: Array) -> set[int]:
    """Returns in which positions of the first picture another one is it, bit for bit."""
    axes = _image_axes(first)
    if axes is None or array.dtype != first.dtype:
        return set()
    return {place for place, turned in enumerate(_turns(first, *axes)) if _same(array, turned)}


def _is_mask(array: Array) -> bool:
    # `np.unique` would import a module, which a child cannot.
    return len(set(array.reshape(-1)[:_MOST_PIXELS].tolist())) <= _FEW_VALUES


def _are_boxes(array: Array, size: tuple[int, int]) -> bool:
    """Whether an array holds boxes in pixels: left, upper, right and lower edge, perhaps a class behind them."""
    if array.ndim not in (1, 2) or array.shape[-1] not in (4, 5) or not array.size:
        return False
    edges = array.reshape(-1, array.shape[-1])[:, :4].astype(float)
    wide = bool(
        (edges[:, 2] > edges[:, 0]).all() and (edges[:, 3] > edges[:, 1]).all() and (edges >= 0).all()
    )
    inside = bool((edges[:, 2] <= size[1]).all() and (edges[:, 3] <= size[0]).all())
    return wide and inside and float(edges.max()) > 2


def _apart(asks: _Asks, dataset: Any, indices: list[int]) -> dict[str, Any]:
    """Looks whether a picture is mirrored or turned, and its mask or boxes are not, or in another way."""
    apart = boxes = moved = together = 0
    names: tuple[str, str] = ("", "")
    masks: list[Array] = []
    items = 0  # that show it
    for index in indices:
        first = asks(dataset, index, 0)
        image = next((i for i, array in enumerate(first) if _image_axes(array) and not _is_mask(array)), None)
        if image is None:
            return {}
        size = _size_of(first[image])
        assert size is not None
        mask = next(
            (i for i, one in enumerate(first) if i != image and _size_of(one) == size and _is_mask(one)), None
        )
        box = next((i for i, one in enumerate(first) if i != image and _are_boxes(one, size)), None)
        if mask is None and box is None:
            return {}
        if mask is not None:
            masks.append(first[mask])
        shown = False
        for seed in range(1, _TIMES):
            item = asks(dataset, index, seed)
            if len(item) != len(first):
                return {}
            at = _positions(item[image], first[image])
            if not at or 0 in at:
                continue
            moved += 1
            if mask is not None:
                of_mask = _positions(item[mask], first[mask])
                if at & of_mask:
                    together += 1
                elif of_mask:
                    apart += 1
                    shown = True
                    names = _name(min(at)), _name(min(of_mask))
            elif box is not None and at & {1, 3} and _same(item[box], first[box]):
                edges = first[box].reshape(-1, first[box].shape[-1]).astype(float)
                if bool((np.abs(edges[:, 0] + edges[:, 2] - size[1]) > 2).all()):
                    boxes += 1
                    shown = True
        items += shown
    if items < 2 or max(apart, boxes) < _LEAST_APART:
        return {}
    if apart:
        if all(_same(masks[0], mask) for mask in masks):
            return {}  # the same for all pictures: it says which pixels count
        told = {"apart": apart, "moved": moved, "picture": names[0], "mask": names[1]}
        return {**told, "together": together}
    return {"boxes": boxes, "moved": moved}


def _name(place: int) -> str:
    return (*_NAMES, *_TURNED)[place]


# Evaluations ------------------------------------------------------------------------------------------------------


def _drawn(asks: _Asks, dataset: Any) -> tuple[int, int]:
    """Returns of how many items the first array of numbers depends on the seed, with all else as it was; and how many
    were asked for. (-1, 0): something else is drawn, or nobody can tell.
    """
    size = len(dataset)
    indices = [round(i * (size - 1) / (_ITEMS - 1)) for i in range(_ITEMS)]
    drawn = 0
    for index in indices:
        first, again = asks(dataset, index, 1), asks(dataset, index, 1)
        if not first or not _equal(first, again):
            return -1, 0
        others = [asks(dataset, index, seed) for seed in (2, 3, 4)]
        for item in others:
            if len(item) != len(first) or not _equal(item[1:], first[1:]) or item[0].shape != first[0].shape:
                return -1, 0
        if first[0].dtype.kind in "fu" and first[0].size >= _LEAST_NUMBERS:
            drawn += any(not _same(item[0], first[0]) for item in others)
        elif any(not _same(item[0], first[0]) for item in others):
            return -1, 0
    return drawn, len(indices)


def _of_evaluations(asks: _Asks, dataset: Any, others: list[Any]) -> dict[str, Any]:
    """Looks whether each evaluation draws what it is given, as an augmentation does, and the training does not."""
    if not others or any(_name_of(one) != _name_of(dataset) for one in others):
        return {}  # another class may be there to measure what noise does
    for other in others:
        drawn, asked = _drawn(asks, other)
        if drawn < max(2, asked // 4):
            return {}
    here, asked = _drawn(asks, dataset)
    return (
        {"evaluations_drawn": drawn, "asked": asked, "evaluation": _name_of(others[0])} if here == 0 else {}
    )
