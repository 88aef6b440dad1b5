"""Which numbers of a tensor are saved instead of, or in addition to, its values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from luff import config
from luff.compat.smdebug.exceptions import SMDebugValueError
from luff.errors import InvalidArgumentError

__all__ = ["ALLOWED_NORMS", "ALLOWED_REDUCTIONS", "ReductionConfig"]

ALLOWED_REDUCTIONS = ["min", "max", "mean", "std", "variance", "sum", "prod"]
ALLOWED_NORMS = ["l1", "l2"]


class ReductionConfig(config.ReductionConfig):
    """Like `luff.config.ReductionConfig`, with smdebug's errors and JSON form.

    An empty one with ``save_raw_tensor=False`` saves nothing.
    """

    def __init__(
        self,
        reductions: list[str] | None = None,
        abs_reductions: list[str] | None = None,
        norms: list[str] | None = None,
        abs_norms: list[str] | None = None,
        save_raw_tensor: bool = False,
        save_shape: bool = False,
    ) -> None:
        try:
            super().__init__(reductions, abs_reductions, norms, abs_norms, save_raw_tensor, save_shape)
        except InvalidArgumentError as error:
            raise SMDebugValueError(str(error)) from None

    def wanted(self) -> list[tuple[str, bool]]:
        """Returns the name of each reduction, and whether it is of the magnitudes."""
        plain, magnitudes = (
            [*(self.reductions or []), *(self.norms or [])],
            [*(self.abs_reductions or []), *(self.abs_norms or [])],
        )
        return [(name, False) for name in plain] + [(name, True) for name in magnitudes]

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        words = [
            *(self.reductions or []),
            *(f"{name}_norm" for name in self.norms or []),
            *(f"abs_{name}" for name in self.abs_reductions or []),
            *(f"abs_{name}_norm" for name in self.abs_norms or []),
        ]
        return {
            "reductions": ",".join(words),
            "save_raw_tensor": self.save_raw_tensor,
            "save_shape": self.save_shape,
        }

    def to_json(self) -> str:
        """Returns the JSON form as text."""
        return json.dumps(self.to_json_dict())

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> ReductionConfig:
        """Makes a configuration from its JSON form: ``{"reductions": "min,abs_max,l2_norm", ...}``."""
        lists: dict[str, list[str]] = {"reductions": [], "abs_reductions": [], "norms": [], "abs_norms": []}
        text = params.get("reductions") or ""
        if not isinstance(text, str):
            raise SMDebugValueError(
                f"found reductions {text!r}, expected a text such as 'min,abs_max,l2_norm'"
            )
        for word in (part.strip() for part in text.split(",")):
            if not word:
                continue
            name, kind = word, "reductions"
            if name.endswith("_norm"):
                name, kind = name[: -len("_norm")], "norms"
            if name.startswith("abs_"):
                name, kind = name[len("abs_") :], f"abs_{kind}"
            allowed = ALLOWED_NORMS if kind.endswith("norms") else ALLOWED_REDUCTIONS
            if name not in allowed:
                raise SMDebugValueError(
                    f"found reduction {word!r}, expected one of {', '.join(ALLOWED_REDUCTIONS)}, l1_norm, l2_norm, "
                    "each also with abs_ before it"
                )
            lists[kind].append(name)
        return cls(
            **lists,
            save_raw_tensor=params.get("save_raw_tensor", False),
            save_shape=params.get("save_shape", False),
        )

    @classmethod
    def from_json(cls, text: str) -> ReductionConfig:
        """Makes a configuration from the text of its JSON form."""
        return cls.from_dict(json.loads(text))
