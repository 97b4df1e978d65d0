"""The map site: find places, read about them, plan a route, save places, leave notes. Needs no login."""

from __future__ import annotations

from urllib.parse import quote

from flask import Blueprint, g, redirect, request

from jhima.pocket.sites.map_data import KINDS, MINUTES_PER_KM, Place, distance
from jhima.pocket.sites.page import (
    NAVIGATION,
    block,
    button,
    choice,
    columns,
    field,
    form,
    link,
    page,
    pair,
    text,
)
from jhima.pocket.sites.visitor import find

site = Blueprint("map", __name__)


NAVIGATION["map"] += [
    ("Search", "/search"),
    ("Directions", "/directions"),
    ("Saved", "/saved"),
    ("Settings", "/settings"),
]


def place_links(places: list[Place]) -> list:
    return [link(p.name, f"/place/{quote(p.name)}") for p in places]


@site.get("/")
def home():
    kinds = [link(kind, f"/category/{kind}") for kind in KINDS]
    return page(
        "Town map",
        columns(kinds[0], kinds[1]),
        columns(kinds[2], kinds[3]),
        link("Search", "/search"),
        link("Directions", "/directions"),
        link("Saved", "/saved"),
        link("Settings", "/settings"),
    )


@site.get("/category/<kind>")
def category(kind: str):
    places = g.world.listing((p for p in g.world.atlas.places.values() if p.kind == kind), kind)
    order = request.args.get("sort", "")
    if order == "stars":
        places.sort(key=lambda p: float(p.stars), reverse=True)
    return page(
        kind if order == "" else f"{kind} by stars",
        *place_links(places),
        link("Sort by stars", f"/category/{quote(kind)}?sort=stars"),
    )


@site.get("/search")
def search():
    query = request.args.get("q", "").strip().lower()
    if not query:
        return page("Search", form("/search", field("Place", "q"), button("Find"), method="get"))
    hits = [
        p
        for p in g.world.atlas.places.values()
        if query in p.name.lower() or query in p.address.lower()
    ]
    return page("Results", *(place_links(g.world.listing(hits, query)) or [text("Nothing found")]))


@site.get("/place/<name>")
def place(name: str):
    p = find(g.world.atlas.places, name)
    saved = name in g.world.atlas.saved
    return page(
        p.name,
        pair("Address", p.address, "address"),
        pair("Phone", p.phone, "phone"),
        pair("Open", p.hours, "hours"),
        pair("Stars", p.stars, "stars"),
        form("/save", button("Remove place" if saved else "Save place"), place=name),
        link("Directions to here", f"/directions?to={quote(name)}"),
        link("Add note", f"/note/{quote(name)}"),
        block("notes", *(text(n) for n in p.notes)),
        notice=request.args.get("done", ""),
    )


@site.post("/save")
def save():
    name, saved = request.form.get("place", ""), g.world.atlas.saved
    find(g.world.atlas.places, name)
    saved.remove(name) if name in saved else saved.append(name)
    return redirect(f"/place/{quote(name)}?done={'Saved' if name in saved else 'Removed'}", 303)


@site.get("/saved")
def saved_places():
    atlas = g.world.atlas
    return page(
        "Saved", block("saved-places", *place_links([atlas.places[n] for n in atlas.saved]))
    )


@site.route("/note/<name>", methods=["GET", "POST"])
def note(name: str):
    p = find(g.world.atlas.places, name)
    if request.method == "GET":
        return page(
            "Add note", form(f"/note/{quote(name)}", field("Note", "note"), button("Save note"))
        )
    p.notes.append(request.form.get("note", "")[:200])
    return redirect(f"/place/{quote(name)}?done=Noted", 303)


@site.get("/directions")
def directions():
    places, asked = g.world.atlas.places, request.args
    start, goal, mode = (asked.get(k, "").strip().title() for k in ("from", "to", "mode"))
    if not (start and goal):
        return page(
            "Directions",
            form(
                "/directions",
                field("From", "from", start),
                field("To", "to", goal),
                choice("mode", list(MINUTES_PER_KM), mode or "Car"),
                button("Go"),
                method="get",
            ),
        )
    a, b, pace = places.get(start), places.get(goal), MINUTES_PER_KM.get(mode)
    if not (a and b and pace):
        return page("Directions", text("Unknown place"), link("Try again", "/directions"))
    km = distance(a, b)
    length = f"{km} km" if g.world.atlas.units == "km" else f"{km * 0.62:.1f} miles"
    return page(
        "Route",
        pair("From", a.name),
        pair("To", b.name),
        pair("By", mode),
        pair("Distance", length, "distance"),
        pair("Time", f"{km * pace} min", "time"),
    )


@site.route("/settings", methods=["GET", "POST"])
def settings():
    atlas = g.world.atlas
    if request.method == "POST":
        atlas.units = {"km": "km", "miles": "miles"}.get(request.form.get("units", ""), atlas.units)
        atlas.home = request.form.get("home", atlas.home)[:40]
    return page(
        "Settings",
        form(
            "/settings",
            choice("units", ["km", "miles"], atlas.units),
            field("Home", "home", atlas.home),
            button("Save settings"),
        ),
        notice="Saved" if request.method == "POST" else "",
    )
