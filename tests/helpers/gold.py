"""From a task's own evaluators: an episode that fulfils them, and ones that only just do not.

Pages are built from locators: a selector names tags, ids, classes and attributes, which is
enough to write an element that it finds; what is read from it (text, value, attribute, ...) says
where the required content goes.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from jhima.episodes import Task
from jhima.webarena.matching import OR
from jhima.webarena.sites import fill

ORDER = "/sales/order/view/order_id/7/"
FIND = re.compile(r"""querySelector(?:All)?\((['"])(.*?)\1\)(?:\[\d+\])?(\.lastElementChild)?""")
PART = re.compile(r"""^([a-z][\w-]*)|#([\w-]+)|\.([\w-]+)|\[([\w-]+)="([^"]*)"?\]?""")


@dataclass
class Case:
    """An episode's end: the final URL, the answer, and the pages (path -> HTML) of the sites
    then.
    """

    what: str
    url: str
    answer: str = ""
    pages: dict[str, str] = field(default_factory=dict)


def near(text: str) -> str:
    """A text that differs in its last letter or digit."""
    for at in range(len(text) - 1, -1, -1):
        if text[at].isalnum():
            other = (
                str((int(text[at]) + 1) % 10)
                if text[at].isdecimal()
                else "q"
                if text[at].lower() != "q"
                else "z"
            )
            return text[:at] + other + text[at + 1 :]
    return text + "!"


def cases(task: Task, urls: dict[str, str]) -> Iterator[Case]:
    """The passing case first, then near misses of each rule."""
    entry = fill(task.eval, urls)
    base = urls[task.sites[0]]
    kinds = entry["eval_types"]
    references = entry["reference_url"].split(OR) if "url_match" in kinds else [base + "/somewhere"]
    targets = entry["program_html"] if "program_html" in kinds else []
    start, below = references[0], ""
    if any(target["url"].startswith("func:reddit") for target in targets):
        start, below = start if "/f/" in start else base + "/f/gold", "/7/a-post"
    end = start + below
    answers = texts(entry["reference_answers"]) if "string_match" in kinds else {"": ""}
    pages = {what: site(targets, end, what) for what in ("", *breaks(targets))}
    (_, answer), *wrong = answers.items()
    yield Case("passes", end, answer, pages[""])
    for what, text in wrong:
        yield Case(what, end, text, pages[""])
    if "string_match" in kinds:
        yield Case("no answer", end, "", pages[""])
    for what in breaks(targets):
        yield Case(what, end, answer, pages[what])
    if "url_match" in kinds:
        for url in other_urls(start, len(references) == 1):
            yield Case(
                f"ends at {url + below}", url + below, answer, site(targets, url + below, "")
            )


# ---- texts ----


def texts(rules: dict, joint: str = "; ") -> dict[str, str]:
    """ "" -> a text that fulfils all rules; what is wrong -> a text with just that wrong."""
    pieces = [
        (rule, option.split(OR)[0])
        for rule, reference in rules.items()
        if rule != "must_exclude"
        for option in (
            [reference]
            if isinstance(reference, str)
            else [", ".join(reference)]
            if rule == "fuzzy_match"
            else reference
        )
    ]
    said = [
        f"in short: {text}" if rule == "fuzzy_match" and text != "N/A" else text
        for rule, text in pieces
    ]
    found = {"": joint.join(said)}
    for n, (rule, text) in enumerate(pieces):
        if any(text in other for m, (_, other) in enumerate(pieces) if m != n):
            continue  # "San Mateo" is said by "101 S San Mateo Dr" too
        found[f"{rule} {text[:60]}"] = joint.join(
            near(piece) if m == n else piece for m, piece in enumerate(said)
        )
    for text in rules.get("must_exclude", ()):
        found[f"must_exclude {text}"] = found[""] + joint + text
    return found


def other_urls(url: str, query_too: bool) -> Iterator[str]:
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    yield parts._replace(path=near(path) if path else "/other").geturl()
    yield parts._replace(path=path + "0").geturl()  # glued: /issues/8 and /issues/80
    query = parse_qsl(parts.query, keep_blank_values=True)
    for n, (key, value) in enumerate(query if query_too else ()):
        yield parts._replace(
            query=urlencode(query[:n] + [(key, near(value or "x"))] + query[n + 1 :])
        ).geturl()


# ---- pages ----


def group(targets: list[dict]) -> dict[tuple[str, str], dict]:
    """The rules on each part of each page: what two targets want of one part is there together."""
    found: dict[tuple[str, str], dict] = {}
    for target in targets:
        found.setdefault((target["url"], target["locator"]), {}).update(target["required_contents"])
    return found


def breaks(targets: list[dict]) -> list[str]:
    """The names of all ways to break one part: each piece of its content, and its absence."""
    return [
        f"{url} {locator} {what}"
        for (url, locator), rules in group(targets).items()
        for what in (*list(texts(rules))[1:], "is absent")
    ]


def site(targets: list[dict], end: str, broken: str) -> dict[str, str]:
    """path -> HTML for all targets, with the part that `broken` names just wrong."""
    pages: dict[str, str] = {key(end): ""}
    for (url, locator), rules in group(targets).items():
        variants, name = texts(rules), f"{url} {locator} "
        what = broken.removeprefix(name) if broken.startswith(name) else ""
        place = (
            key(end)
            if url == "last"
            else ORDER
            if "latest_order" in url
            else re.match(r"(/f/[^/]+/\d+)", key(end))[1] + "/"
            if url.startswith("func:reddit")
            else key(url)
        )
        part = "" if what == "is absent" else build(locator, variants.get(what, variants[""]))
        pages[place] = pages.get(place, "") + part
    return pages


def key(url: str) -> str:
    """The path and query under which a stub site finds a page, as a browser would ask for it."""
    parts = urlsplit(url)
    path = posixpath.normpath(parts.path or "/") + "/" * (
        len(parts.path) > 1 and parts.path.endswith("/")
    )
    return unquote_plus(path + (f"?{parts.query}" if parts.query else ""))


def build(locator: str, content: str) -> str:
    """HTML in which `locator` finds `content`."""
    if not locator:
        return f"<p>{html.escape(content)}</p>"
    if locator.startswith("func:gitlab_get_project_memeber_role"):
        name = re.search(r"'([^']*)'", locator)[1]
        return (
            f"<table><tr><td data-label=Account>@{name}<td class=col-max-role><span>"
            f"{content}</span></table>"
        )
    steps = list(FIND.finditer(locator.split(" + ")[0]))  # of a sum the first part holds it all
    rest = locator.split(" + ")[0][steps[-1].end() :]
    attributes, tag, inside = {}, "div", html.escape(content)
    if rest.startswith(".value"):
        tag, attributes, inside = "input", {"value": content}, ""
    elif rest.startswith(".checked"):
        tag, attributes, inside = (
            "input",
            {"type": "checkbox"} | ({"checked": ""} if content == "true" else {}),
            "",
        )
    elif rest.startswith(".selectedIndex"):
        tag = "select"
        inside = "".join(
            f"<option {'selected' * (str(n) == content)}>{n}</option>" for n in range(4)
        )
    elif attribute := re.match(r"\.getAttribute\('([\w-]+)'\)", rest):
        attributes, inside = {attribute[1]: content}, "x"
    elif rest.startswith(".lastChild"):
        inside = "<i>icon</i>" + inside
    for step in reversed(steps):
        if step[3]:
            inside = f"<p>older</p><div>{inside}</div>"
        for compound in reversed(re.findall(r'(?:"[^"]*"|[^\s>"])+', step[2])):
            inside = element(compound, tag, attributes, inside)
            tag, attributes = "div", {}
    return inside


def element(compound: str, tag: str, attributes: dict[str, str], inside: str) -> str:
    """An element that one compound selector (such as `a.b[c="d"]`) finds."""
    attributes = dict(attributes)
    for name, id_, class_, attribute, value in PART.findall(compound):
        tag = name or tag
        for where, what in (("id", id_), ("class", class_), (attribute, value)):
            if where and what:
                attributes[where] = (
                    f"{attributes[where]} {what}"
                    if where == "class" and where in attributes
                    else what
                )
    written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items())
    return f"<{tag} {written}>{inside}" + ("" if tag == "input" else f"</{tag}>")
