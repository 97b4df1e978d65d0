"""What the pocket models read and write, as text: the corpus of their tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from jhima.actions import format_reply
from jhima.pocket.pretraining.model import PROMPTS, VIEWPORT
from jhima.pocket.tasks.generate import solutions
from jhima.pocket.tasks.intents import Answer, Click, Press, Write


def corpus() -> Iterator[str]:
    """Every intent, plan, operation and reply form of the arena."""
    for intent, solution in solutions().items():
        plan = [subtask.title for subtask in solution.plan]
        yield PROMPTS.decomposer(intent, b"").user + "\n".join(
            f"{n}. {title}" for n, title in enumerate(plan, 1)
        )
        operations: list[str] = []
        for move in (move for subtask in solution.plan for move in subtask.moves):
            at = f"click(x={len(operations) * 56 % VIEWPORT}, y={len(operations) * 28 + 14})"
            match move:
                case Click(label):
                    operation, calls = f"Click {label}", [at]
                case Write(label, text):
                    operation, calls = f"Write {text} in {label}", [at, f"write(message={text!r})"]
                case Press(key):
                    operation, calls = f"Press {key}", [f"press(keys={key!r})"]
                case Answer(text):
                    operation, calls = (
                        f"Answer {text}",
                        [f"response(answer={text!r})", "terminate(status='success')"],
                    )
            yield PROMPTS.actor(intent, plan, operations, b"").user + format_reply(operation, calls)
            operations.append(operation)
        yield format_reply("Finish", ["terminate(status='success')"])
        yield format_reply("Scroll down", ["swipe(direction='up', amount=0.5)"])
        yield format_reply("Scroll up", ["swipe(direction='down', amount=0.5)"])
