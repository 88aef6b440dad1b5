"""Asks a model that is evaluated whether masks that it draws at random act on it: dropout that `eval()` does not reach.

If random numbers are drawn from one pass of an evaluation to the next, a forked child makes the pass twice, with the
same arguments, and looks at what multiplies values behind weights: a tensor that depends on neither arguments nor
weights, holds zeros and one other number, and differs between the two passes. docs/adr/0010.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import weakref
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from luff.torch.capture._memory import INTEGERS, address_of, array_of, array_view, is_readable
from luff.torch.capture._names import Names
from luff.torch.evidence._asked import Asked

__all__ = ["RandomMasks", "evaluate"]

_LOOKS = 8  # passes of evaluations at which it is looked whether random numbers are drawn
_ALONE = 3  # evaluations of one pass each, in a row, after which the model is asked without that
_MOST_ELEMENTS = 1 << 24  # of a mask that is read
_LEAST_ELEMENTS = 16
_MOST_USES = 1 << 14  # in a pass
_WEIGHTS, _GIVEN = 1, 2  # what a tensor depends on
_SHAPES = (
    "empty",
    "rand",
    "ones",
    "zeros",
    "full",
    "new_",
    "uniform",
)  # operations that only look at a shape
_NOISE, _SWITCH, _MASK = range(3)  # kinds of uses


def _random_state() -> bytes:
    """Returns a digest of the states from which torch, NumPy and Python draw."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(torch.default_generator.get_state().numpy().tobytes())
    digest.update(pickle.dumps((np.random.get_state(legacy=False), random.getstate())))
    return digest.digest()


class RandomMasks(Asked):
    """Chooses the pass of an evaluation about which a child is asked, under the hook's lock and guard."""

    def __init__(self, opened: list[Asked] | None = None) -> None:
        super().__init__("random_mask", opened)
        self._looks = _LOOKS
        self._alone = 0
        self._before: tuple[Any, int, bytes] | None = (
            None  # model, TRAIN steps, random state: of the last pass
        )

    @property
    def due(self) -> bool:
        """Whether passes of evaluations are looked at."""
        return self._looks > 0 and not self.asked

    def model_called(
        self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], trained: int, names: Names
    ) -> None:
        """Called when an evaluation is about to call a model, after `trained` TRAIN steps."""
        if trained < 1 or torch.is_grad_enabled():
            return
        self._looks -= 1
        before, self._before = self._before, (weakref.ref(model), trained, _random_state())
        if before is None or before[0]() is not model:
            self._alone = 0
            return
        if before[1] != trained:
            self._alone += 1
            if self._alone < _ALONE:
                return
        elif before[2] == self._before[2]:
            return
        found = names.find(model)
        if found is not None:
            self.ask(trained, partial(evaluate, model, args, kwargs, found[1], names), [model])


# In the child ------------------------------------------------------------------------------------------------------


class _Use(NamedTuple):
    """A use of a tensor that depends on neither arguments nor weights, together with one that does."""

    place: tuple[Any, ...]  # file, line and operation
    kind: int  # it multiplies what is behind weights, and holds zeros and one other number; it only holds those; other
    digest: bytes
    share: float  # of what a mask makes zero
    elements: int
    told: dict[str, Any]


