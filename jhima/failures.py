"""The one exception that means "this episode says nothing about the agent"."""
from __future__ import annotations

from typing import Literal

Kind = Literal["browser", "site", "login", "judge", "deadline"]


class EnvironmentFailure(Exception):
    """A broken browser, site, login or judge, or a deadline: no sample, never reward 0.

    The rollout loop retries the episode; if it fails again, it leaves its group's mean (see grpo.py).
    """

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail
