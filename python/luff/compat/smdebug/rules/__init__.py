"""Rules over trials."""

from __future__ import annotations

from luff.compat.smdebug.rules.rule import Rule
from luff.compat.smdebug.rules.rule_invoker import invoke_rule

__all__ = ["Rule", "invoke_rule"]
