"""Asks for a trace from within a training."""

from __future__ import annotations

from luff._patch import unseen
from luff.errors import InvalidArgumentError

__all__ = ["trace"]

_MOST = 10


def trace(steps: int = 3, *, stacks: bool = False) -> str:
    """Traces the operators of the next steps with the framework's own profiler: PyTorch's, TensorFlow's or JAX's.

    From the call on, until `steps` TRAIN steps have ended. The trace is written into the run (``wNNNN/traces``), where
    `luff profile` sums it up. Ranks that call it at the same step trace the same steps; ``luff trace RUN``, from
    outside, sees to that itself. Results of the training do not change, and nothing is raised or printed where a trace
    is refused: beside another profiler, with less than 2 GiB of memory available, while one is being made.

    Parameters
    ----------
    steps
        How many, from 1 to 10.
    stacks
        Also functions of Python; the traced steps then take longer.

    Returns
    -------
    str
        "" if it has begun, else why not.

    Raises
    ------
    InvalidArgumentError
        For another number of steps.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= _MOST:
        raise InvalidArgumentError(
            f"luff.trace: found steps={steps!r}, expected a whole number from 1 to {_MOST}"
        )
    from luff._registry import Registry

    # Not `get_hook` of the packages: what it returns may be held from then on.
    found = [registry.current() for registry in Registry.all()]
    hooks = [hook for hook in found if hook is not None and hasattr(hook, "trace")]
    hooks.sort(
        key=lambda hook: hook.session is None
    )  # under `luff run` also those of frameworks that train nothing
    if not hooks:
        return "no training of PyTorch, TensorFlow or JAX is recorded"
    return str(hooks[0].trace(steps, stacks=stacks))


unseen(globals())
