"""The exception that means "this episode says nothing about the agent", and waits that raise it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Literal, TypeVar

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import TimeoutError as PlaywrightTimeout

T = TypeVar("T")

Kind = Literal["browser", "site", "login", "judge", "model", "deadline"]


class EnvironmentFailure(Exception):
    """A broken browser, site, login, judge or model, or a deadline: no sample, never reward 0.

    The rollout retries the episode; if it fails again, it leaves its group's mean (grpo.py).
    """

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


async def within(seconds: float, work: Awaitable[T], doing: str) -> T:
    """Awaits browser `work` for at most `seconds`.

    Whatever the browser raises becomes an EnvironmentFailure.
    """
    try:
        return await asyncio.wait_for(work, seconds)
    except (TimeoutError, PlaywrightTimeout):
        raise EnvironmentFailure("deadline", f"{doing}: not done in {seconds:g} s") from None
    except PlaywrightError as error:
        # "net::" is Chromium's own prefix for network errors.
        kind = "site" if "net::" in error.message else "browser"
        raise EnvironmentFailure(kind, f"{doing}: {error.message.splitlines()[0][:200]}") from None
