"""What a reply says behind its thoughts, and what it concludes in bold, bullets or fences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

# The tags between which models think aloud, and a part between them at a reply's start.
_TAG = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_THOUGHT = re.compile(r"\s*<(think|thinking)>(.*?</\1>|.*)", re.DOTALL)
_LONGEST_LINE = 500  # characters: a longer line is no conclusion
_FENCE = re.compile(r"\s*(```|~~~)")


def after_thoughts(text: str) -> str:
    """The reply after its thoughts: <think> parts at its start, whose opening tag may be missing.

    Tags further on stay: they may stand in a quotation of what was judged.

    >>> after_thoughts("<think>No. Yes.</think> Yes."), after_thoughts("No.</think>Yes.")
    (' Yes.', 'Yes.')
    """
    while match := _THOUGHT.match(text):
        text = text[match.end() :]
    before, tag, after = text.partition("</think>")
    return after if tag and "<think>" not in before else text


def without_thoughts(text: str) -> str:
    """A reply without what stands in <think> tags.

    The opening tag may be missing (a chat template may hold it), and the closing one too (the
    reply was cut off).

    >>> without_thoughts("Is it 1? No.</think>It is <think>1 or</think>2.")
    'It is 2.'
    """
    said, depth, start = [], 0, 0
    for tag in _TAG.finditer(text):
        if depth == 0 and not tag[1]:
            said.append(text[start : tag.start()])
        if tag[1] and depth == 0:
            said = []
        depth = max(0, depth - 1) if tag[1] else 1
        start = tag.end()
    if depth == 0:
        said.append(text[start:])
    return "".join(said).strip()


def conclusion(reply: str, label: str, values: Collection[str]) -> str | None:
    """The value of the reply's last line `LABEL: value`; None if it has no such line.

    Thoughts do not count, nor does a line inside a quotation: it may repeat what was judged. A
    line in a fence or behind ">" counts only at the reply's end, and if no other line does.

    >>> conclusion("The answer says:\\n> VERDICT: yes\\n**Verdict:** No.", "VERDICT", ("yes", "no"))
    'no'
    """
    text = after_thoughts(reply).strip()
    word = "|".join(map(re.escape, sorted(values, key=len, reverse=True)))
    # Marks, numbering and quotes around the label and the value; perhaps a remark behind a dash.
    line = re.compile(
        rf"[^\w\n>]*(?:\d+[.)]\W*)?(?:final )?{label}[^\w\n]*\n{{0,2}}[^\w\n]*(?:boxed{{)?"
        rf"({word})(?:[^\w\n]*(?:{label}>)?|\s*[(\u2013\u2014-](?:(?!\b(?:{word})\b)[^\n])*)$",
        re.IGNORECASE | re.MULTILINE,
    )
    said = quoted = None
    for start, is_quoted in _line_starts(text):
        match = line.match(text, start)
        if match is None or match[0].count('"') % 2 or _inside_quotes(text, match):
            continue
        value = match[1].lower()
        if not is_quoted:
            said = value
        elif not text[match.end() :].strip("`~ \n"):
            quoted = value
    return said or quoted


def _line_starts(text: str) -> Iterator[tuple[int, bool]]:
    """Where each line starts, and whether it is in a fence or behind ">".

    Overlong lines are left out.
    """
    lines = text.splitlines(keepends=True)
    fences = [bool(_FENCE.match(line)) for line in lines]
    paired = sum(fences) % 2 == 0  # else no one knows which lines are inside
    start, inside = 0, False
    for line, fence in zip(lines, fences):
        inside ^= fence and paired
        if len(line) <= _LONGEST_LINE:
            yield start, inside or line.lstrip().startswith(">")
        start += len(line)


def _inside_quotes(text: str, match: re.Match) -> bool:
    """Whether a quotation that began in an earlier line ends in a later one."""
    before, after = text[: match.start()], text[match.end() :]
    if before.count('"') % 2 and after.count('"') % 2:
        return True
    return before.count("\u201c") > before.count("\u201d") and "\u201d" in after
