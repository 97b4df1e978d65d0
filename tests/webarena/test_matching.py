"""Comparing texts and URLs: tables."""

import pytest

from jhima.webarena.matching import (
    has_text,
    has_words,
    published_has_text,
    published_same_answer,
    published_url_match,
    same_answer,
    same_text,
    satisfies,
    url_match,
)


@pytest.mark.parametrize(
    "text, item, holds",
    [
        ("It costs $12.50.", "$12.50", True),
        ("US$12.50", "$12.50", True),
        ("$12.505", "$12.50", False),
        ("$12.50", "$12", False),
        ("$112.50", "12.50", False),
        ("12.5 dollars", "12.50", True),
        ("11", "1", False),
        ("1.5", "1", False),
        ("0.1", "1", False),
        ("1st", "1", False),
        ("v1.1.1", "1", False),
        ("1", "1", True),
        ("(1)", "1", True),
        ("1, 2 and 3", "2", True),
        ("1,2,3", "2", True),
        ("No.5", "5", True),
        ("$0.00", "0", True),
        ("10", "0", False),
        ("1,234", "1234", True),
        ("12,345kg", "12", False),
        ("-5", "5", False),
        ("from $1.13-$89.00", "89", True),
        ("order #000000189", "189", True),
        ("at 19:00", "9:00", False),
        ("Lopez", "Lo", False),
        ("Chen, LO", "Lo", True),
        ("a  Red\nMug!", "red mug", True),
        ("Green-vines", "green", True),
        (
            "git clone ssh://git@h/eriklindernoren/PyTorch-GAN.git",
            "eriklindernoren/PyTorch-GAN.git",
            True,
        ),
        ("Erik Linder-Nore\u0301n", "Erik Linder-Nor\u00e9n", True),
        ("", "x", False),
    ],
)
def test_must_include_on_an_answer_holds_whole_words_and_numbers(text, item, holds):
    assert has_words(text, item) is holds


def test_must_include_on_a_page_is_a_substring():
    assert has_text("<form class='vote vote--user-upvoted'>", "vote vote--user-upvoted")
    assert has_text("Fish &amp;\n  Chips", "fish & chips")
    assert has_text("11", "1")


@pytest.mark.parametrize(
    "text, reference, same",
    [
        (" yes ", "Yes", True),
        ("Yes.", "Yes", True),
        ('"Yes"', "yes", True),
        ("Yes, it is", "Yes", False),
        ("a  b", "a b", True),
        ("'", "'", True),
        ("", "Yes", False),
    ],
)
def test_exact_match_on_an_answer(text, reference, same):
    assert same_answer(text, reference) is same


def test_exact_match_on_a_page_keeps_full_stops():
    assert same_text("Enjoying life", "\nEnjoying life\n") and same_text("a &lt; b", "A < b")
    assert not same_text("Good idea.", "Good idea")


@pytest.mark.parametrize(
    "text, rule, holds",
    [
        ("12", ">= 12", True),
        ("$1,200.50", "> 1200", True),
        ("12", "< 12", False),
        ("12.0", "==12", True),
        ("11", "<= 11.5", True),
        ("about 12", ">= 1", False),
        ("", ">= 0", False),
    ],
)
def test_required_values(text, rule, holds):
    assert satisfies(text, rule) is holds


H = "http://127.0.0.1:7780"