class _Uses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a pass."""

    def __init__(self, model: Any, given: list[Any], names: Names) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self._kept: list[Any] = [*model.parameters(), *model.buffers(), *given]  # ids are theirs alone
        self._depends = {id(one): _GIVEN for one in self._kept}
        self._depends.update({id(one): _WEIGHTS for one in model.parameters()})
        self.modules: list[Any] = []
        self.uses: list[_Use] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from luff.torch.replay._told import tensors_of

        result = func(*args, **(kwargs or {}))
        op = str(func.overloadpacket.__name__)
        tensors = [*tensors_of(args), *tensors_of(list((kwargs or {}).values()))]
        depends = 0
        for one in tensors:
            depends |= self._depends.get(id(one), 0)
        if depends and len(self.uses) < _MOST_USES:
            for one in tensors:
                if not self._depends.get(id(one), 0) and one.dim() and one.numel() >= _LEAST_ELEMENTS:
                    self._note(op, args, one, depends)
        if op.endswith("_like") or op.lstrip("_").startswith(_SHAPES):
            depends = 0
        for one in tensors_of(result):
            self._kept.append(one)
            self._depends[id(one)] = depends
        return result

    def gives_out(self, result: Any) -> bool:
        """Whether something that depends on neither arguments nor weights comes out, as a mask that a loss needs."""
        from luff.torch.replay._told import tensors_of

        outputs = result if isinstance(result, torch.Tensor | tuple | list) else _values_of(result)
        return any(
            not self._depends.get(id(one), _GIVEN) and one.numel() >= _LEAST_ELEMENTS
            for one in tensors_of(outputs)
        )

    def _note(self, op: str, args: Any, one: Any, depends: int) -> None:
        from luff.torch.replay._told import place

        array = _read(one) if one.numel() <= _MOST_ELEMENTS else None
        if array is None:
            return
        flat = np.asarray(array).reshape(-1)
        others = flat[flat != 0]
        kind, share = _NOISE, 0.0
        if others.size < flat.size and bool((others == others[:1]).all()):
            kept = others.size / flat.size
            kind, share = _SWITCH, 1 - kept if _keeps(op, args, one) else kept
            if depends & _WEIGHTS and _multiplies(op, args, one):
                kind = _MASK
        at = place()
        module = self._names.module(self.modules[-1]) if self.modules else None
        told = {**at, "module": module[0]} if module and module[0] else at
        digest = hashlib.blake2b(flat.tobytes(), digest_size=16).digest()
        self.uses.append(_Use((at.get("file"), at.get("line"), op), kind, digest, share, flat.size, told))


def _values_of(result: Any) -> list[Any]:
    return list(getattr(result, "values", list)())


def _read(tensor: Any) -> Any:
    """Returns the memory of a tensor of numbers, or of truth values, as an array; None if it cannot be read."""
    kind = INTEGERS.get(tensor.dtype)
    if kind is None:
        return array_of(tensor)
    return array_view(tensor, kind) if is_readable(tensor) and address_of(tensor) else None


def _is_zero(value: Any) -> bool:
    array = _read(value) if isinstance(value, torch.Tensor) else value
    return array is not None and not np.any(array)


def _multiplies(op: str, args: Any, mask: Any) -> bool:
    """Whether an operation makes values zero where a mask says so."""
    kind = op.rstrip("_")
    if kind == "mul":
        return True
    if kind == "masked_fill":
        return args[1] is mask and _is_zero(args[2])
    return kind == "where" and args[0] is mask and (_is_zero(args[1]) or _is_zero(args[2]))


def _keeps(op: str, args: Any, mask: Any) -> bool:
    """Whether it keeps values where the mask is not zero."""
    kind = op.rstrip("_")
    return kind != "masked_fill" and not (kind == "where" and args[0] is mask and _is_zero(args[1]))


def _pass(model: Any, args: Any, kwargs: Any, names: Names) -> tuple[list[_Use], Any, bool]:
    from luff.torch.replay._told import tensors_of

    uses = _Uses(model, [*tensors_of(list(args)), *tensors_of(list(kwargs.values()))], names)
    enter = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: uses.modules.append(module)
    )
    leave = torch.nn.modules.module.register_module_forward_hook(
        lambda *_: uses.modules.pop() and None, always_call=True
    )
    try:
        with torch.no_grad(), uses:
            result = model(*args, **kwargs)
    finally:
        enter.remove()
        leave.remove()
    return uses.uses, result, uses.gives_out(result)


def evaluate(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: int, names: Names
) -> dict[str, Any] | None:
    """Makes a pass of an evaluation again, twice. Only for a forked child: modes and random states change.

    Returns None where nothing random acts, where something else does than masks (a model that draws samples, or noise),
    and where a loss comes out, whose masks may be what is learnt, or the masks themselves.
    """
    found = _masks(model, args, kwargs, names)
    if not found:
        return None
    largest = max(found, key=lambda use: use.elements)
    acts = True
    if any(one.training for one in model.modules()):
        model.eval()
        acts = bool(_masks(model, args, kwargs, names))
    return {
        "number": int(number),
        "p": round(largest.share, 3),
        "masks": len(found),
        "after_eval": acts,
        **largest.told,
    }


def _masks(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], names: Names) -> list[_Use]:
    """Returns the masks that differ between two passes; none if anything else does, too."""
    from luff.torch.replay._told import tensors_of

    (first, result, gives_out), (second, _, _) = (_pass(model, args, kwargs, names) for _ in range(2))
    if gives_out or [use.place for use in first] != [use.place for use in second]:
        return []
    outputs = result if isinstance(result, torch.Tensor | tuple | list) else _values_of(result)
    if any(one.numel() == 1 for one in tensors_of(outputs)):
        return []
    changed = [(one, other) for one, other in zip(first, second, strict=True) if one.digest != other.digest]
    if any(_NOISE in (one.kind, other.kind) for one, other in changed):
        return []
    return [one for one, _ in changed if one.kind == _MASK and 0 < one.share < 1]
