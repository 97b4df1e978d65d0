"""A local teacher and judge: an OpenAI-compatible server that answers from the oracle's knowledge.

With it the real `openai` client, annotate.py and the fuzzy_match judge run without a key and
without a network. Asked to annotate, it looks the task up and gives its template's subtasks; asked
to judge an answer, it compares the texts.

As a teacher it never sees the actor at work, so it does not know how much detail the actor needs.
Most of its annotations are brief ("Open Mug"), the others tell what to click ("Open Mug: Kitchen,
Mug"). Only the actor's success shows which of them it can follow.

Asked which subtasks an episode completed, it looks for the moves of its own plans' subtasks among
the operations. It reads no screenshot, but from two equal ones it knows that the operation between
them did nothing.
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
            message = "expected a JSON body with messages"
            return jsonify(error={"message": message, "type": "invalid_request_error"}), 400
        messages = [message for message in body["messages"] if isinstance(message, dict)]
        texts = [_text(message.get("content")) for message in messages]
        reply = answer("")
        if messages:
            reply = answer(texts[-1], _images(messages[-1].get("content")))
        read, written = sum(map(len, texts)) // 4, len(reply) // 4
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": reply},
        }
        return jsonify(
            id="pocket",
            object="chat.completion",
            created=int(time.time()),
            model=MODEL,
            usage=usage,
            choices=[choice],
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
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in _parts(content, "text"))


def _images(content: object) -> list[str]:
    """The URLs of a message's images."""
    return [str(part.get("image_url")) for part in _parts(content, "image_url")]


def _parts(content: object, kind: str) -> list[dict]:
    """The parts of this type of a message's content; a content that is no list has none."""
    if not isinstance(content, list):
        return []
    return [part for part in content if isinstance(part, dict) and part.get("type") == kind]


def answer(prompt: str, images: Sequence[str] = ()) -> str:
    """The teacher's reply to the last user message of a request."""
    try:
        query = json.loads(prompt)
    except ValueError:
        query = None
    if isinstance(query, dict) and {"question", "reference", "answer"} <= query.keys():
        return _judge_answer(str(query["reference"]), str(query["answer"]))
    if isinstance(query, dict) and {"task", "subtasks", "steps"} <= query.keys():
        return _judge_subtasks(query, images)
    line = re.search(r"^Task: (.*)$", prompt, re.MULTILINE)
    task = line[1].strip() if line else ""
    solution = solutions().get(task)
    if solution is None:
        return "I do not know this task."
    # The end of a decomposer's prompt (train_rl.py --decomposer URL#MODEL).
    if prompt.rstrip().endswith("screenshot:"):
        return Prompts().plan_text(solution.plan)
    operations = re.findall(r"^Step \d+: (.*)$", prompt, re.MULTILINE)
    return annotate(solution, operations, brief=crc32(task.encode()) % 10 < BRIEF)


def _judge_answer(reference: str, reply: str) -> str:
    if equivalent(reference, reply):
        return "The answer says the same as the reference.\nVERDICT: correct"
    return "The answer differs from the reference.\nVERDICT: incorrect"


def _judge_subtasks(query: dict, images: Sequence[str]) -> str:
    """One line with the reason per subtask, then one with the verdict per subtask.

    images: one before each step and one after the last (which earlier versions did not send), if
    there are any. An operation after which the screenshot is the same did nothing, unless it gave
    the answer or ended the episode.
    """
    steps = query["steps"]
    if len(images) >= len(steps):
        changes = zip(steps, images, [*images[1:], ""])
        steps = [step for step, before, after in changes if before != after or _ends(step)]
    operations = [str(step.get("operation")) for step in steps]
    reasons, verdicts = [], []
    for number, subtask in enumerate(query["subtasks"], 1):
        done, reason = judge_subtask(str(subtask), str(query["task"]), operations)
        reasons.append(f"{number}. {reason}")
        verdicts.append(f"SUBTASK {number}: {'done' if done else 'not done'}")
    return "\n".join(reasons + verdicts)


def _ends(step: dict) -> bool:
    return any(action.get("kind") in ("answer", "stop") for action in step.get("actions", ()))


def annotate(solution: Solution, operations: list[str], brief: bool = False) -> str:
    """The subtasks of a solution in the annotation format.

    An operation that is done twice in a row is called unnecessary.
    """
    goals, blocks = [], []
    for number, subtask in enumerate(solution.plan, 1):
        title = subtask.brief if brief else subtask.title
        goals.append(f"{subtask.goal[0].lower()}{subtask.goal[1:]}.")
        blocks.append(f"SUBTASK {number}:\n{title}\n- Goal:\n{subtask.goal}.")
    twice = [now for before, now in zip(operations, operations[1:]) if now == before]
    unnecessary = f"YES: {'; '.join(twice)}" if twice else "NONE"
    return (
        f"[SUBGOAL ANALYSIS]\nIn this task {' Then '.join(goals)}\n\n"
        "[SUBTASKS]\n" + "\n\n".join(blocks) + f"\n\n[UNNECESSARY ACTIONS]\n{unnecessary}"
    )


def equivalent(reference: str, reply: str) -> bool:
    """Whether the reply holds every word and number of the reference, in any order, and no other
    number."""
    wanted, got = _words(reference), _words(reply)
    other_numbers = {word for word in got if word[0].isdigit()} - set(wanted)
    return bool(wanted) and not (wanted - got) and not other_numbers


def _words(text: str) -> Counter[str]:
    """The words and numbers of a text, with how often each occurs."""
    plain = unicodedata.normalize("NFKC", text).lower().replace(",", "")
    return Counter(re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", plain))


def judge_subtask(subtask: str, task: str, operations: list[str]) -> tuple[bool, str]:
    """Whether a subtask's moves are among the operations, in their order, and the reason.

    The task's own plan says which moves. For a subtask that is not in it (a decomposer may plan
    what it likes), any plan with this subtask does.
    """
    ways: list[tuple[Move, ...]] = []
    if task in solutions():
        ways = [own.moves for own in solutions()[task].plan if subtask in names(own)]
    ways = ways or subtask_moves().get(subtask, [])
    if not ways:
        return False, "No plan has this subtask."
    missing = [_missing(moves, operations) for moves in ways]
    if None in missing:
        moves = ways[missing.index(None)]
        return True, f"{', then '.join(map(operation, moves))} had its effect."
    return False, f"{missing[0]} had no effect or was not done."


def _missing(moves: tuple[Move, ...], operations: list[str]) -> str | None:
    """The first move that is not among the operations after those before it, or None."""
    rest = iter(operations)
    for words in map(operation, moves):
        if words not in rest:  # `in` advances the iterator
            return words
    return None


def names(subtask: Subtask) -> tuple[str, ...]:
    """What a decomposer may call a subtask: title, whole or brief, with or without the goal."""
    title, brief, goal = subtask.title, subtask.brief, f"{subtask.goal}."
    return (title, f"{title}: {goal}", brief, f"{brief}: {goal}")


@lru_cache(maxsize=1)
def subtask_moves() -> dict[str, list[tuple[Move, ...]]]:
    """Every subtask of every plan, by name: the ways in which it is done."""
    ways: dict[str, set[tuple[Move, ...]]] = {}
    for solution in solutions().values():
        for subtask in solution.plan:
            for name in names(subtask):
                ways.setdefault(name, set()).add(subtask.moves)
    return {name: sorted(moves, key=repr) for name, moves in ways.items()}
