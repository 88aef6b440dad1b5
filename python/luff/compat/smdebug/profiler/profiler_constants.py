"""Names of the profiler's files."""

from __future__ import annotations

CONVERT_TO_MICROSECS = 1_000_000
TRACE_DIRECTORY_FORMAT = "%Y%m%d%H"
DEFAULT_PREFIX = "framework"
HOROVODTIMELINE_SUFFIX = "horovod_timeline.json"
MODELTIMELINE_SUFFIX = "model_timeline.json"
PYTHONTIMELINE_SUFFIX = "pythontimeline.json"
TENSORBOARDTIMELINE_SUFFIX = "tensorboard_timeline.json"

SMPROFILER_CONFIG_PATH_ENV = "SMPROFILER_CONFIG_PATH"
DEFAULT_PROFILER_CONFIG_FILE = "/opt/ml/input/config/profilerconfig.json"
DEFAULT_LOCAL_PATH = "/opt/ml/output/profiler"