@pytest.mark.parametrize(
    "url, reference, exact, gold",
    [
        (f"{H}/a", f"{H}/a", True, True),
        ("http://localhost:7780/a/", f"{H}/a", True, True),
        (f"{H}", f"{H}/", True, True),
        (f"{H}/a#notes", f"{H}/a", True, True),
        (f"{H}/a%20b?q=c+d", f"{H}/a b?q=c%20d", True, True),
        (f"{H}/s?b=2&a=1", f"{H}/s?a=1&b=2", True, True),  # upstream: the order decides
        (f"{H}/s?l[]=x&l[]=y", f"{H}/s?l%5B%5D=y&l%5B%5D=x", True, True),
        (f"{H}/s?a=1&page=2", f"{H}/s?a=1", False, True),
        (f"{H}/s?a=1", f"{H}/s?a=1&b=", False, True),
        (f"{H}/s?a=1&b=3", f"{H}/s?a=1&b=", False, False),
        (f"{H}/s?a=12", f"{H}/s?a=1", False, False),  # upstream: found in
        (f"{H}/s", f"{H}/s?a=1", False, False),
        (f"{H}/issues/8/notes", f"{H}/issues/8", False, True),
        (f"{H}/issues/80", f"{H}/issues/8", False, False),  # upstream: found in
        (f"{H}/contact-us", f"{H}/contact", False, False),  # upstream: found in
        (f"{H}/admin/x.html", f"{H}/admin/../x.html", False, False),
        (f"{H}/x.html", f"{H}/admin/../x.html", True, True),
        (f"{H}/login?next={H}/a", f"{H}/a", False, False),  # upstream: found in
        ("http://127.0.0.1:7781/a", f"{H}/a", False, False),
        ("http://127.0.0.1:7780@evil.example/a", f"{H}/a", False, False),
        ("http://h/a", "http://h:80/a", True, True),
        (f"{H}/b?x=1", f"{H}/a |OR| {H}/b", False, True),
        ("about:blank", f"{H}/a", False, False),
        ("chrome-error://chromewebdata/", H, False, False),
    ],
)
def test_url_match(url, reference, exact, gold):
    assert url_match(url, reference, "EXACT") is exact
    assert url_match(url, reference, "GOLD in PRED") is gold


def test_the_published_rules_find_raw_text():
    """What WebArena-Lite-v2's harness says, for --published-rules: a substring with scheme, host
    and query order.
    """
    assert published_url_match("http://localhost:7780/issues/80", f"{H}/issues/8", "GOLD in PRED")
    assert not published_url_match(f"{H}/s?b=2&a=1", f"{H}/s?a=1&b=2", "GOLD in PRED")
    assert published_url_match("http://localhost:7780/a/", f"{H}/b |OR| {H}/a", "EXACT")
    assert not published_url_match(f"{H}/a?x=1", f"{H}/a", "EXACT")


@pytest.mark.parametrize(
    "text, number, holds",
    [
        ("40.4424191", "40.442", True),  # more exact
        ("40.449", "40.442", False),
        ("$148.80", "148", True),
        ("148.80", "149", False),
        ("1.5", "1", False),  # cut short by more than 1 %
        ("3/2", "2", False),
        ("10:00", "0", False),
        ("10 am", "10", False),
        ("2023-01-02", "2", False),
        ("2023-01-02", "2023", False),
        ("version 1.2.3", "2", False),
        ("914km", "914", True),
        ("39.64USD", "39.64", True),
        ("1st", "1", False),
        ("12,345kg", "12", False),
        ("12,345kg", "12345", True),
        ("10\u201315 days", "10", True),
        ("\u22125", "-5", True),
    ],
)
def test_a_number_is_compared_by_value_and_is_no_piece_of_a_date_or_time(text, number, holds):
    assert has_words(text, number) is holds


@pytest.mark.parametrize(
    "typeset, plain",
    [
        ("don\u2019t", "don't"),
        ("\u201cThe Mug\u201d", "the mug"),
        ("a\u2011b \u2013 c", "a-b - c"),
        ("and so on\u2026", "and so on..."),
        ("zero\u200bwidth so\u00adft", "zerowidth soft"),
    ],
)
def test_typography_is_no_difference_but_by_the_published_rules(typeset, plain):
    assert same_answer(typeset, plain) and same_text(typeset, plain)
    assert has_words(typeset, plain) and has_text(typeset, plain)
    if typeset[0] != "\u201c":
        assert not published_same_answer(typeset, plain)
        assert not published_has_text(typeset, plain)
