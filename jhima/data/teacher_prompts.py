"""The teacher's prompt and its reply read.

Appendix, section 10: the paper's slots, guidelines and output format, in our words.
"""

from __future__ import annotations

import re

from jhima.models.replies import after_thoughts
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


_SECTIONS = ("SUBGOAL ANALYSIS", "SUBTASKS", "UNNECESSARY ACTIONS")
# A line's marks (bold, bullets, headings, numbering), then what it is.
_MARKS = r"[^\w\[]*+(?:\d+[.)]\s*+)?+[^\w\[]*+"
_HEADING = re.compile(rf"{_MARKS}(\[?)({'|'.join(_SECTIONS)})\b(\]?)[^\w<]*+(.*)", re.IGNORECASE)
_SUBTASK = re.compile(rf"{_MARKS}\[?SUBTASK\s*\d+\b[^\w\"'\u201c(]*(.*)", re.IGNORECASE)
_GOAL = re.compile(rf"{_MARKS}Goal\b[^\w\"'\u201c(]*(.*)", re.IGNORECASE)
_DECISION = re.compile(r"\W*+(NONE|NO|YES)\b[>\]*\s:.]*(.*)", re.DOTALL | re.IGNORECASE)


def read_annotation(text: str) -> tuple[str, list[Subtask], str | None]:
    """(analysis, subtasks, unnecessary actions or None) of a teacher's reply.

    Thoughts, a preamble, a fence around it and Markdown's marks do not matter. Raises ValueError,
    saying what is missing, for a reply that is not in the format: the three sections in order, one
    to five numbered subtasks each with a title and a goal, and NONE or YES. Takes time linear in
    the reply.
    """
    analysis, listed, verdict = _sections(after_thoughts(text).splitlines())
    subtasks: list[Subtask] = []
    for number, block in enumerate(_split(listed, _SUBTASK)[1:], 1):
        title, *goal = ("\n".join(part) for part in _split(block, _GOAL))
        title, goal = _plain(title), _plain(" ".join(goal))
        if not title or not goal:
            raise ValueError(
                f"subtask {number}: expected a title and a line `- Goal:` with the goal"
            )
        subtasks.append(Subtask(title, goal))
    if not 1 <= len(subtasks) <= 5:
        raise ValueError(f"expected one to five subtasks, found {len(subtasks)}")
    decision = _DECISION.match("\n".join(verdict))
    if decision is None:
        raise ValueError("expected NONE or YES under [UNNECESSARY ACTIONS]")
    unnecessary = None
    if decision[1].upper() == "YES":
        unnecessary = _plain(decision[2]) or "unnamed"
    return "\n".join(analysis).strip(), subtasks, unnecessary


def _sections(lines: list[str]) -> list[list[str]]:
    """The lines of each section, from the last heading of the first one on; fences left out."""
    found: dict[str, list[str]] = {}
    current = None
    for line in lines:
        if line.lstrip().startswith(("```", "~~~")):
            continue
        heading = _HEADING.match(line)
        # Prose may begin with the words of a heading; without brackets it stands alone.
        if heading and (heading[1] and heading[3] or not heading[4].strip()):
            name = heading[2].upper()
            if name == _SECTIONS[0]:
                found = {}
            current = found.setdefault(name, [])
            current.append(heading[4])
        elif current is not None:
            current.append(line)
    if tuple(found) != _SECTIONS:
        names = ", ".join(f"[{name}]" for name in _SECTIONS)
        raise ValueError(f"expected the sections {names} in this order")
    return list(found.values())


def _split(lines: list[str], start: re.Pattern) -> list[list[str]]:
    """The lines before the first match of `start`, then those from each match on, marks removed."""
    parts: list[list[str]] = [[]]
    for line in lines:
        match = start.match(line)
        if match:
            parts.append([match[1]])
        else:
            parts[-1].append(line)
    return parts


def _plain(text: str) -> str:
    """One line without Markdown's emphasis."""
    return one_line(text.replace("**", "").replace("__", "")).strip("*`#- ")
