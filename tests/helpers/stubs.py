"""A stub site, session and judge for the tests of evaluators; the site speaks HTTP, pages are in
a real Chromium.
"""

import asyncio
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from urllib.parse import unquote_plus

from serving import Server

from jhima.actions import Action
from jhima.browser.lease import Lease
from jhima.episodes import Task
from jhima.webarena.evaluators import score
from jhima.webarena.judge import Judge

URLS = {
    "shopping": "http://h:1",
    "shopping_admin": "http://h:2/admin",
    "reddit": "http://h:3",
    "gitlab": "http://h:4",
    "map": "http://h:5",
}


@dataclass
class Site(Server):
    """`pages`: path -> HTML, a JSON value, (status, either) or a function of the request's body
    that gives one.
    """

    pages: dict = field(default_factory=dict)
    seen: list = field(default_factory=list)  # (path, headers, body)

    def answer(self, _method, path, headers, body):
        self.seen.append((path, dict(headers), body))
        reply = self.pages.get(unquote_plus(path), (404, "missing"))
        reply = reply(body) if callable(reply) else reply
        status, content = reply if isinstance(reply, tuple) else (200, reply)
        if isinstance(content, str):
            return status, {}, content
        return status, {"Content-Type": "application/json"}, json.dumps(content)


@dataclass
class Session:
    """As much of browser.Session as scoring uses."""

    context: object
    page: object
    operation: float = 8.0
    navigation: float = 8.0

    async def new_page(self):
        return await self.context.new_page()


def lease_of(site: Site) -> Lease:
    return Lease(
        urls=dict.fromkeys(("shopping", "reddit", "gitlab"), site.url),
        headers={"X-World": "w1"},
        accounts={"shopping_admin": ("admin", "secret")},
        viewport=(1280, 720),
    )


def score_answer(
    entry: dict,
    answer: str,
    judge: Judge | None = None,
    url: str = "http://h/",
    published: bool = False,
):
    """Scores an answer and the URL where its episode ended alone: no browser."""
    session = SimpleNamespace(page=SimpleNamespace(url=url), operation=8.0)
    task = Task("t-1", ("shopping",), "__SHOPPING__", "Do it", entry)
    return asyncio.run(score(task, SimpleNamespace(urls=URLS), session, answer, judge, published))


def string(note: str = "", **answers: object) -> dict:
    return {"eval_types": ["string_match"], "reference_answers": answers, "string_note": note}


def html(*targets: tuple) -> dict:
    keys = ("url", "locator", "required_contents")
    return {
        "eval_types": ["program_html"],
        "program_html": [dict(zip(keys, target)) for target in targets],
    }


CHAT = "/v1/chat/completions"


def reply(text: str, finish: str = "stop") -> tuple[int, dict]:
    return 200, {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "j",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        ],
    }


TASK = Task(
    "map-0",
    ("map",),
    "__MAP__",
    "Show me the page of the Zoo.",
    {
        "eval_types": ["url_match"],
        "reference_answers": None,
        "reference_url": "__MAP__/place/Zoo",
        "program_html": [],
    },
)


class Deaf:
    """A session on which every action works."""

    async def perform(self, action: Action) -> str:
        return ""
