"""Which parameters other workers hold the same values of.

DistributedDataParallel gives all workers of its group the same weights, and, by its all-reduce, the same gradients at
an update. The first worker of the group stores their values, the others store summaries and a hash of each value:
where one differs, a reader sees that it does.
"""

from __future__ import annotations

import gc

import torch

__all__ = ["replicas"]


def replicas() -> frozenset[int]:
    """Ids of the parameters of which another worker stores the values.

    Looks at all objects for wrappers, since nothing leads from a model to what wraps it: only where names are given
    anew, and only in a job of several workers.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return frozenset()
    found: set[int] = set()
    for wrapper in gc.get_objects():
        if not issubclass(type(wrapper), torch.nn.parallel.DistributedDataParallel):
            continue
        try:
            if distributed.get_rank(wrapper.process_group) > 0:
                ignored = wrapper.parameters_to_ignore
                found.update(id(p) for name, p in wrapper.module.named_parameters() if name not in ignored)
        except (AttributeError, RuntimeError, ValueError):  # half made, or its group is gone
            continue
    return frozenset(found)
