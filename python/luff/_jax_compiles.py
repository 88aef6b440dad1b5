"""JAX's compilations: the thread that compiles is in the phase `compile` meanwhile.

JAX tells `jax.monitoring` when it begins to trace a function, to lower and to compile it, and when it has done so.
Versions that tell the end only have no such phase.
"""

from __future__ import annotations

from typing import Any

from luff._codes import Phase
from luff._core import enter_phase, leave_phase
from luff._patch import once

__all__ = ["listen"]

_COMPILE = int(Phase.COMPILE)
_EVENTS = frozenset(
    f"/jax/core/compile/{what}_duration"
    for what in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)
_watched: list[Any] = []  # registries of hooks


def listen(watched: Any) -> None:
    """Listens from now on, for a registry of hooks; without hooks it does nothing."""
    if not any(one is watched for one in _watched):
        _watched.append(watched)
    _register()


@once
def _register() -> None:
    from jax import monitoring

    scalars = getattr(monitoring, "register_scalar_listener", None)
    if scalars is None:
        return
    scalars(_begins)
    monitoring.register_event_duration_secs_listener(_ends)


def _begins(event: str, *_: Any, **__: Any) -> None:
    if event in _EVENTS and any(_watched):
        enter_phase(_COMPILE)


def _ends(event: str, *_: Any, **__: Any) -> None:
    if event in _EVENTS:
        leave_phase(_COMPILE)  # nothing, if its begin was not told
