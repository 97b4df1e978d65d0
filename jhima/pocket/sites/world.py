"""World: everything that a rollout can change, fresh for every rollout.

A world is built from constants in a few milliseconds and dropped when its lease ends. No two
worlds share an object (tests/pocket/test_pocket.py checks that).
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from jhima.pocket.sites import gitlab_data, map_data, reddit_data, store_data
from jhima.webarena.sites import ACCOUNTS

T = TypeVar("T")


@dataclass
class World:
    """The state of all five sites. `full` worlds have longer lists in an order shuffled by `seed`.

    In a world that is made `signed_in` the visitor is logged in to every site; in others the
    visitor fills in the login forms.
    """

    full: bool = False
    seed: int = 0
    signed_in: bool = False
    store: store_data.Store = field(init=False)  # of shopping and of shopping_admin: one shop
    forum: reddit_data.Forum = field(init=False)
    forge: gitlab_data.Forge = field(init=False)
    atlas: map_data.Atlas = field(init=False)
    sessions: dict[str, str] = field(default_factory=dict)  # cookie token -> site
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # one request at once

    def __post_init__(self) -> None:
        self.store = store_data.fresh(self.full)
        self.forum = reddit_data.fresh(self.full)
        self.forge = gitlab_data.fresh(self.full)
        self.atlas = map_data.fresh(self.full)

    def listing(self, items: Iterable[T], key: str) -> list[T]:
        """Items in the order a list page shows them: unchanged, or shuffled in a full world.

        `key` names the page, so that each page has one order for as long as the world lives.
        """
        items = list(items)
        if self.full:
            random.Random(f"{self.seed}/{key}").shuffle(items)
        return items

    def log_in(self, site: str, user: str, password: str) -> str | None:
        """A session token, or None if the name or the password is wrong."""
        if ACCOUNTS.get(site) != (user, password):
            return None
        token = secrets.token_urlsafe(12)
        self.sessions[token] = site
        return token
