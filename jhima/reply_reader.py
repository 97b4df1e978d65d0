"""What the action dialects share: reading literals, calls, points and key names out of a model's text.

Everything here takes any string, in time that grows with its length, and evaluates nothing. What cannot be read
raises `Bad`, which carries the error class and never leaves a dialect's `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

from jhima.coordinates import Size, to_page

Error = Literal[
    "empty",
    "no_action",
    "bad_syntax",
    "unknown_action",
    "bad_point",
    "bad_key",
    "no_description",
    "no_target",
]


MAX_REPLY, MAX_CALLS, MAX_DEPTH = 20_000, 5, 8


class Bad(Exception):
    """Why one call gives no action."""

    def __init__(self, error: Error, why: str) -> None:
        super().__init__(why)
        self.error: Error = error


def fold(name: object) -> str:
    """A name without case and joints: models write double_click, doubleClick and DoubleClick.

    >>> fold("double_click") == fold("doubleClick")
    True
    """
    return re.sub(r"[\s_-]", "", str(name)).lower()


# ---- literals ----

_ESCAPE = re.compile(r"\\(?:([ntr'\"\\])|u([0-9a-fA-F]{4}))")


_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}


_SPACE = re.compile(r"\s*")


_STRING = re.compile(r"""'([^'\\]*(?:\\.[^'\\]*)*)'|"([^"\\]*(?:\\.[^"\\]*)*)\"""", re.DOTALL)


_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")


_WORD = re.compile(r"[A-Za-z_]\w*")


_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")


_WORDS = {"none": None, "null": None, "true": True, "false": False}


_CLOSING = {"[": "]", "(": ")", "{": "}"}


def decode(text: str) -> str:
    r"""Escapes decoded once; unknown ones stay as they are, and so does half of a surrogate pair.

    >>> decode(r"l\'\u00e9t\u00e9 C:\data")
    "l'été C:\\data"
    """

    def one(match: re.Match) -> str:
        if match[2] is None:
            return _PLAIN.get(match[1], match[1])
        code = int(match[2], 16)
        return match[0] if 0xD800 <= code < 0xE000 else chr(code)

    return _ESCAPE.sub(one, text)


def quote(text: str) -> str:
    """A literal that `decode` reads back; as Python's repr for text that can be printed, but that it never holds what
    would close its tag or fence.

    >>> quote("it's\\n"), quote('"')
    ('"it\\'s\\\\n"', '\\'"\\'')
    """
    mark = '"' if "'" in text and '"' not in text else "'"
    special = {"\\": "\\\\", mark: "\\" + mark, "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    inner = "".join(
        special.get(c) or (c if c.isprintable() or ord(c) > 0xFFFF else f"\\u{ord(c):04x}")
        for c in text
    )
    return mark + inner.replace("</", r"\u003c/").replace("``", r"\u0060`") + mark


def plain(value: object) -> str:
    """A value as text that any encoder takes: half of a surrogate pair becomes a question mark."""
    return ("" if value is None else str(value)).encode("utf-8", "replace").decode()


def typed(value: object, doubled: bool = True) -> tuple[str, bool]:
    """(text, submit): a trailing newline means Enter. `doubled`: also one whose backslash is still there."""
    text = plain(value)
    for end in ("\r\n", "\n", *(["\\n"] if doubled else [])):
        if text.endswith(end):
            return text.removesuffix(end), True
    return text, False


def number(value: object, error: Error = "bad_syntax") -> float:
    """A finite number below a million, given as a number or as text."""
    if isinstance(value, str) and len(value) < 30 and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e6
    ):  # NaN too
        raise Bad(error, f"not a number: {str(value)[:20]}")
    return float(value)


def _skip(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


def literal(text: str, at: int, depth: int = 0) -> tuple[object, int]:
    """The literal that starts at text[at], in Python's or JSON's spelling, and where it ends.

    A string may hold line breaks. Raises Bad("bad_syntax") for what is no literal.
    """
    at = _skip(text, at)
    if match := _STRING.match(text, at):
        return decode(match[1] if match[1] is not None else match[2]), match.end()
    if match := _NUMBER.match(text, at):
        whole = match[0].lstrip("+-").isdecimal() and len(match[0]) < 20
        return (int if whole else float)(match[0]), match.end()
    if (match := _WORD.match(text, at)) and match[0].lower() in _WORDS:
        return _WORDS[match[0].lower()], match.end()
    opening = text[at : at + 1]
    if opening not in _CLOSING or depth == MAX_DEPTH:
        raise Bad("bad_syntax", f"no literal: {text[at : at + 20]!r}")
    items: list = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != _CLOSING[opening]:
        value, at = literal(text, at, depth + 1)
        at = _skip(text, at)
        if opening == "{":
            if text[at : at + 1] != ":":
                raise Bad("bad_syntax", "a key without a value")
            key = str(value)
            value, at = literal(text, at + 1, depth + 1)
            value, at = (key, value), _skip(text, at)
        items.append(value)
        at = _separator(text, at, _CLOSING[opening])
    return (dict(items) if opening == "{" else items), at + 1


def _separator(text: str, at: int, closing: str) -> int:
    """Past a comma; or at the closing bracket, where the end of the text counts as one."""
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != closing:
        raise Bad("bad_syntax", f"expected a comma or {closing}")
    return at


# ---- calls ----

Arguments = tuple[list, dict[str, object]]  # positional, and by folded name


def strict_arguments(text: str, at: int) -> tuple[Arguments, int]:
    """The arguments after an opening parenthesis, all literals, and the place after the closing one.

    A missing closing parenthesis at the very end is forgiven. Raises Bad("bad_syntax").
    """
    positional, named, at = [], {}, _skip(text, at)
    while at < len(text) and text[at] != ")":
        key = _NAMED.match(text, at)
        value, at = literal(text, key.end() if key else at)
        if key:
            named[fold(key[1])] = value
        else:
            positional.append(value)
        at = _skip(text, at)
        if at < len(text):
            at = _separator(text, at, ")")
    return (positional, named), at + 1


def loose_arguments(text: str) -> Arguments:
    """The arguments in `text` where quotes are not escaped: a value ends before `, name=`, or at the end. Raises Bad.

    >>> loose_arguments("content='Kids' bikes (12\\")'")
    ([], {'content': 'Kids\\' bikes (12")'})
    """
    marks = [(0, m) if (m := _NAMED.match(text)) else (0, None)]
    marks += [
        (m.start(), m)
        for m in re.finditer(r"(?<=['\"\])\d])\s*,\s*([A-Za-z_]\w*)\s*=\s*(?=['\"\[(\d-])", text)
    ]
    positional, named = [], {}
    for (_, mark), after in zip(marks, [start for start, _ in marks[1:]] + [len(text)]):
        value = text[mark.end() if mark else 0 : after].strip()
        if not re.match(r"['\"\[(<]|.*['\"]$|[\w\s.,+-]*$", value, re.DOTALL) or re.match(
            r"\w+\(", value
        ):
            raise Bad("bad_syntax", f"no literal: {value[:20]}")
        value = unquote(value)
        if mark:
            named[fold(mark[1])] = value
        elif value:
            positional.append(value)
    return positional, named


def unquote(text: str) -> str:
    """Without its outer quote pair, or the one quote it has at an end, and with its escapes decoded."""
    text = text.strip()
    quote = text[:1] if text[:1] in ("'", '"') else text[-1:] if text[-1:] in ("'", '"') else ""
    if quote and text.startswith(quote):
        inner = text[1:]
        closing = inner.rfind(quote)  # what follows the last quote is not the string's
        return decode(inner[:closing] if closing >= 0 else inner)
    return decode(text.removesuffix(quote) if quote else text)


# Bounded, so that no text costs more than time linear in its length.
_CALL = r"(?<![\w.])(?:pyautogui\.)?([A-Za-z_]\w{0,30})\("


_START = re.compile(_CALL)


_AFTER = re.compile(
    r"[ \t]*(?:$|[\n\r;`<#,}\]]|\w+\()"
)  # what may follow a call: another one, or an end


_NEXT = re.compile(r"\)[ \t]{0,9}(?:#[^\n]{0,200})?[\n;]\s*(?:Action\s*[:：]\s*)?" + _CALL)


def calls(
    block: str, known: Callable[[str], bool], warnings: list[str]
) -> Iterator[tuple[str, Arguments | Bad]]:
    """The known calls in a block in order, as (folded name, arguments, or why there are none).

    Strictly read first: where all arguments are literals, a call ends at its own parenthesis, whatever its strings
    say. Otherwise a quote is not escaped, and the call ends at the last parenthesis before the next known call.
    At most MAX_CALLS + 1, so that the caller can tell that there were more. Comment lines hold no calls.
    """
    at, found = 0, 0
    while found <= MAX_CALLS and (start := _START.search(block, at)) is not None:
        name = fold(start[1])
        before = block[block.rfind("\n", 0, start.start()) + 1 : start.start()].strip()
        if before.startswith("#") or not known(name):
            at = start.end()
            if not before and len(warnings) < 10:
                warnings.append(f"unknown action {start[1]}")
            continue
        found += 1
        try:
            arguments, end = strict_arguments(block, start.end())
            strict = bool(_AFTER.match(block, min(end, len(block))))
        except Bad:
            strict = False
        if not strict:
            close = next(
                (m.start() for m in _NEXT.finditer(block, start.end()) if known(fold(m[1]))), -1
            )
            close = close if close >= 0 else block.rfind(")", start.end())
            end = close + 1 if close >= 0 else len(block)
            try:
                arguments = loose_arguments(
                    block[start.end() : close if close >= 0 else len(block)]
                )
                warnings.append(f"{start[1]}: quotes or brackets repaired")
            except Bad as bad:
                arguments = bad
        yield name, arguments
        at = min(end, len(block))


# ---- points ----

_DIGITS = re.compile(r"(?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)(?![\w.]*\w)")


_TAG = re.compile(r"<\|?/?\w+\|?>")


def point(value: object) -> tuple[float, float]:
    """(x, y) of whatever spells a point: (a, b), [a, b], "<point>a b</point>", a box of four numbers (its centre),
    box tokens around any of them. Integers stay integers, for 1 and 1.0 may mean different things.

    >>> point("<|box_start|>(302,81),(342,101)<|box_end|>")
    (322.0, 91.0)
    """
    if isinstance(value, str):
        found: list = [
            float(n) if "." in n else int(n) for n in _DIGITS.findall(_TAG.sub(" ", value[:400]))
        ]
    elif isinstance(value, (list, tuple)):
        found = [n for item in value[:5] for n in (item if isinstance(item, list) else [item])]
    else:
        found = []
    if len(found) not in (2, 4):
        raise Bad("bad_point", f"no point: {str(value)[:40]!r}")
    for n in found:
        number(n, "bad_point")
    if len(found) == 4:
        return (number(found[0]) + number(found[2])) / 2, (number(found[1]) + number(found[3])) / 2
    x, y = (n if isinstance(n, (int, float)) else number(n) for n in found)
    return x, y


def on_page(
    grid: tuple[float, float], viewport: Size, warnings: list[str], fractions: bool = False
) -> Callable[[object], tuple[float, float]]:
    """The reader of points on `grid` that gives CSS pixels of the viewport.

    fractions: two floats in [0, 1] are shares of the viewport, as they leak from training data of such floats;
    integers never are.
    """

    def place(value: object) -> tuple[float, float]:
        x, y = point(value)
        shares = isinstance(x, float) and isinstance(y, float) and 0 <= x <= 1 and 0 <= y <= 1
        span = (1.0, 1.0) if shares and fractions else grid
        inside = to_page((x, y), span, viewport)
        if inside is None:
            raise Bad("bad_point", f"({str(x)[:20]}, {str(y)[:20]}) lies outside the screenshot")
        if not (0 <= x <= span[0] and 0 <= y <= span[1]):
            warnings.append("point clamped to the screenshot")
        if shares:
            warnings.append(
                "coordinates as fractions"
                if fractions
                else "suspicious_point: a fraction read as pixels"
            )
        return inside

    return place


# ---- keys ----

_KEYS = {
    "ctrl": "Control",
    "control": "Control",
    "ctl": "Control",
    "cmd": "Control",
    "command": "Control",
    "win": "Meta",
    "windows": "Meta",
    "meta": "Meta",
    "super": "Meta",
    "alt": "Alt",
    "option": "Alt",
    "shift": "Shift",
    "enter": "Enter",
    "return": "Enter",
    "esc": "Escape",
    "escape": "Escape",
    "del": "Delete",
    "delete": "Delete",
    "backspace": "Backspace",
    "back_space": "Backspace",
    "tab": "Tab",
    "space": "Space",
    "spacebar": "Space",
    "home": "Home",
    "end": "End",
    "insert": "Insert",
    "ins": "Insert",
    "pageup": "PageUp",
    "pgup": "PageUp",
    "page_up": "PageUp",
    "prior": "PageUp",
    "pagedown": "PageDown",
    "pgdn": "PageDown",
    "page_down": "PageDown",
    "next": "PageDown",
    **{f"f{n}": f"F{n}" for n in range(1, 13)},
    **{
        name: f"Arrow{way.title()}"
        for way in ("up", "down", "left", "right")
        for name in (way, f"arrow{way}", f"arrow_{way}", f"{way}_arrow")
    },
}


MODIFIERS = ("Control", "Shift", "Alt", "Meta")


def keys(given: object) -> tuple[str, ...]:
    """Playwright's names of the keys in "ctrl+a", "ctrl a", ["ctrl", "a"]; modifiers first, letters lower-case
    unless Shift is held.

    >>> keys("ctrl++"), keys(["shift", "Tab"]), keys("a-CTRL")
    (('Control', '+'), ('Shift', 'Tab'), ('Control', 'a'))
    """
    parts = [given] if isinstance(given, (str, int)) else given
    if not isinstance(parts, (list, tuple)) or not 0 < len(parts) <= 10:
        raise Bad("bad_key", f"no keys in {str(given)[:40]!r}")
    names = [name for part in parts for name in _split_keys(str(part))]
    if not 0 < len(names) <= 10:
        raise Bad("bad_key", f"no keys in {str(given)[:40]!r}")
    held = [k for k in MODIFIERS if k in names]
    others = [
        k.lower() if held and "Shift" not in held and len(k) == 1 else k
        for k in names
        if k not in held
    ]
    return tuple(held + others)


def _split_keys(text: str) -> list[str]:
    if len(text) == 1 and text.isprintable():
        return ["Space" if text == " " else text]
    text = text.strip("\n")
    if text.strip().lower() in _KEYS:
        return [_KEYS[text.strip().lower()]]
    last = ["+"] if text.endswith(("++", " +")) else ["-"] if text.endswith(("+-", " -")) else []
    names = []
    for name in [n for n in re.split(r"[+\s-]+", text) if n] + last:
        key = _KEYS.get(name.lower(), name if len(name) == 1 and name.isprintable() else None)
        if key is None:
            raise Bad("bad_key", f"no such key: {name[:20]!r}")
        names.append(key)
    return names
