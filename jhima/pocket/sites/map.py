"""The map site: find places, read about them, plan a route, save places, leave notes. No login."""

from __future__ import annotations

from urllib.parse import quote

from flask import Blueprint, g, request
from markupsafe import Markup

from jhima.pocket.sites.map_data import KINDS, MINUTES_PER_KM, Place, distance
from jhima.pocket.sites.page import (
    NAVIGATION,
    block,
    button,
    choice,
    field,
    form,
    grid,
    link,
    page,
    pair,
    text,
)
from jhima.pocket.sites.visitor import GET_AND_POST, find, go_to

site = Blueprint("map", __name__)

NAVIGATION["map"] += [
    ("Search", "/search"),
    ("Directions", "/directions"),
    ("Saved", "/saved"),
    ("Settings", "/settings"),
]
UNITS = ["km", "miles"]


def place_links(places: list[Place]) -> list[Markup]:
    return [link(p.name, f"/place/{quote(p.name)}") for p in places]


@site.get("/")
def home():
    return page(
        "Town map",
        *grid([link(kind, f"/category/{kind}") for kind in KINDS]),
        *(link(label, href) for label, href in NAVIGATION["map"]),
    )


@site.get("/category/<kind>")
def category(kind: str):
    places = g.world.listing((p for p in g.world.atlas.places.values() if p.kind == kind), kind)
    order = request.args.get("sort", "")
    if order == "stars":
        places.sort(key=lambda p: float(p.stars), reverse=True)
    return page(
        f"{kind} by stars" if order else kind,
        *place_links(places),
        link("Sort by stars", f"/category/{quote(kind)}?sort=stars"),
    )


@site.get("/search")
def search():
    query = request.args.get("q", "").strip().lower()
    if not query:
        return page("Search", form("/search", field("Place", "q"), button("Find"), method="get"))
    places = g.world.atlas.places.values()
    hits = [p for p in places if query in p.name.lower() or query in p.address.lower()]
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
        block("notes", *(text(note) for note in p.notes)),
    )


@site.post("/save")
def save():
    name, saved = request.form.get("place", ""), g.world.atlas.saved
    find(g.world.atlas.places, name)
    if name in saved:
        saved.remove(name)
        return go_to(f"/place/{quote(name)}", "Removed")
    saved.append(name)
    return go_to(f"/place/{quote(name)}", "Saved")


@site.get("/saved")
def saved_places():
    places = [g.world.atlas.places[name] for name in g.world.atlas.saved]
    return page("Saved", block("saved-places", *place_links(places)))


@site.route("/note/<name>", methods=GET_AND_POST)
def note(name: str):
    p = find(g.world.atlas.places, name)
    if request.method == "GET":
        rows = (field("Note", "note"), button("Save note"))
        return page("Add note", form(f"/note/{quote(name)}", *rows))
    p.notes.append(request.form.get("note", "")[:200])
    return go_to(f"/place/{quote(name)}", "Noted")


@site.get("/directions")
def directions():
    start, goal, mode = (request.args.get(k, "").strip().title() for k in ("from", "to", "mode"))
    if not (start and goal):
        return page(
            "Directions",
            form(
                "/directions",
                field("From", "from", start),
                field("To", "to", goal),
                choice("mode", MINUTES_PER_KM, mode or "Car"),
                button("Go"),
                method="get",
            ),
        )
    atlas = g.world.atlas
    a, b, pace = atlas.places.get(start), atlas.places.get(goal), MINUTES_PER_KM.get(mode)
    if not (a and b and pace):
        return page("Directions", text("Unknown place"), link("Try again", "/directions"))
    km = distance(a, b)
    length = f"{km} km" if atlas.units == "km" else f"{km * 0.62:.1f} miles"
    return page(
        "Route",
        pair("From", a.name),
        pair("To", b.name),
        pair("By", mode),
        pair("Distance", length, "distance"),
        pair("Time", f"{km * pace} min", "time"),
    )


@site.route("/settings", methods=GET_AND_POST)
def settings():
    atlas = g.world.atlas
    notice = ""
    if request.method == "POST":
        if request.form.get("units") in UNITS:
            atlas.units = request.form["units"]
        atlas.home = request.form.get("home", atlas.home)[:40]
        notice = "Saved"
    rows = (choice("units", UNITS, atlas.units), field("Home", "home", atlas.home))
    return page("Settings", form("/settings", *rows, button("Save settings")), notice=notice)
