from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS_TORCH = ("test_pytorch_hook.py", "test_hook_methods.py", "test_json_config.py", "test_alias.py")
collect_ignore = [] if importlib.util.find_spec("torch") is not None else list(NEEDS_TORCH)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.path.name in NEEDS_TORCH:
            item.add_marker(pytest.mark.framework)


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts without a hook, and with the error agent on."""
    from luff.compat.smdebug.core import singleton
    from luff.compat.smdebug.core.config_validator import reset_config_validator
    from luff.compat.smdebug.core.error_handling_agent import error_handling_agent

    for name in (
        "SMDEBUG_CONFIG_FILE_PATH",
        "TRAINING_JOB_NAME",
        "USE_SMDEBUG",
        "CHECKPOINT_CONFIG_FILE_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    yield
    if singleton._hook is not None:
        singleton._hook._cleanup()
    singleton.del_hook()
    reset_config_validator()
    error_handling_agent.disable_smdebug = False
    error_handling_agent.hook = None
