"""Which parameters other workers hold the same values of.

DistributedDataParallel gives all workers of its group the same weights, and, by its all-reduce, the same gradients at
an update. The first worker of the group stores their values, the others store summaries and a hash of each value:
where one differs, a reader sees that it does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from luff.torch._names import ancestors

__all__ = ["replicas"]


def replicas(modules: Iterable[Any]) -> frozenset[int]:
    """Ids of the parameters of which another worker stores the values; `modules`: what was called."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return frozenset()
    found: set[int] = set()
    kind = torch.nn.parallel.DistributedDataParallel
    seen: set[int] = set()
    for module in modules:
        for wrapper in ancestors(module):
            if id(wrapper) in seen or not isinstance(wrapper, kind):
                continue
            seen.add(id(wrapper))
            if distributed.get_rank(wrapper.process_group) <= 0:
                continue
            own = getattr(wrapper, "parameters_to_ignore", ())
            found.update(id(p) for name, p in wrapper.module.named_parameters() if name not in own)
    return frozenset(found)
