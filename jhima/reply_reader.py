"""What the action dialects share: literals, calls, points and key names read out of a model's text.

Everything here takes any string, in time linear in its length, and evaluates nothing. What cannot
be read raises `Unreadable`, which carries an error class and never leaves a dialect's `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from jhima.coordinates import Point, Size, to_page

# fmt: off
Error = Literal[
    "empty", "no_action", "bad_syntax", "unknown_action", "bad_point", "bad_key", "no_description",
    "no_target",
]
# fmt: on
MAX_REPLY, MAX_CALLS, MAX_DEPTH = 20_000, 5, 8  # characters; calls per reply; nested brackets


class Unreadable(Exception):
    """Why one call gives no action."""

    def __init__(self, error: Error, reason: str) -> None:
        super().__init__(reason)
        self.error: Error = error


def fold(name: object) -> str:
    """A name without case and separators: models write double_click, doubleClick and DoubleClick.

    >>> fold("double_click") == fold("doubleClick")
    True
    """
    return re.sub(r"[\s_-]", "", str(name)).lower()


def by_spelling(spellings: dict[str, str]) -> dict[str, str]:
    """The name that each spelling stands for, from each name's spellings in one string.

    >>> by_spelling({"write": "type typewrite"})
    {'type': 'write', 'typewrite': 'write'}
    """
    names = {}
    for name, words in spellings.items():
        names |= dict.fromkeys(words.split(), name)
    return names


# ---- literals ----

_ESCAPE = re.compile(r"\\(?:([ntr'\"\\])|u([0-9a-fA-F]{4}))")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r"""'([^'\\]*(?:\\.[^'\\]*)*)'|"([^"\\]*(?:\\.[^"\\]*)*)\"""", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_CONSTANTS = {"none": None, "null": None, "true": True, "false": False}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_QUOTES = ("'", '"')


def unescape(text: str) -> str:
    r"""Decodes escapes once; unknown ones stay as they are, and so does half of a surrogate pair.

    >>> unescape(r"l\'\u00e9t\u00e9 C:\data")
    "l'été C:\\data"
    """
    return _ESCAPE.sub(_unescape_one, text)


def _unescape_one(match: re.Match) -> str:
    if match[2] is None:
        return _ESCAPED.get(match[1], match[1])
    code = int(match[2], 16)
    return match[0] if 0xD800 <= code < 0xE000 else chr(code)


def quote(text: str) -> str:
    """A literal that `unescape` reads back: Python's repr of printable text, except that it never
    contains what would close the tag or code fence around it.

    >>> quote("it's\\n"), quote('"')
    ('"it\\'s\\\\n"', '\\'"\\'')
    """
    mark = '"' if "'" in text and '"' not in text else "'"
    escapes = {"\\": "\\\\", mark: "\\" + mark, "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    inner = "".join([escapes.get(char) or _printable(char) for char in text])
    return mark + inner.replace("</", r"\u003c/").replace("``", r"\u0060`") + mark


def _printable(char: str) -> str:
    if char.isprintable() or ord(char) > 0xFFFF:
        return char
    return f"\\u{ord(char):04x}"


def as_text(value: object) -> str:
    """A value as text that any encoder takes: half of a surrogate pair becomes a question mark."""
    text = "" if value is None else str(value)
    return text.encode("utf-8", "replace").decode()


def split_submit(value: object, escaped: bool = True) -> tuple[str, bool]:
    r"""(text, submit) of what is to be typed: a newline at its end means Enter.

    escaped: so does one that is still spelled as backslash and n.
    """
    text = as_text(value)
    newlines = ("\r\n", "\n", "\\n") if escaped else ("\r\n", "\n")
    ending = next((newline for newline in newlines if text.endswith(newline)), "")
    return text.removesuffix(ending), ending != ""


def number(value: object, error: Error = "bad_syntax") -> float:
    """A finite number below a million in size, given as a number or as text. Raises Unreadable."""
    if isinstance(value, str) and len(value) < 30 and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) < 1e6:  # NaN too
        raise Unreadable(error, f"not a number: {str(value)[:20]}")
    return float(value)


def number_within(low: float, high: float, value: object) -> float:
    """A number, moved to the nearest end of [low, high] if it lies outside. Raises Unreadable."""
    return max(low, min(high, number(value)))


def _skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()


def literal(text: str, position: int, depth: int = 0) -> tuple[object, int]:
    """The literal that starts at text[position], in Python's or JSON's spelling, and its end.

    A string may contain line breaks. Raises Unreadable("bad_syntax") for what is no literal.
    """
    start = _skip_space(text, position)
    if match := _STRING.match(text, start):
        inner = match[2] if match[1] is None else match[1]
        return unescape(inner), match.end()
    if match := _NUMBER.match(text, start):
        if match[0].lstrip("+-").isdecimal() and len(match[0]) < 20:
            return int(match[0]), match.end()
        return float(match[0]), match.end()
    match = _WORD.match(text, start)
    if match and match[0].lower() in _CONSTANTS:
        return _CONSTANTS[match[0].lower()], match.end()
    opening = text[start : start + 1]
    if opening not in _CLOSING or depth == MAX_DEPTH:
        raise Unreadable("bad_syntax", f"no literal: {text[start : start + 20]!r}")
    items, end = _items(text, start + 1, _CLOSING[opening], depth + 1)
    if opening == "{":
        return {str(key): value for key, value in items}, end
    return [value for _, value in items], end


def _items(
    text: str, position: int, closing: str, depth: int = 0, named: bool = False
) -> tuple[list[tuple], int]:
    """Pairs (key or None, value) up to the closing bracket, and its end.

    Keys are literals before a colon in braces, and names before "=" if `named`.
    """
    items = []
    position = _skip_space(text, position)
    while text[position : position + 1] != closing:
        key = None
        if named and (name := _NAMED.match(text, position)):
            key, position = name[1], name.end()
        elif closing == "}":
            key, position = literal(text, position, depth)
            position = _skip_space(text, position) + 1
            if text[position - 1 : position] != ":":
                raise Unreadable("bad_syntax", "a key without a value")
        value, position = literal(text, position, depth)
        items.append((key, value))
        position = _skip_space(text, position)
        if text[position : position + 1] == ",":
            position = _skip_space(text, position + 1)
        elif text[position : position + 1] != closing:
            raise Unreadable("bad_syntax", f"expected a comma or {closing}")
    return items, position + 1


# ---- calls ----


@dataclass(frozen=True)
class Arguments:
    """A call's arguments: those without a name in order, the others by folded name."""

    positional: list
    named: dict[str, object]

    def bind(self, parameters: str) -> Arguments:
        """With the positional ones also by name; parameters: the names in order, as in "x y"."""
        bound = dict(zip(parameters.split(), self.positional))
        return Arguments(self.positional, bound | self.named)

    def get(self, *names: str, default: object = None) -> object:
        """The value of the first of `names` that was passed; None counts as a value."""
        for name in names:
            if name in self.named:
                return self.named[name]
        return default


def strict_arguments(text: str, position: int) -> tuple[Arguments, int]:
    """The arguments from text[position] to the closing parenthesis, all literals, and its end.

    A missing parenthesis at the very end is forgiven. Raises Unreadable("bad_syntax").
    """
    items, end = _items(text + ")", position, ")", named=True)
    positional = [value for name, value in items if name is None]
    named = {fold(name): value for name, value in items if name is not None}
    return Arguments(positional, named), end


_LATER_NAME = re.compile(r"(?<=['\"\])\d])\s*,\s*([A-Za-z_]\w*)\s*=\s*(?=['\"\[(\d-])")
_LOOSE_VALUE = re.compile(r"(?!\w+\()(?:['\"\[(<]|.*['\"]$|[\w\s.,+-]*$)", re.DOTALL)


def loose_arguments(text: str) -> Arguments:
    """The arguments in a text whose quotes are not escaped: a value ends before `, name=`, or at
    the end of the text. Raises Unreadable.

    >>> loose_arguments("content='Kids' bikes (12\\")'")
    Arguments(positional=[], named={'content': 'Kids\\' bikes (12")'})
    """
    positional, named = [], {}
    names = [_NAMED.match(text), *_LATER_NAME.finditer(text)]
    ends = [name.start() for name in names[1:]] + [len(text)]
    for name, end in zip(names, ends):
        start = name.end() if name else 0
        value = text[start:end].strip()
        if not _LOOSE_VALUE.match(value):
            raise Unreadable("bad_syntax", f"no literal: {value[:20]}")
        if name:
            named[fold(name[1])] = unquote(value)
        elif value := unquote(value):
            positional.append(value)
    return Arguments(positional, named)


def unquote(text: str) -> str:
    """Without its outer quotes, or a single quote at one end, and with its escapes decoded."""
    text = text.strip()
    if text[:1] in _QUOTES:
        end = text.rfind(text[0], 1)  # what follows the last quote is not part of the string
        return unescape(text[1:end] if end > 0 else text[1:])
    return unescape(text[:-1] if text[-1:] in _QUOTES else text)


# Bounded repetitions, so that no text costs more than time linear in its length.
_CALL = r"(?<![\w.])(?:pyautogui\.)?([A-Za-z_]\w{0,30})\("
_START = re.compile(_CALL)
_AFTER = re.compile(r"[ \t]*(?:$|[\n\r;`<#,}\]]|\w+\()")  # follows a call: its end, or another one
_NEXT = re.compile(r"\)[ \t]{0,9}(?:#[^\n]{0,200})?[\n;]\s*(?:Action\s*[:：]\s*)?" + _CALL)


Call = tuple[str, Arguments | Unreadable]  # folded name; its arguments, or why they are unreadable


def calls(block: str, known: Collection[str], warnings: list[str]) -> Iterator[Call]:
    """The calls in a block, in order, whose folded names are known.

    At most MAX_CALLS + 1, so that the caller can tell that there were more. Comment lines contain
    no calls.
    """
    position = count = 0
    while count <= MAX_CALLS and (start := _START.search(block, position)):
        name = fold(start[1])
        line_start = block.rfind("\n", 0, start.start()) + 1
        before = block[line_start : start.start()].strip()
        if before.startswith("#") or name not in known:
            if not before and len(warnings) < 10:
                warnings.append(f"unknown action {start[1]}")
            position = start.end()
            continue
        count += 1
        arguments, end = _arguments(block, start, known, warnings)
        yield name, arguments
        position = min(end, len(block))


def _arguments(
    block: str, start: re.Match, known: Collection[str], warnings: list[str]
) -> tuple[Arguments | Unreadable, int]:
    """The arguments of the call that opens at `start`, or why they are unreadable; and its end.

    If all of them are literals, the call ends at its own parenthesis, whatever its strings
    contain. Otherwise a quote is not escaped, and the call ends at the last parenthesis before the
    next known call.
    """
    try:
        arguments, end = strict_arguments(block, start.end())
        if _AFTER.match(block, min(end, len(block))):
            return arguments, end
    except Unreadable:
        pass
    following = _NEXT.finditer(block, start.end())
    closings = (match.start() for match in following if fold(match[1]) in known)
    closing = next(closings, block.rfind(")", start.end()))
    if closing < 0:
        closing = len(block)
    try:
        arguments = loose_arguments(block[start.end() : closing])
    except Unreadable as unreadable:
        return unreadable, closing + 1
    warnings.append(f"{start[1]}: quotes or brackets repaired")
    return arguments, closing + 1


# ---- points ----

_DIGITS = re.compile(r"(?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)(?![\w.]*\w)")
_TAG = re.compile(r"<\|?/?\w+\|?>")


def point(value: object) -> Point:
    """(x, y) of whatever spells a point: (a, b), [a, b], "<point>a b</point>", a box of four
    numbers (its centre), box tokens around any of them. Raises Unreadable("bad_point").

    Integers stay integers, for 1 and 1.0 may mean different things.

    >>> point("<|box_start|>(302,81),(342,101)<|box_end|>")
    (322.0, 91.0)
    """
    coordinates = _coordinates(value)
    if len(coordinates) not in (2, 4):
        raise Unreadable("bad_point", f"no point: {str(value)[:40]!r}")
    floats = [number(coordinate, "bad_point") for coordinate in coordinates]
    if len(floats) == 4:
        left, top, right, bottom = floats
        return (left + right) / 2, (top + bottom) / 2
    x, y = (c if isinstance(c, int) else value for c, value in zip(coordinates, floats))
    return x, y


def _coordinates(value: object) -> list:
    """The numbers in a text; the items of a list, or of the lists in it."""
    if isinstance(value, str):
        digits = _DIGITS.findall(_TAG.sub(" ", value[:400]))
        return [float(n) if "." in n else int(n) for n in digits]
    items = []
    if isinstance(value, (list, tuple)):
        for item in value[:5]:
            items += item if isinstance(item, list) else [item]
    return items


def page_point(
    grid: Point, viewport: Size, warnings: list[str], value: object, fractions: bool = False
) -> Point:
    """A point that a model gave on `grid`, in CSS pixels of the viewport. Raises Unreadable.

    fractions: two floats in [0, 1] are shares of the viewport, as they leak from training data of
    such floats; integers never are.
    """
    x, y = point(value)
    if isinstance(x, float) and isinstance(y, float) and 0 <= x <= 1 and 0 <= y <= 1:
        if fractions:
            grid = (1.0, 1.0)
            warnings.append("coordinates as fractions")
        else:
            warnings.append("suspicious_point: a fraction read as pixels")
    on_page = to_page((x, y), grid, viewport)
    if on_page is None:
        raise Unreadable("bad_point", f"({str(x)[:20]}, {str(y)[:20]}) lies outside the screenshot")
    if not (0 <= x <= grid[0] and 0 <= y <= grid[1]):
        warnings.append("point clamped to the screenshot")
    return on_page


# ---- keys ----

# fmt: off
_KEYS = by_spelling({
    "Control": "ctrl control ctl cmd command", "Meta": "win windows meta super",
    "Alt": "alt option", "Shift": "shift", "Enter": "enter return", "Escape": "esc escape",
    "Delete": "del delete", "Backspace": "backspace back_space", "Tab": "tab",
    "Space": "space spacebar", "Home": "home", "End": "end", "Insert": "insert ins",
    "PageUp": "pageup pgup page_up prior", "PageDown": "pagedown pgdn page_down next",
    "ArrowUp": "up arrowup arrow_up up_arrow", "ArrowDown": "down arrowdown arrow_down down_arrow",
    "ArrowLeft": "left arrowleft arrow_left left_arrow",
    "ArrowRight": "right arrowright arrow_right right_arrow",
}) | {f"f{n}": f"F{n}" for n in range(1, 13)} | {" ": "Space"}
# fmt: on
MODIFIERS = ("Control", "Shift", "Alt", "Meta")


def keys(value: object) -> tuple[str, ...]:
    """Playwright's names of the keys in "ctrl+a", "ctrl a" or ["ctrl", "a"]: modifiers first,
    letters in lower case unless Shift is held. Raises Unreadable("bad_key").

    >>> keys("ctrl++"), keys(["shift", "Tab"]), keys("a-CTRL")
    (('Control', '+'), ('Shift', 'Tab'), ('Control', 'a'))
    """
    parts = [value] if isinstance(value, (str, int)) else value
    names: list[str] = []
    if isinstance(parts, (list, tuple)) and len(parts) <= 10:
        for part in parts:
            names += _split_keys(str(part))
    if not 0 < len(names) <= 10:
        raise Unreadable("bad_key", f"no keys in {str(value)[:40]!r}")
    held = [key for key in MODIFIERS if key in names]
    others = [key for key in names if key not in held]
    if held and "Shift" not in held:
        others = [key.lower() if len(key) == 1 else key for key in others]
    return tuple(held + others)


def _split_keys(text: str) -> list[str]:
    if len(text) == 1 and text.isprintable():
        return [_key(text)]
    text = text.strip("\n")
    if text.strip().lower() in _KEYS:  # some spellings contain a separator
        return [_KEYS[text.strip().lower()]]
    names = [name for name in re.split(r"[+\s-]+", text) if name]
    if text.endswith(("++", " +", "+-", " -")):  # the last character is a key
        names.append(text[-1])
    return [_key(name) for name in names]


def _key(name: str) -> str:
    if name.lower() in _KEYS:
        return _KEYS[name.lower()]
    if len(name) == 1 and name.isprintable():
        return name
    raise Unreadable("bad_key", f"no such key: {name[:20]!r}")
