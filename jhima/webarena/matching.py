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
from functools import lru_cache
from urllib.parse import parse_qs, unquote, urlsplit

OR = " |OR| "  # between alternatives, in URLs and in contents
_INEQUALITY = re.compile(r"(<=|>=|==|<|>) *(-?\d+(?:\.\d+)?)")
# fmt: off
_COMPARE = {"<": operator.lt, "<=": operator.le, "==": operator.eq, ">=": operator.ge,
            ">": operator.gt}
# fmt: on


# What typesetting changes, and no reader: quotes, dashes, the ellipsis, characters without a width.
_TYPOGRAPHY = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", "")
    | {"\u2026": "..."}
)


# ---- texts ----


def clean(text: str) -> str:
    """Takes away what no person would call a difference.

    Strips, removes one pair of quotes, lower-cases, collapses whitespace, composes accents and
    takes typographic quotes, dashes, ellipses and invisible characters for their plain forms.

    >>> clean(' "The\\n Red  Mug" ')
    'the red mug'
    """
    return _plain(text.translate(_TYPOGRAPHY))


def _plain(text: str) -> str:
    """clean without typography, as --published-rules has it."""
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text.lower()


# A number, perhaps with thousands and a unit that touches it ("914km"). It is no part of a word, a
# version, a date, a time ("10:00", "10 am"), an ordinal ("1st") or a longer number. `(?>...)` never
# gives digits back, so that "12,345kg" holds no 12.
_NUMBER = re.compile(
    r"(?<!\w)(?<!\d[.:/])(?<!\d{4}-)(?<!\d-\d-)(?<!\d-\d\d-)(?<!\d-\d{3}-)"
    r"-?(?>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
    r"(?![.:/]?\d)(?!-\d+-\d)(?!-\d{4}(?!\d))"
    r"(?!(?:st|nd|rd|th|\s?[ap]\.?m)\b)(?![^\W\d_]*[\d_])"
)


def same_answer(text: str, reference: str) -> bool:
    """exact_match on an answer: one final full stop is punctuation, not content."""
    return clean(text).removesuffix(".") == clean(reference).removesuffix(".")


def same_text(text: str, reference: str) -> bool:
    """exact_match on a page, HTML-unescaped on both sides."""
    return clean(html.unescape(text)) == clean(html.unescape(reference))


def has_words(text: str, item: str) -> bool:
    """must_include on an answer: `item` occurs as whole words. A bare number is compared by value.

    A more exact number holds too: one that `item` cuts short, by less than 1 %.

    >>> has_words("it costs $12.50.", "$12.50"), has_words("$1,000.00", "1000")
    (True, True)
    >>> has_words("11 or 1.5", "1"), has_words("it costs $148.80", "148")
    (False, True)
    """
    text, item = clean(text), clean(item)
    if _NUMBER.fullmatch(item):
        return any(_same_number(number, item) for number in _NUMBER.findall(text))
    left = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", item) else ""
    right = r"(?!\w)(?!\.\d)" if re.search(r"\w$", item) else ""
    return bool(re.search(left + re.escape(item) + right, text))


def has_text(text: str, item: str) -> bool:
    """must_include on a page: a substring of it, as upstream.

    Pages glue words together, and references quote attributes. Both sides are HTML-unescaped, with
    whitespace collapsed.
    """
    return clean(html.unescape(item)) in _clean_page(text)


@lru_cache(maxsize=2)  # a page's text and its HTML, each searched for every item of a rule
def _clean_page(text: str) -> str:
    return clean(html.unescape(text))


def published_has_text(text: str, item: str) -> bool:
    """must_include on an answer by WebArena-Lite-v2's rule: there "11" includes "1"."""
    return _plain(html.unescape(item)) in _plain(html.unescape(text))


def published_same_answer(text: str, reference: str) -> bool:
    """exact_match on an answer for --published-rules: typography counts."""
    return _plain(text).removesuffix(".") == _plain(reference).removesuffix(".")


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


def _same_number(number: str, reference: str) -> bool:
    value, wanted = _value(number), _value(reference)
    if value == wanted:
        return True
    digits, places = reference.partition(".")[::2]
    whole, more = number.partition(".")[::2]
    cut = _value(digits) == _value(whole) and more.startswith(places)
    return cut and abs(value - wanted) * 100 < abs(wanted)


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
