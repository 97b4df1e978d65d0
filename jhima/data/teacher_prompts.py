"""The teacher's prompt (appendix, section 10: same slots, guidelines and output format, in our words), and its reply read."""

from __future__ import annotations

import re

from jhima.prompts import Subtask, _line, fill_slots

# ---- the teacher (appendix, section 10: same slots, guidelines and output format, in our words) ----

ANNOTATION_INTRO = """\
You turn a recorded computer task into the few high-level subtasks that matter for completing it.

Task: {task}

Screenshot before the first action:"""


ANNOTATION_GUIDE = """\
How to write the subtasks
1. Keep to essential subgoals.
- A subgoal is something the user does that leads to a new page or to a change of state that shows in a screenshot.
- Merge actions that serve one purpose (several filters, the fields of one form) into one subgoal.
- Leave out small or incidental actions such as scrolling and hovering.
2. Analyse first.
- Before the subtasks, sum up in one short paragraph the main subgoals and the page changes that mark them.
3. State each goal so that it can be checked.
- Where actions were merged, name every condition that must hold at the end.
- Give at most five subtasks, fewer where fewer suffice, and only steps that the task needs.

Last, say whether the recording holds actions that the task did not need: NONE, or YES with these actions.

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
    """The annotation request as interleaved texts and screenshots: (x, o_0), then each action with what followed it.

    steps: (operation a_t, screenshot o_{t+1}); a screenshot may be b"" where the recording has none.
    """
    parts: list[str | bytes] = [fill_slots(ANNOTATION_INTRO, task=_line(task)), first]
    for number, (operation, after) in enumerate(steps, 1):
        parts += [
            f"Step {number}: {_line(operation)}",
            *(["Screenshot after it:", after] if after else []),
        ]
    return [*parts, ANNOTATION_GUIDE]


def read_annotation(text: str) -> tuple[str, list[Subtask], str | None]:
    """(analysis, subtasks, unnecessary actions or None) of a teacher's reply.

    Raises ValueError, saying what is missing, for a reply that is not in the format: the three sections in order, one
    to five numbered subtasks each with a title and a goal, and NONE or YES.
    """
    sections = re.fullmatch(
        r"\s*\[SUBGOAL ANALYSIS\](.*?)\[SUBTASKS\](.*?)\[UNNECESSARY ACTIONS\](.*)", text, re.DOTALL
    )
    if sections is None:
        raise ValueError(
            "expected the sections [SUBGOAL ANALYSIS], [SUBTASKS], [UNNECESSARY ACTIONS] in this order"
        )
    analysis, listed, verdict = (section.strip() for section in sections.groups())
    blocks = re.split(r"^SUBTASK \d+:[ \t]*", listed, flags=re.MULTILINE)[1:]
    if not 1 <= len(blocks) <= 5:
        raise ValueError(f"expected one to five subtasks, found {len(blocks)}")
    subtasks = []
    for number, block in enumerate(blocks, 1):
        found = re.fullmatch(r"\s*(.+?)\s*\n-? ?Goal:\s*(.+)", block.strip(), re.DOTALL)
        if found is None:
            raise ValueError(
                f"subtask {number}: expected a title and a line `- Goal:` with the goal"
            )
        subtasks.append(Subtask(_line(found[1]), _line(found[2])))
    decision = re.match(r"<?(NONE|YES)\b>?[:\s]*(.*)", verdict, re.DOTALL | re.IGNORECASE)
    if decision is None:
        raise ValueError("expected NONE or YES under [UNNECESSARY ACTIONS]")
    return (
        analysis,
        subtasks,
        (_line(decision[2]) or "unnamed") if decision[1].upper() == "YES" else None,
    )
