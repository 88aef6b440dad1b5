"""Actors of Ray that each keep a ``luff watch``: `start`."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from luff._plain import shown
from luff.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from luff.ray._shard import Shard

__all__ = ["Watch", "start"]

_NAMESPACE = "luff"
_MOST_SHARDS = 16  # as `luff watch --shard` takes
_BEGIN_S = 120.0
_ANSWER_S = 20.0
_STOP_S = 60.0
_ATTEMPTS = 5  # to make or find an actor that others end meanwhile


# What is told of a shard of which nothing is known.
_SILENT: dict[str, Any] = {
    "host": "", "pid": None, "starts": None, "ready": False, "runs": {}, "behind_s": None, "lag_p99_s": None,
    "steps": None, "findings": None, "said": [],
}  # fmt: skip


def _get(asked: Any, end: float) -> Any:
    """The answer to a call, until `end` (monotonic): several that were asked at once have one time together."""
    return ray.get(asked, timeout=max(0.1, end - time.monotonic()))


class Watch:
    """The processes that judge the runs of a directory or bucket; `start` makes it. They go on without this object."""

    def __init__(self, base: str, actors: list[Any]) -> None:
        self.base = base
        self._actors = actors

    def report(self) -> list[dict[str, Any]]:
        """Tells of each shard how far it is.

        Returns
        -------
        list[dict]
            ``shard``, ``host``, ``pid`` of its ``luff watch``, ``starts`` (how often this actor started it), ``ready``
            (False when it is behind), ``runs`` by state, ``behind_s`` (age of the oldest step that is not judged),
            ``lag_p99_s`` (within which 99 of 100 steps were judged), ``steps`` and ``findings`` since its start,
            ``said`` (the last lines), ``problem`` (why nothing is known; "" if all is well). One whose node was
            lost has a problem until Ray has started it on another one.
        """
        end = time.monotonic() + _ANSWER_S
        asked = [actor.report.remote() for actor in self._actors]
        return [self._answer(number, one, end) for number, one in enumerate(asked)]

    def stop(self) -> list[dict[str, Any]]:
        """Ends the processes, which commit what they have judged, and the actors. Returns the last reports."""
        end = time.monotonic() + _STOP_S
        asked = [actor.stop.remote() for actor in self._actors]
        told = [self._answer(number, one, end) for number, one in enumerate(asked)]
        for actor in self._actors:
            ray.kill(actor)
        return told

    def _answer(self, shard: int, asked: Any, end: float) -> dict[str, Any]:
        try:
            told: dict[str, Any] = _get(asked, end)
        except ray.exceptions.RayError as error:  # also if it takes longer
            text = " ".join(str(error).split())[:300]
            return _SILENT | {"shard": shard, "problem": f"the actor does not answer: {text}"}
        return told


class _Actor:
    """A shard with a place in the cluster. Ray starts it again, on another node if need be."""

    def __init__(self, base: str, shard: int, shards: int, words: list[str]) -> None:
        self._shard = Shard(base, shard, shards, words)

    def begun(self, seconds: float) -> str:
        """Returns "" once it judges; else why it does not."""
        if self._shard.wait_until_judging(seconds):
            return ""
        told = self._shard.report()
        return str(told["problem"]) or "; ".join(told["said"][-3:]) or "it has said nothing"

    def report(self) -> dict[str, Any]:
        return self._shard.report() | {"node": ray.get_runtime_context().get_node_id()}

    def stop(self) -> dict[str, Any]:
        return self._shard.stop()


def start(
    base: str | os.PathLike[str],
    shards: int = 1,
    *,
    options: Sequence[str] = (),
    num_cpus: float = 1.0,
    resources: Mapping[str, float] | None = None,
) -> Watch:
    """Judges all runs of a directory or bucket by actors of Ray, each of which keeps a ``luff watch`` on its shard.

    ::

        ray.init(address="auto")
        watch = luff.ray.start("s3://bucket/team", shards=2)
        print(watch.report())

    The actors are detached: they go on when the job that started them ends, until `Watch.stop`. One that dies, or whose
    node is lost, is started again; it goes on where it was, and says no finding twice. Called once more for the same
    runs and number of shards, it finds the actors that are there; `options` then are those of the first call.

    Parameters
    ----------
    base
        Directory of the runs, absolute, which all nodes see, or the URL of a bucket (docs/watch.md): ``s3://``,
        ``gs://``, ``az://``, ``file://``. Credentials are those of the actors' nodes, or of
        ``ray.init(runtime_env={"env_vars": ...})``.
    shards
        Number of processes, 1 to 16.
    options
        More words for ``luff watch``, e.g. ``["--on-finding", "stop"]``.
    num_cpus, resources
        What Ray keeps free for each actor.

    Raises
    ------
    InvalidArgumentError
        If an argument is not what it may be, or ``luff watch`` does not take it: an option, a bucket that is not there
        or may not be used.
    FailedPreconditionError
        If Ray was not initialized.
    UnavailableError
        If the actors have not begun after 120 s: the cluster has no room, another process watches the directory, or
        the bucket does not answer.
    """
    place = _place(base)
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= _MOST_SHARDS:
        raise InvalidArgumentError(f"shards is {shown(shards)}; expected a number from 1 to {_MOST_SHARDS}")
    if isinstance(options, str) or not all(isinstance(word, str) for word in options):
        raise InvalidArgumentError(f"options is {shown(options)}; expected words, as a list of texts")
    if not ray.is_initialized():
        raise FailedPreconditionError('Ray was not initialized; call ray.init(address="auto") first')
    names = f"luff-watch-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
    common: dict[str, Any] = {
        "namespace": _NAMESPACE,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": 4,  # a report need not wait for another one
        "num_cpus": num_cpus,
        "resources": dict(resources or {}),
        "scheduling_strategy": "SPREAD",
    }
    kind, actors, made = ray.remote(_Actor), [], []
    try:
        for number in range(shards):
            named = kind.options(name=f"{names}-{number}-of-{shards}", **common)
            actor, new = _make_or_find(
                named, f"{names}-{number}-of-{shards}", place, number, shards, list(options)
            )
            actors.append(actor)
            made += [actor] if new else []
        end = time.monotonic() + _BEGIN_S + _ANSWER_S
        asked = [actor.begun.remote(_BEGIN_S) for actor in actors]
        for number, one in enumerate(asked):
            try:
                why = _get(one, end)
            except ray.exceptions.RayError as error:
                why = " ".join(str(error).split())[:300]
            if why:
                kind_of = InvalidArgumentError if "exit code 2" in why else UnavailableError
                raise kind_of(f"shard {number} of {shards} does not judge {place}: {why}")
    except BaseException:  # also if somebody no longer waits: detached actors would wait for room for ever
        for actor in made:  # those of an earlier call go on
            ray.kill(actor)
        raise
    return Watch(place, actors)


def _place(base: str | os.PathLike[str]) -> str:
    """The directory or URL, in one way of writing it."""
    place = os.fspath(base)
    if isinstance(place, str) and "://" in place and not os.path.isabs(place):
        from luff.remote._errors import BucketError
        from luff.remote._store import normal_url

        try:
            return normal_url(place)
        except BucketError as error:
            raise InvalidArgumentError(f"base: {error}") from None
    if not isinstance(place, str) or not os.path.isabs(place):
        raise InvalidArgumentError(
            f"base is {shown(base)}; expected the absolute path of a directory that all nodes see, or the URL of a "
            "bucket"
        )
    return os.path.normpath(place)


def _make_or_find(named: Any, name: str, *arguments: Any) -> tuple[Any, bool]:
    """The actor of this name, and whether this call has made it: of several calls at once, one has."""
    for _ in range(_ATTEMPTS):
        try:
            return named.remote(*arguments), True
        except ValueError:  # the name is taken, or the resources are none
            try:
                return ray.get_actor(name, namespace=_NAMESPACE), False
            except ValueError:  # it has ended in between
                continue
    return named.remote(*arguments), True
