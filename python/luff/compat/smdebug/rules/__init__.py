"""Rules over trials. The profiler's rules are in `luff.compat.smdebug.profiler.rules`; their names lead there."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.rules.rule import Rule
from luff.compat.smdebug.rules.rule_invoker import invoke_rule

__all__ = ["Rule", "invoke_rule"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    from luff.compat.smdebug.profiler import rules

    if name in rules.RULES:
        return rules.RULES[name]
    raise AttributeError(f"smdebug.rules has no {name!r}")
