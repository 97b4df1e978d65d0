"""What one can ask of the map site."""

from __future__ import annotations

from jhima.pocket.sites.map_data import MINUTES_PER_KM, distance, fresh
from jhima.pocket.tasks.intents import (
    Answer,
    Click,
    Solution,
    Subtask,
    Write,
    html,
    step,
    string,
    string_and_url,
    target,
    template,
    url,
    url_and_html,
)

PLACES = fresh(full=False).places


NAMES = [{"place": name} for name in PLACES]
# Pairs of places far apart on the list, each with a way to travel.
ROUTES = [
    {"a": a, "b": b, "mode": mode}
    for i, (a, b) in enumerate(zip(list(PLACES), list(PLACES)[5:] + list(PLACES)[:5]))
    for mode in [list(MINUTES_PER_KM)[i % 3]]
]


def open_place(place: str) -> Subtask:
    kind = PLACES[place].kind
    return step(f"Open {place}", f"The page of {place} is shown", Click(kind), Click(place))


def plan_route(a: str, b: str, mode: str) -> tuple[Subtask, ...]:
    return (
        step("Open Directions", "The form for a route is shown", Click("Directions")),
        step(
            f"Go from {a} to {b} by {mode}",
            "The route is shown",
            Write("From", a),
            Write("To", b),
            Click(mode),
            Click("Go"),
        ),
    )


@template("map", "What is the phone number of the {place}?", NAMES)
def phone(place: str) -> Solution:
    p = PLACES[place]
    return Solution(
        (open_place(place), step("Answer with the phone", "The number is given", Answer(p.phone))),
        string(exact_match=p.phone),
    )


@template("map", "When is the {place} open?", NAMES)
def hours(place: str) -> Solution:
    p = PLACES[place]
    return Solution(
        (open_place(place), step("Answer with the hours", "The hours are given", Answer(p.hours))),
        string(must_include=p.hours.split(" to ")),
    )


@template("map", "Show me the page of the {place}.", NAMES)
def show(place: str) -> Solution:
    return Solution((open_place(place),), url(f"__MAP__/place/{place}", exact=True))


@template(
    "map", "How far is it from the {a} to the {b}?", [{k: r[k] for k in "ab"} for r in ROUTES]
)
def far(a: str, b: str) -> Solution:
    km = distance(PLACES[a], PLACES[b])
    return Solution(
        (
            *plan_route(a, b, "Car"),
            step("Answer with the distance", "The distance is given", Answer(f"{km} km")),
        ),
        string(must_include=[str(km)]),
    )


@template("map", "How long does it take from the {a} to the {b} by {mode}?", ROUTES)
def minutes(a: str, b: str, mode: str) -> Solution:
    time = f"{distance(PLACES[a], PLACES[b]) * MINUTES_PER_KM[mode]} min"
    return Solution(
        (*plan_route(a, b, mode), step("Answer with the time", "The time is given", Answer(time))),
        string(fuzzy_match=[time]),
    )


@template("map", "Show the route from the {a} to the {b} by {mode}.", ROUTES)
def route(a: str, b: str, mode: str) -> Solution:
    return Solution(plan_route(a, b, mode), url(f"__MAP__/directions?from={a}&to={b}&mode={mode}"))


@template("map", "Save the {place} to my places.", [v for v in NAMES if v["place"] != "Cafe"])
def save(place: str) -> Solution:
    return Solution(
        (open_place(place), step("Save the place", "The place is saved", Click("Save place"))),
        html(
            target(
                "__MAP__/saved",
                "document.querySelector('.saved-places').innerText",
                must_include=[place],
            )
        ),
    )


@template(
    "map",
    "Leave the note {note} at the {place}.",
    [
        {"place": v["place"], "note": n}
        for v, n in zip(NAMES, ["closed", "great", "busy", "quiet"] * 4)
    ],
)
def leave_note(place: str, note: str) -> Solution:
    return Solution(
        (
            open_place(place),
            step(
                f"Add the note {note}",
                "The note is on the page",
                Click("Add note"),
                Write("Note", note),
                Click("Save note"),
            ),
        ),
        url_and_html(
            f"__MAP__/place/{place}",
            target("last", "document.querySelector('.notes').innerText", exact_match=note),
        ),
    )


@template("map", "Find the {place} with the search and tell me its address.", NAMES)
def address(place: str) -> Solution:
    p = PLACES[place]
    return Solution(
        (
            step(
                f"Search for {place}",
                "The results are shown",
                Click("Search"),
                Write("Place", place),
                Click("Find"),
            ),
            step(
                "Answer with the address", "The address is given", Click(place), Answer(p.address)
            ),
        ),
        string_and_url(f"__MAP__/place/{place}", exact_match=p.address),
    )


@template(
    "map",
    "Set my home to the {place} and the units to {units}.",
    [{"place": v["place"], "units": u} for v, u in zip(NAMES, ["miles", "km"] * 8)],
)
def set_home(place: str, units: str) -> Solution:
    field = "document.querySelector('[name=home]').value"
    unit = "document.querySelector('[name=units]:checked').value"
    return Solution(
        (
            step("Open Settings", "The settings are shown", Click("Settings")),
            step(
                f"Set {units} and {place}",
                "The settings are saved",
                Click(units),
                Write("Home", place),
                Click("Save settings"),
            ),
        ),
        html(
            target("__MAP__/settings", field, exact_match=place),
            target("__MAP__/settings", unit, exact_match=units),
        ),
    )


@template(
    "map",
    "Which of the {kind} has the most stars?",
    [{"kind": kind} for kind in sorted({p.kind for p in PLACES.values()})],
    held_out=True,
)
def best(kind: str) -> Solution:
    top = max((p for p in PLACES.values() if p.kind == kind), key=lambda p: float(p.stars))
    return Solution(
        (
            step(f"Open {kind}", "The list is shown", Click(kind)),
            step("Sort by stars", "The best comes first", Click("Sort by stars")),
            step("Answer with the first", "The name is given", Answer(top.name)),
        ),
        string(exact_match=top.name),
    )


TEMPLATES = [phone, hours, show, far, minutes, route, save, leave_note, address, set_home, best]
