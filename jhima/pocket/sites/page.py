"""Building blocks of every pocket page.

A page is a column of rows. In a small viewport (at most 480 CSS px wide) the style sheet lays rows on a 28-px
grid, the size of one Qwen2.5-VL vision token, in large type: a tiny model can learn to read that. In a normal
viewport the same HTML is an ordinary page. All text passes through markupsafe, so nothing that a user or an
agent typed into a site becomes markup.
"""

from __future__ import annotations

from zlib import crc32

from flask import g
from markupsafe import Markup, escape

from jhima.pocket import SITES

NAMES = dict(zip(SITES, ("Shop", "Shop Admin", "Forum", "Code", "Map")))


HOMES = dict(zip(SITES, ("/", "/admin", "/", "/", "/")))
# Shown in the header of a normal viewport; a small one reaches the same pages from the site's home page.
NAVIGATION: dict[str, list[tuple[str, str]]] = {site: [] for site in SITES}


def page(title: str, *rows: Markup, notice: str = "") -> str:
    """A whole HTML document of the current site (flask.g.site).

    `title` names the page and chooses the colour of its heading, so that pages are told apart at a glance.
    `notice` is a short word of confirmation shown beside the heading ("Saved").
    """
    site = g.site
    hue = crc32(f"{site}/{title}".encode()) % 24 * 15
    nav = Markup("").join(
        Markup('<a href="{}">{}</a>').format(href, label) for label, href in NAVIGATION[site]
    )
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
        nav=nav,
        hue=hue,
        badge=badge,
        rows=Markup("").join(rows),
    )


def link(label: str, href: str) -> Markup:
    return Markup('<a class="row link" href="{}">{}</a>').format(href, label)


def text(line: str, cls: str = "") -> Markup:
    """A line of plain text; `cls` is an extra class for evaluators to find it by."""
    return Markup('<p class="row text {}">{}</p>').format(cls, line)


def pair(label: str, value: object, cls: str = "") -> Markup:
    """A label and its value, e.g. Price and $12."""
    return Markup('<p class="row pair"><span>{}</span><b class="{}">{}</b></p>').format(
        label, cls, value
    )


def form(action: str, *rows: Markup, method: str = "post", **hidden: object) -> Markup:
    inputs = Markup("").join(
        Markup('<input type="hidden" name="{}" value="{}">').format(k, v) for k, v in hidden.items()
    )
    return Markup('<form action="{}" method="{}">{}{}</form>').format(
        action, method, inputs, Markup("").join(rows)
    )


def field(
    label: str, name: str, value: object = "", kind: str = "text", **attributes: str
) -> Markup:
    """A labelled input; `kind` is an input type or "textarea". Further attributes (data_testid=...) are added."""
    extra = Markup("").join(
        Markup(' {}="{}"').format(k.replace("_", "-"), v) for k, v in attributes.items()
    )
    if kind == "textarea":
        box = Markup('<textarea name="{}" title="{}"{}>{}</textarea>').format(
            name, label, extra, value
        )
    else:
        box = Markup(
            '<input type="{}" name="{}" title="{}" value="{}" autocomplete="off"{}>'
        ).format(kind, name, label, value, extra)
    return Markup('<label class="row field"><span>{}</span>{}</label>').format(label, box)


def choice(name: str, options: list[str], selected: str = "") -> Markup:
    """A radio group: one row per pair of options, each a block that can be clicked anywhere."""
    blocks = [
        Markup(
            '<label class="option"><input type="radio" name="{}" value="{}"{}><span>{}</span></label>'
        ).format(name, o, Markup(" checked") if o == selected else "", o)
        for o in options
    ]
    return Markup('<div class="row options">{}</div>').format(Markup("").join(blocks))


def button(label: str, **attributes: str) -> Markup:
    extra = Markup("").join(
        Markup(' {}="{}"').format(k.replace("_", "-"), v) for k, v in attributes.items()
    )
    return Markup('<button class="row"{}>{}</button>').format(extra, label)


def columns(left: Markup, right: Markup) -> Markup:
    """Two rows side by side."""
    return Markup('<div class="row columns">{}{}</div>').format(left, right)


def grid(items: list[Markup]) -> list[Markup]:
    """Short items, two to a row."""
    return [
        columns(*items[i : i + 2], *[Markup("")] * (i + 2 - len(items)))
        for i in range(0, len(items), 2)
    ]


def block(cls: str, *rows: Markup) -> Markup:
    """Rows wrapped in a <div class=cls> for evaluators to find them by."""
    return Markup('<div class="{}">{}</div>').format(cls, Markup("").join(rows))


__all__ = [
    "page",
    "link",
    "text",
    "pair",
    "form",
    "field",
    "choice",
    "button",
    "columns",
    "grid",
    "block",
    "escape",
]
