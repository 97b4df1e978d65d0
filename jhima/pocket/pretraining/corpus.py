"""What the pocket models read and write, as text: the corpus of their tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from jhima.actions import format_reply
from jhima.pocket.pretraining.lessons import moves_of, plan_text
from jhima.pocket.pretraining.model import PROMPTS, VIEWPORT
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.tasks.intents import Answer, Click, Move, Write, operation


def corpus() -> Iterator[str]:
    """Every intent, plan, operation and form of reply in the arena."""
    for intent, solution in solutions().items():
        titles = [subtask.title for subtask in solution.plan]
        yield PROMPTS.decomposer(intent, b"").user + plan_text(titles)
        history: list[str] = []
        for move in moves_of(solution.plan):
            user = PROMPTS.actor(intent, titles, history, b"").user
            yield user + format_reply(operation(move), _calls(move, len(history)))
            history.append(operation(move))
        yield format_reply("Finish", ["terminate(status='success')"])
        yield format_reply("Scroll down", ["swipe(direction='up', amount=0.5)"])
        yield format_reply("Scroll up", ["swipe(direction='down', amount=0.5)"])


def _calls(move: Move, t: int) -> list[str]:
    """A move as the actor calls it at step t. Coordinates vary with t, as they do on pages."""
    click = f"click(x={t * 56 % VIEWPORT}, y={t * 28 + 14})"
    match move:
        case Click():
            return [click]
        case Write(_, text):
            return [click, f"write(message={text!r})"]
        case Answer(text):
            return [f"response(answer={text!r})", "terminate(status='success')"]
