"""A local teacher and judge: an OpenAI-compatible server that answers from the oracle's knowledge.

It lets the real `openai` client, annotate.py and the fuzzy_match judge run with no key and no network. Asked to
annotate, it looks the task up and gives its template's subtasks; asked to judge an answer, it compares the texts.

As a teacher that has never seen the actor at work, it is not of one mind how much to say: most of its annotations are
brief ("Open Mug"), the others tell what to click ("Open Mug: Kitchen, Mug"). Which of them an actor can follow, only
its success shows.

Asked which subtasks an episode completed, it knows the moves of which its own plans' subtasks consist, and looks for
them among the operations. It reads no screenshot, but two that are equal tell it that an operation did nothing.
"""

from __future__ import annotations

import json
import re
import threading
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from zlib import crc32

from flask import Flask, Response, jsonify, request
from werkzeug.serving import make_server

from jhima.pocket.sites.app import QuietHandler
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.tasks.intents import Move, Solution, Subtask, operation
from jhima.prompts import Prompts

MODEL = "pocket-teacher"


BRIEF = 6  # of ten annotations


def make_teacher() -> Flask:
    app = Flask(__name__, static_folder=None)

    @app.get("/v1/models")
    def models() -> Response:
        return jsonify(object="list", data=[{"id": MODEL, "object": "model", "owned_by": "pocket"}])

    @app.post("/v1/chat/completions")
    def complete() -> Response | tuple[Response, int]:
        body = request.get_json(silent=True)
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            return jsonify(
                error={
                    "message": "expected a JSON body with messages",
                    "type": "invalid_request_error",
                }
            ), 400
        contents = [
            message.get("content") for message in body["messages"] if isinstance(message, dict)
        ]
        asked = list(map(_text, contents))
        reply = answer(asked[-1], _images(contents[-1])) if asked else answer("")
        usage = {
            "prompt_tokens": sum(len(a) for a in asked) // 4,
            "completion_tokens": len(reply) // 4,
        }
        return jsonify(
            id="pocket",
            object="chat.completion",
            created=int(time.time()),
            model=MODEL,
            usage=usage | {"total_tokens": sum(usage.values())},
            choices=[
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": reply},
                }
            ],
        )

    return app


