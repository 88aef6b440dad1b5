"""Mails and short messages."""

from __future__ import annotations

from typing import Any

from luff.compat.smdebug.core.logger import get_logger

__all__ = ["MessageAction"]


class MessageAction:
    """A mail or a short message. Nothing is sent without the cloud's service; the log says what would be sent."""

    def __init__(self, rule_name: str, message_type: str, message_endpoint: str) -> None:
        self._rule_name = rule_name
        self._protocol = message_type
        self._topic_name = "SMDebugRules"
        self._message_endpoint = message_endpoint
        self._last_subscription_response: Any = None
        self._last_send_mesg_response: Any = None

    def invoke(self, message: str | None = None) -> None:
        """Logs what would be sent."""
        get_logger().warning(
            "rule %s fired%s; %s to %s is not sent from here: luff run --action sends mail (docs/actions.md)",
            self._rule_name, f": {message}" if message else "", self._protocol, self._message_endpoint,
        )  # fmt: skip
