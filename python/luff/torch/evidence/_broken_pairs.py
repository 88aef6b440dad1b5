"""Two loaders that shuffle each for itself, one of which gives a model's inputs and the other the targets of its loss.

No row has its own target then. Who gave what is known by memory: the graph has saved what a layer got, and what a loss
or a product compares the output with, element by element. Looked at where two such loaders of equally many rows have
been started, in at most 8 steps.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch.utils.data import RandomSampler

from luff.torch.capture._graphs import nodes_behind, nodes_of, operation_of
from luff.torch.capture._memory import address_of, is_readable
from luff.torch.capture._modules import tensors_in

__all__ = ["BrokenPairs"]

_LOOKS, _SHOWN = 8, 3  # steps; in a row
_MOST_NODES = 4096
_MOST_SOURCES, _MOST_TENSORS = 8, 8
#: What layers have saved of their input, by the name of the operation.
_INPUTS = {
    "Convolution": "_saved_input",
    "Addmm": "_saved_mat1",
    "Mm": "_saved_self",
    "Linear": "_saved_input",
    "Embedding": "_saved_indices",
}
#: Losses that compare element by element, and have saved the target.
_LOSSES = frozenset(
    (
        "MseLoss",
        "SmoothL1Loss",
        "HuberLoss",
        "BinaryCrossEntropy",
        "BinaryCrossEntropyWithLogits",
        "NllLoss",
        "NllLoss2D",
    )
)
#: What makes an error of an output: a product with it weighs the error, as a mask does.
_ERRORS = _LOSSES | {"Sub", "Rsub", "Pow", "Abs"}


@dataclass(slots=True)
class _Source:
    """An iterator of a loader that shuffles."""

    iterator: weakref.ref[Any]
    number: int  # of the loader
    rows: int
    batch_size: int
    dataset: int  # its id()
    seed: int | None = None  # of its order
    given: int = 0  # batches
    tensors: list[weakref.ref[Any]] = field(default_factory=list)  # of the newest batch


def _seed_of(iterator: Any) -> int | None:
    """Returns the seed that a RandomSampler has drawn for this iterator; None where its frames do not show it."""
    batches = getattr(iterator, "_sampler_iter", None)
    frame = getattr(batches, "gi_frame", None)
    rows = None if frame is None else frame.f_locals.get("sampler_iter")
    frame = getattr(rows, "gi_frame", None)
    generator = None if frame is None else frame.f_locals.get("generator")
    return None if generator is None else int(generator.initial_seed())


def _saved(node: Any, name: str) -> Any:
    try:
        return getattr(node, name, None)
    except RuntimeError:  # changed in place since, or freed
        return None


def _result_size(node: Any) -> int:
    """Returns the number of elements of what a node made; -1 where that is not known."""
    metadata = getattr(node, "_input_metadata", None)
    if not metadata or len(metadata) != 1:
        return -1
    size = 1
    for length in metadata[0].shape:
        size *= int(length)
    return size


class BrokenPairs:
    """Under the hook's lock and guard.

    Attributes
    ----------
    on
        Two such loaders are in use, and it is not known yet.
    waiting
        Where events are put that the end of the step records.
    """

    def __init__(self) -> None:
        self.on = False
        self.waiting: list[dict[str, Any]] = []
        self._sources: list[_Source] = []
        self._looks = _LOOKS
        self._shown: dict[tuple[int, int], int] = {}  # steps in a row, by numbers of loaders

    def started(self, loader: Any, iterator: Any, number: int | None) -> bool:
        """Called when a loader was started; returns whether two are in use."""
        self._sources = [one for one in self._sources if one.iterator() is not None][-_MOST_SOURCES + 1 :]
        sampler, size = getattr(loader, "sampler", None), getattr(loader, "batch_size", None)
        if (
            number is not None
            and type(sampler) is RandomSampler
            and sampler.generator is None
            and not sampler.replacement
            and isinstance(size, int)
            and sampler.num_samples == len(loader.dataset)
        ):
            rows, dataset = int(sampler.num_samples), id(loader.dataset)
            self._sources.append(_Source(weakref.ref(iterator), number, rows, size, dataset))
        self.on = bool(self._looks and next(self._pairs(), None))
        return self.on

    def _pairs(self) -> Any:
        for one in self._sources:
            for other in self._sources:
                same = (one.rows, one.batch_size) == (other.rows, other.batch_size)
                if same and one.dataset != other.dataset and one.number != other.number:
                    yield one, other

    def given(self, batch: Any, iterator: Any) -> None:
        """Called when an iterator has given a batch."""
        for source in self._sources:
            if source.iterator() is iterator:
                source.seed = _seed_of(iterator) if source.seed is None else source.seed
                source.given += 1
                source.tensors = [weakref.ref(one) for one in islice(tensors_in(batch), _MOST_TENSORS)]

    def backward_begins(self, roots: list[Any]) -> None:
        """Called when a backward pass begins, in a step whose samples are taken."""
        pairs = [
            (one, other)
            for one, other in self._pairs()
            if one.given
            and one.given == other.given
            and one.seed is not None
            and other.seed is not None
            and one.seed != other.seed
        ]
        if not pairs:
            return
        self._looks -= 1
        self.on = self._looks > 0
        inputs, targets, loss = self._uses(roots)
        for one, other in pairs:
            key = one.number, other.number
            found = inputs == {one.number} and targets == {other.number}
            self._shown[key] = self._shown.get(key, 0) + 1 if found else 0
            if self._shown[key] == _SHOWN:
                self.on, self._looks = False, 0
                self.waiting.append(
                    {
                        "kind": "broken_pairs",
                        "input": one.number,
                        "target": other.number,
                        "samples": one.rows,
                        "batch_size": one.batch_size,
                        "loss": loss,
                    }
                )
                return

    def _uses(self, roots: list[Any]) -> tuple[set[int], set[int], str]:
        """Returns the loaders whose tensors layers got, and whose are targets, and the last operation on these."""
        known: dict[tuple[int, int], int] = {}  # loaders by address and size
        for source in self._sources:
            for reference in source.tensors:
                tensor = reference()
                if tensor is not None and is_readable(tensor) and (address := address_of(tensor)):
                    known[address, tensor.numel()] = source.number
        inputs: set[int] = set()
        targets: set[int] = set()
        loss = ""
        for node in nodes_behind(nodes_of(roots), _MOST_NODES):
            name = operation_of(node)
            if name in _INPUTS:
                inputs.update(_owner(known, _saved(node, _INPUTS[name])))
            elif name in _LOSSES:
                found = _owner(known, _saved(node, "_saved_target"))
                targets.update(found)
                loss = name if found else loss
            elif name == "Mul" and not any(
                operation_of(behind) in _ERRORS for behind, _ in node.next_functions if behind is not None
            ):
                size = _result_size(node)
                for side in ("_saved_self", "_saved_other"):
                    tensor = _saved(node, side)
                    found = _owner(known, tensor)
                    # Of another shape it is a factor of many rows, as of all pairs.
                    targets.update(found if found and tensor.numel() == size else [])
                    loss = name if found else loss
        return inputs, targets, loss


def _owner(known: dict[tuple[int, int], int], tensor: Any) -> list[int]:
    if tensor is None or not is_readable(tensor):
        return []
    number = known.get((address_of(tensor), tensor.numel()))
    return [] if number is None else [number]
