"""Building blocks of every pocket page.

A page is a column of rows. In a small viewport (at most 480 CSS pixels wide) the style sheet lays
the rows on a grid of 28 pixels, the size of one Qwen2.5-VL vision token, in large type: a tiny
model can learn to read that. In a normal viewport the same HTML is an ordinary page. All text
passes through markupsafe, so nothing that a user or an agent types into a site becomes markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from flask import g, request
from markupsafe import Markup

from jhima.pocket import SITES

NAMES = dict(zip(SITES, ("Shop", "Shop Admin", "Forum", "Code", "Map")))
HOMES = dict(zip(SITES, ("/", "/admin", "/", "/", "/")))
# Shown in the header of a normal viewport; in a small one the site's home page has these links.
NAVIGATION: dict[str, list[tuple[str, str]]] = {site: [] for site in SITES}


def page(title: str, *rows: Markup, notice: str = "") -> str:
    """A whole HTML document of the current site (flask.g.site).

    `title` names the page and chooses the colour of its heading, so that pages differ at a glance.
    `notice` is a short word of confirmation shown beside the heading ("Saved"); without one, the
    word that the last form's redirect carried here is shown (?done=Saved).
    """
    site = g.site
    hue = crc32(f"{site}/{title}".encode()) % 24 * 15
    tabs = [Markup('<a href="{}">{}</a>').format(href, label) for label, href in NAVIGATION[site]]
    notice = notice or request.args.get("done", "")[:20]
    badge = Markup('<span class="notice">{}</span>').format(notice) if notice else ""
    return Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title} - {name}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/_pocket/style.css"></head><body class="{site}">'
        '<header><a class="home" href="{home}">{name}</a><nav>{nav}</nav></header>'
        '<h1 style="--hue:{hue}">{title}{badge}</h1><main>{rows}</main></body></html>'
    ).format(
        title=title,
        name=NAMES[site],
        site=site,
        home=HOMES[site],
        nav=_joined(tabs),
        hue=hue,
        badge=badge,
        rows=_joined(rows),
    )


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _attributes(attributes: dict[str, str]) -> Markup:
    """Attributes of an HTML tag; underscores in their names become hyphens (data_testid)."""
    return _joined(
        Markup(' {}="{}"').format(name.replace("_", "-"), value)
        for name, value in attributes.items()
    )


# ---- rows ----


def link(label: str, href: str) -> Markup:
    return Markup('<a class="row link" href="{}">{}</a>').format(href, label)


def text(line: str, cls: str = "") -> Markup:
    """A line of plain text; `cls` is an extra class for evaluators to find it by."""
    return Markup('<p class="row text {}">{}</p>').format(cls, line)


def pair(label: str, value: object, cls: str = "") -> Markup:
    """A label and its value, e.g. Price and $12."""
    row = Markup('<p class="row pair"><span>{}</span><b class="{}">{}</b></p>')
    return row.format(label, cls, value)


def form(action: str, *rows: Markup, method: str = "post", **hidden: object) -> Markup:
    """A form; `hidden` are the names and values of its hidden inputs."""
    inputs = [
        Markup('<input type="hidden" name="{}" value="{}">').format(name, value)
        for name, value in hidden.items()
    ]
    whole = Markup('<form action="{}" method="{}">{}{}</form>')
    return whole.format(action, method, _joined(inputs), _joined(rows))


def field(
    label: str, name: str, value: object = "", kind: str = "text", **attributes: str
) -> Markup:
    """A labelled input; `kind` is an input type or "textarea", `attributes` go into its tag."""
    extra = _attributes(attributes)
    if kind == "textarea":
        box = Markup('<textarea name="{}" title="{}"{}>{}</textarea>')
        box = box.format(name, label, extra, value)
    else:
        box = Markup('<input type="{}" name="{}" title="{}" value="{}" autocomplete="off"{}>')
        box = box.format(kind, name, label, value, extra)
    return Markup('<label class="row field"><span>{}</span>{}</label>').format(label, box)


def option(kind: str, name: str, value: str, label: str, checked: bool, title: str = "") -> Markup:
    """A radio button or a check box (`kind`) that can be clicked anywhere on its label."""
    title_attribute = _attributes({"title": title}) if title else ""
    box = Markup('<input type="{}" name="{}" value="{}"{}{}>').format(
        kind, name, value, title_attribute, Markup(" checked") if checked else ""
    )
    return Markup('<label class="option">{}<span>{}</span></label>').format(box, label)


def options(*boxes: Markup) -> Markup:
    return Markup('<div class="row options">{}</div>').format(_joined(boxes))


def choice(name: str, values: Iterable[str], selected: str = "") -> Markup:
    """A group of radio buttons, two to a row."""
    return options(*(option("radio", name, v, v, checked=v == selected) for v in values))


def button(label: str, **attributes: str) -> Markup:
    return Markup('<button class="row"{}>{}</button>').format(_attributes(attributes), label)


# ---- groups of rows ----


def columns(left: Markup, right: Markup) -> Markup:
    """Two rows side by side."""
    return Markup('<div class="row columns">{}{}</div>').format(left, right)


def grid(items: list[Markup]) -> list[Markup]:
    """Short items, two to a row."""
    even = [*items, Markup("")]  # the last item of an odd number stands alone
    return [columns(*even[i : i + 2]) for i in range(0, len(items), 2)]


def block(cls: str, *rows: Markup) -> Markup:
    """Rows wrapped in a <div class=cls> for evaluators to find them by."""
    return Markup('<div class="{}">{}</div>').format(cls, _joined(rows))


def when(condition: object, *rows: Markup) -> tuple[Markup, ...]:
    """The rows if the condition holds, else none."""
    return rows if condition else ()