@contextmanager
def serve_teacher(port: int = 0) -> Iterator[str]:
    """Serves the teacher on localhost in a thread (port 0: any free one); gives its base URL."""
    server = make_server(
        "127.0.0.1", port, make_teacher(), threaded=True, request_handler=QuietHandler
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


def _text(content: object) -> str:
    """The text of a message, whose content is a string or a list of parts."""
    if isinstance(content, list):
        return "\n".join(
            part.get("text", "")
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        )
    return content if isinstance(content, str) else ""


def _images(content: object) -> list[str]:
    """The URLs of a message's images."""
    parts = content if isinstance(content, list) else []
    return [
        str(part.get("image_url"))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "image_url"
    ]


def answer(prompt: str, images: Sequence[str] = ()) -> str:
    """The teacher's reply to the last user message of a request."""
    try:
        asked = json.loads(prompt)
    except ValueError:
        asked = None
    if isinstance(asked, dict) and {"question", "reference", "answer"} <= asked.keys():
        same = equivalent(str(asked["reference"]), str(asked["answer"]))
        return (
            f"The answer {'says the same as' if same else 'differs from'} the reference.\nVERDICT: "
            f"{'correct' if same else 'incorrect'}"
        )
    if isinstance(asked, dict) and {"task", "subtasks", "steps"} <= asked.keys():
        operations = [str(step.get("operation")) for step in asked["steps"]]
        if len(images) == len(
            operations
        ):  # what stands after the last step is not seen: it counts as done
            seen = zip(operations, images, [*images[1:], ""])
            operations = [said for said, before, after in seen if before != after]
        verdicts = [
            judge_subtask(str(subtask), str(asked["task"]), operations)
            for subtask in asked["subtasks"]
        ]
        return "\n".join(
            [f"{n}. {reason}" for n, (_, reason) in enumerate(verdicts, 1)]
            + [
                f"SUBTASK {n}: {'done' if done else 'not done'}"
                for n, (done, _) in enumerate(verdicts, 1)
            ]
        )
    task = re.search(r"^Task: (.*)$", prompt, re.MULTILINE)
    solution = solutions().get(task[1].strip()) if task else None
    if solution is None:
        return "I do not know this task."
    if prompt.rstrip().endswith(
        "screenshot:"
    ):  # a decomposer's prompt (train_rl.py --decomposer URL#MODEL)
        return Prompts().plan_text(solution.plan)
    operations = re.findall(r"^Step \d+: (.*)$", prompt, re.MULTILINE)
    return annotate(solution, operations, crc32(task[1].strip().encode()) % 10 < BRIEF)


def annotate(solution: Solution, operations: list[str], brief: bool = False) -> str:
    """The subtasks of a solution in the annotation format; an operation done twice in a row is called unnecessary."""
    goals = " Then ".join(f"{g.goal[0].lower()}{g.goal[1:]}." for g in solution.plan)
    subtasks = "\n\n".join(
        f"SUBTASK {n}:\n{g.brief if brief else g.title}\n- Goal:\n{g.goal}."
        for n, g in enumerate(solution.plan, 1)
    )
    twice = [now for before, now in zip(operations, operations[1:]) if now == before]
    return (
        f"[SUBGOAL ANALYSIS]\nIn this task {goals}\n\n[SUBTASKS]\n{subtasks}\n\n"
        f"[UNNECESSARY ACTIONS]\n{'YES: ' + '; '.join(twice) if twice else 'NONE'}"
    )


def equivalent(reference: str, said: str) -> bool:
    """Whether `said` holds every word and number of the reference, in any order, and no other number."""
    want, got = (
        Counter(
            re.findall(
                r"\d+(?:\.\d+)?|[^\W\d_]+",
                unicodedata.normalize("NFKC", text).lower().replace(",", ""),
            )
        )
        for text in (reference, said)
    )
    numbers = {word for word in got if word[0].isdigit()} - set(want)
    return bool(want) and not (want - got) and not numbers


def judge_subtask(subtask: str, task: str, operations: list[str]) -> tuple[bool, str]:
    """Whether a subtask's moves are among the operations, in their order, and the reason.

    The task's own plan says which moves; for a subtask that it has not (a decomposer may plan what it likes), any plan
    that has it does.
    """
    own = solutions().get(task)
    ways = [g.moves for g in own.plan if subtask in names(g)] if own else []
    ways = ways or subtask_moves().get(subtask, [])
    missing = [_missing(moves, operations) for moves in ways]
    if not ways:
        return False, "No plan has this subtask."
    if None in missing:
        return True, f"{', then '.join(map(operation, ways[missing.index(None)]))} had its effect."
    return False, f"{missing[0]} had no effect or was not done."


def _missing(moves: tuple[Move, ...], operations: list[str]) -> str | None:
    """The first move that is not among the operations after those before it; None where all are."""
    rest = iter(operations)
    return next(
        (said for said in map(operation, moves) if said not in rest), None
    )  # `in` advances the iterator


def names(subtask: Subtask) -> tuple[str, ...]:
    """What a decomposer may call a subtask: its title, whole or brief, with or without the goal."""
    return tuple(
        name
        for title in (subtask.title, subtask.brief)
        for name in (title, f"{title}: {subtask.goal}.")
    )


@lru_cache(maxsize=1)
def subtask_moves() -> dict[str, list[tuple[Move, ...]]]:
    """Every subtask of every plan, by name: the ways in which it is done."""
    ways: dict[str, set[tuple[Move, ...]]] = {}
    for solution in solutions().values():
        for subtask in solution.plan:
            for name in names(subtask):
                ways.setdefault(name, set()).add(subtask.moves)
    return {name: sorted(moves, key=repr) for name, moves in ways.items()}
