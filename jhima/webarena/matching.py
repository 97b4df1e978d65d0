"""Comparing an answer, a page's text or a URL with a task's reference: pure functions, no I/O.

What a person would call the same is the same here; each docstring says where that differs from the
public harnesses.
"""

from __future__ import annotations

import html
import operator
import posixpath
import re
import unicodedata
from decimal import Decimal
from urllib.parse import parse_qs, unquote, urlsplit

OR = " |OR| "  # between alternatives, in URLs and in contents
_INEQUALITY = re.compile(r"(<=|>=|==|<|>) *(-?\d+(?:\.\d+)?)")
# fmt: off
_COMPARE = {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">=": operator.ge,
            ">": operator.gt}
# fmt: on


# ---- texts ----


def clean(text: str) -> str:
    """Takes away what no person would call a difference.

    Strips, removes one pair of quotes, lower-cases, collapses whitespace and composes accents.

    >>> clean(' "The\\n Red  Mug" ')
    'the red mug'
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text.lower()


# A number, perhaps with thousands, that is no part of a word, a version or a longer number.
# `(?>...)` never gives digits back, so that "12,345kg" holds no 12.
_NUMBER = re.compile(r"(?<!\w)(?<!\d\.)-?(?>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?!\w)(?!\.\d)")


def same_answer(text: str, reference: str) -> bool:
    """exact_match on an answer: one final full stop is punctuation, not content."""
    return clean(text).removesuffix(".") == clean(reference).removesuffix(".")


def same_text(text: str, reference: str) -> bool:
    """exact_match on a page, HTML-unescaped on both sides."""
    return clean(html.unescape(text)) == clean(html.unescape(reference))


def has_words(text: str, item: str) -> bool:
    """must_include on an answer: `item` occurs as whole words. A bare number is compared by value.

    >>> has_words("it costs $12.50.", "$12.50"), has_words("$1,000.00", "1000")
    (True, True)
    >>> has_words("11 or 1.5", "1")
    False
    """
    text, item = clean(text), clean(item)
    if _NUMBER.fullmatch(item):
        return any(_value(number) == _value(item) for number in _NUMBER.findall(text))
    left = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", item) else ""
    right = r"(?!\w)(?!\.\d)" if re.search(r"\w$", item) else ""
    return bool(re.search(left + re.escape(item) + right, text))


def has_text(text: str, item: str) -> bool:
    """must_include on a page: a substring of it, as upstream.

    Pages glue words together, and references quote attributes. With --published-rules it is the
    rule for answers too, as in WebArena-Lite-v2: there "11" includes "1". Both sides are
    HTML-unescaped, with whitespace collapsed.
    """
    return clean(html.unescape(item)) in clean(html.unescape(text))


def satisfies(text: str, inequality: str) -> bool:
    """required_values: the whole text is a number that fulfils an inequality such as ">= 12.5".

    The number may have a $ and thousands. Raises ValueError for what is no inequality.
    """
    rule = _INEQUALITY.fullmatch(inequality.strip())
    if rule is None:
        raise ValueError(f"expected an inequality such as '>= 12.5', got {inequality[:80]!r}")
    number = clean(text).removeprefix("$")
    if not _NUMBER.fullmatch(number):
        return False
    value, bound = _value(number), Decimal(rule[2])
    return _COMPARE[rule[1]](value, bound)


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


# ---- URLs ----


def url_match(url: str, references: str, rule: str) -> bool:
    """Whether the agent's `url` is one of `references`.

    EXACT: same host, path and query. GOLD in PRED: same host, the reference's path or one below it,
    and every query value of the reference (others may be there too; a key that the reference leaves
    blank may be absent). In both, localhost is 127.0.0.1, and these do not count: a trailing slash,
    percent-encoding, the order of a query, the scheme (a replica may redirect to https) and the
    fragment (a place in the page, such as the map's position).

    >>> url_match("http://localhost/a/8?b=2&c=1#top", "http://127.0.0.1/a/8/?c=1&b=2", "EXACT")
    True
    >>> url_match("http://h/issues/80", "http://h/issues/8", "GOLD in PRED")
    False
    """
    host, path, query = _address(url)
    for reference in references.split(OR):
        gold_host, gold_path, gold_query = _address(reference)
        if rule == "EXACT":
            matches = path == gold_path and query == gold_query
        else:
            matches = path == gold_path or path.startswith(gold_path.rstrip("/") + "/")
            for key, values in gold_query.items():
                matches = matches and set(values) <= set(query.get(key, [""]))
        if matches and host == gold_host:
            return True
    return False


def published_url_match(url: str, references: str, rule: str) -> bool:
    """url_match as WebArena-Lite-v2's own harness has it, for --published-rules: raw text."""

    def raw(text: str) -> str:
        return text.strip().replace("localhost", "127.0.0.1").removesuffix("/")

    golds = [raw(reference) for reference in references.split(OR)]
    if rule == "EXACT":
        return raw(url) in golds
    return any(gold in raw(url) for gold in golds)


def _address(url: str) -> tuple[str, str, dict[str, list[str]]]:
    """Host with port, path without dot segments or trailing slash, and the query's values."""
    parts = urlsplit(url.strip())
    name = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    path = "/" + posixpath.normpath(unquote(parts.path) or "/").lstrip("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    return f"{name}:{port}", path, {key: sorted(values) for key, values in query.items()}
