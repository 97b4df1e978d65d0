"""The teacher's prompt and its reply read.

Appendix, section 10: the paper's slots, guidelines and output format, in our words.
"""

from __future__ import annotations

import re

from jhima.prompts import Subtask, fill_slots, one_line

ANNOTATION_INTRO = """\
You turn a recorded computer task into the few high-level subtasks that matter for completing it.

Task: {task}

Screenshot before the first action:"""

ANNOTATION_GUIDE = """\
How to write the subtasks
1. Keep to essential subgoals.
- A subgoal is something the user does that leads to a new page or to a change of state \
that shows in a screenshot.
- Merge actions that serve one purpose (several filters, the fields of one form) into one subgoal.
- Leave out small or incidental actions such as scrolling and hovering.
2. Analyse first.
- Before the subtasks, sum up in one short paragraph the main subgoals and the page changes \
that mark them.
3. State each goal so that it can be checked.
- Where actions were merged, name every condition that must hold at the end.
- Give at most five subtasks, fewer where fewer suffice, and only steps that the task needs.

Last, say whether the recording holds actions that the task did not need: NONE, or YES with \
these actions.

Reply in exactly this format:

[SUBGOAL ANALYSIS]
one paragraph

[SUBTASKS]
SUBTASK 1:
short title
- Goal:
what holds when it is done, and why it is done

[UNNECESSARY ACTIONS]
NONE, or YES: the actions"""


def annotation_parts(task: str, first: bytes, steps: list[tuple[str, bytes]]) -> list[str | bytes]:
    """The annotation request as interleaved texts and screenshots.

    It shows (x, o_0), then each action with what followed it. steps: (operation a_t, screenshot
    o_{t+1}); a screenshot is b"" where the recording has none.
    """
    parts: list[str | bytes] = [fill_slots(ANNOTATION_INTRO, task=one_line(task)), first]
    for number, (operation, after) in enumerate(steps, 1):
        parts.append(f"Step {number}: {one_line(operation)}")
        if after:
            parts += ["Screenshot after it:", after]
    return [*parts, ANNOTATION_GUIDE]


def read_annotation(text: str) -> tuple[str, list[Subtask], str | None]:
    """(analysis, subtasks, unnecessary actions or None) of a teacher's reply.

    Raises ValueError, saying what is missing, for a reply that is not in the format: the three
    sections in order, one to five numbered subtasks each with a title and a goal, and NONE or YES.
    """
    names = ("[SUBGOAL ANALYSIS]", "[SUBTASKS]", "[UNNECESSARY ACTIONS]")
    pattern = "(.*?)".join(re.escape(name) for name in names)
    sections = re.fullmatch(rf"\s*{pattern}(.*)", text, re.DOTALL)
    if sections is None:
        raise ValueError(f"expected the sections {', '.join(names)} in this order")
    analysis, listed, verdict = (section.strip() for section in sections.groups())
    blocks = re.split(r"^SUBTASK \d+:[ \t]*", listed, flags=re.MULTILINE)[1:]
    if not 1 <= len(blocks) <= 5:
        raise ValueError(f"expected one to five subtasks, found {len(blocks)}")
    subtasks = []
    for number, block in enumerate(blocks, 1):
        match = re.fullmatch(r"\s*(.+?)\s*\n-? ?Goal:\s*(.+)", block.strip(), re.DOTALL)
        if match is None:
            raise ValueError(
                f"subtask {number}: expected a title and a line `- Goal:` with the goal"
            )
        subtasks.append(Subtask(one_line(match[1]), one_line(match[2])))
    decision = re.match(r"<?(NONE|YES)\b>?[:\s]*(.*)", verdict, re.DOTALL | re.IGNORECASE)
    if decision is None:
        raise ValueError("expected NONE or YES under [UNNECESSARY ACTIONS]")
    unnecessary = None
    if decision[1].upper() == "YES":
        unnecessary = one_line(decision[2]) or "unnamed"
    return analysis, subtasks, unnecessary
