"""Decides whether hooks may be made in this process."""

from __future__ import annotations

import json
import os
from typing import Any

from luff.compat.smdebug.core.config_constants import USE_SMDEBUG_ENV
from luff.compat.smdebug.core.logger import get_logger
from luff.compat.smdebug.core.utils import FRAMEWORK, is_framework_version_supported

__all__ = ["ConfigValidator", "get_config_validator", "is_model_parallel", "reset_config_validator"]

_FALSE = {"false", "0", "no", "off", "n", "f"}


def is_model_parallel() -> bool:
    """Returns whether the platform says that the job's model is spread over devices."""
    try:
        settings = json.loads(os.environ.get("SM_HPS", "{}"))
    except ValueError:
        return False
    return isinstance(settings, dict) and "mp_parameters" in settings


class ConfigValidator:
    """Checks the environment and the version of the framework, once."""

    def __init__(self, framework: FRAMEWORK) -> None:
        self.framework = framework
        self._create_hook: bool | None = None

    def validate_training_job(self) -> bool:
        """Returns whether a hook may be made."""
        if self._create_hook is None:
            wanted = os.environ.get(USE_SMDEBUG_ENV, "true").strip().lower() not in _FALSE
            self._create_hook = wanted and bool(is_framework_version_supported(self.framework))
            if wanted and not self._create_hook:
                get_logger().warning(
                    "this version of %s is not supported; nothing is saved", self.framework.name
                )
                os.environ[USE_SMDEBUG_ENV] = "False"
        return self._create_hook

    @staticmethod
    def validate_profiler_config(profiler_config_parser: Any) -> None:
        """Switches off what a model that is spread over devices cannot have: detailed profiling."""
        if profiler_config_parser.config is not None and is_model_parallel():
            profiler_config_parser.config.detailed_profiling_config.disabled = True


_validator: ConfigValidator | None = None


def get_config_validator(framework: FRAMEWORK) -> ConfigValidator:
    """Returns the validator of this process."""
    global _validator
    if _validator is None:
        _validator = ConfigValidator(framework)
    return _validator


def reset_config_validator() -> None:
    """Makes the next call check again."""
    global _validator
    _validator = None
