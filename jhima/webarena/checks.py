"""Checks of values that were read from a JSON file.

What raises, raises ValueError: one line that names the place (`where`) and what was expected there.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

# Bounds against a broken or hostile file: bytes, characters, list items. WebArena-Lite-v2 needs
# 137 kB, 457 and 12.
MAX_FILE, MAX_TEXT, MAX_ITEMS = 64_000_000, 5_000, 100

_SECRET = object()  # in the place of a value that no message may quote
_QUOTED = reprlib.Repr()  # of a bad value in a message: one line, bounded
_QUOTED.maxstring = 80


def read_json(path: Path, label: str) -> Any:
    """The JSON value in a UTF-8 file, or the list of values in a .jsonl file.

    `label` is the file's name in messages.
    """
    try:
        size = path.stat().st_size
        expect(size <= MAX_FILE, label, f"at most {MAX_FILE} bytes", size)
        content = path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{label}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{label}: expected UTF-8, got the byte {byte:#x}") from None
    if path.suffix != ".jsonl":
        return _parse(content, label)
    lines = enumerate(content.split("\n"), 1)
    return [_parse(line, f"{label}: line {number}") for number, line in lines if line.strip()]


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}") from None


def expect(holds: object, where: str, expected: str, value: object = _SECRET) -> None:
    """Raises unless `holds`. The message quotes `value`, unless the caller keeps it back."""
    if holds:
        return
    message = f"{where}: expected {expected}"
    if value is not _SECRET:
        message += f", got {_QUOTED.repr(value)}"
    raise ValueError(message)


def expect_text(value: Any, where: str, empty: bool = False) -> None:
    """A text of bounded length; `empty`: it may be blank."""
    article = "a" if empty else "a non-empty"
    expected = f"{article} text of at most {MAX_TEXT} characters"
    expect(is_text(value) and (empty or value.strip()), where, expected, value)


def is_text(value: Any) -> bool:
    """JSON can spell half a character, which has no UTF-8: that is no text here."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return False
    return not re.search(r"[\ud800-\udfff]", value)


def is_list(value: Any, fits: Callable[[Any], object]) -> bool:
    """A non-empty list of bounded length whose items all fit."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
        return False
    return all(fits(item) for item in value)


def is_object(value: Any, keys: Collection[str]) -> bool:
    """An object without other keys than these."""
    return isinstance(value, dict) and set(value) <= set(keys)
