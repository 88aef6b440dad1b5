"""Names of the profiler's files."""

from __future__ import annotations

DEFAULT_PREFIX = "framework"
HOROVODTIMELINE_SUFFIX = "horovod_timeline.json"
MODELTIMELINE_SUFFIX = "model_timeline.json"
PYTHONTIMELINE_SUFFIX = "pythontimeline.json"
TENSORBOARDTIMELINE_SUFFIX = "tensorboard_timeline.json"
