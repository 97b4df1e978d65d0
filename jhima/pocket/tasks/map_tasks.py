"""Task templates of the map site."""

from __future__ import annotations

from functools import partial

from jhima.pocket.sites.map_data import MINUTES_PER_KM, distance, fresh
from jhima.pocket.tasks import intents
from jhima.pocket.tasks.intents import (
    Answer,
    Solution,
    Subtask,
    Write,
    answer,
    html,
    one_each,
    search,
    solution,
    step,
    string,
    string_and_url,
    target,
    url,
    url_and_html,
)

template = partial(intents.template, "map")

PLACES = fresh(full=False).places
NAMES = list(PLACES)
ALL = one_each("place", NAMES)
MODES = list(MINUTES_PER_KM) * len(NAMES)
# Pairs of places that are far apart on the list, each with a way to travel.
ROUTES = [{"a": a, "b": b, "mode": mode} for a, b, mode in zip(NAMES, NAMES[5:] + NAMES[:5], MODES)]
ENDS = [{"a": route["a"], "b": route["b"]} for route in ROUTES]


def open_place(place: str) -> Subtask:
    return step(f"Open {place}", f"The page of {place} is shown", PLACES[place].kind, place)


def plan_route(a: str, b: str, mode: str) -> tuple[Subtask, Subtask]:
    moves = (Write("From", a), Write("To", b), mode, "Go")
    return (
        step("Open Directions", "The form for a route is shown", "Directions"),
        step(f"Go from {a} to {b} by {mode}", "The route is shown", *moves),
    )


@template("What is the phone number of the {place}?", ALL)
def phone(place: str) -> Solution:
    number = PLACES[place].phone
    return solution(
        open_place(place),
        step("Answer with the phone", "The number is given", Answer(number)),
        eval=string(exact_match=number),
    )


@template("When is the {place} open?", ALL)
def hours(place: str) -> Solution:
    times = PLACES[place].hours
    return solution(
        open_place(place),
        step("Answer with the hours", "The hours are given", Answer(times)),
        eval=string(must_include=times.split(" to ")),
    )


@template("Show me the page of the {place}.", ALL)
def show(place: str) -> Solution:
    return solution(open_place(place), eval=url(f"__MAP__/place/{place}", exact=True))


@template("How far is it from the {a} to the {b}?", ENDS)
def far(a: str, b: str) -> Solution:
    km = distance(PLACES[a], PLACES[b])
    return solution(
        *plan_route(a, b, "Car"),
        answer("distance", f"{km} km"),
        eval=string(must_include=[str(km)]),
    )


@template("How long does it take from the {a} to the {b} by {mode}?", ROUTES)
def minutes(a: str, b: str, mode: str) -> Solution:
    time = f"{distance(PLACES[a], PLACES[b]) * MINUTES_PER_KM[mode]} min"
    return solution(
        *plan_route(a, b, mode),
        answer("time", time),
        eval=string(fuzzy_match=[time]),
    )


@template("Show the route from the {a} to the {b} by {mode}.", ROUTES)
def route(a: str, b: str, mode: str) -> Solution:
    address = f"__MAP__/directions?from={a}&to={b}&mode={mode}"
    return solution(*plan_route(a, b, mode), eval=url(address))


@template("Save the {place} to my places.", [v for v in ALL if v["place"] != "Cafe"])
def save(place: str) -> Solution:
    saved = "document.querySelector('.saved-places').innerText"
    return solution(
        open_place(place),
        step("Save the place", "The place is saved", "Save place"),
        eval=html(target("__MAP__/saved", saved, must_include=[place])),
    )


NOTES = ["closed", "great", "busy", "quiet"] * 4


@template(
    "Leave the note {note} at the {place}.",
    [{"place": place, "note": note} for place, note in zip(NAMES, NOTES)],
)
def leave_note(place: str, note: str) -> Solution:
    moves = ("Add note", Write("Note", note), "Save note")
    notes = "document.querySelector('.notes').innerText"
    return solution(
        open_place(place),
        step(f"Add the note {note}", "The note is on the page", *moves),
        eval=url_and_html(f"__MAP__/place/{place}", target("last", notes, exact_match=note)),
    )


@template("Find the {place} with the search and tell me its address.", ALL)
def address(place: str) -> Solution:
    line = PLACES[place].address
    return solution(
        search("Place", place),
        step("Answer with the address", "The address is given", place, Answer(line)),
        eval=string_and_url(f"__MAP__/place/{place}", exact_match=line),
    )


@template(
    "Set my home to the {place} and the units to {units}.",
    [{"place": place, "units": units} for place, units in zip(NAMES, ["miles", "km"] * 8)],
)
def set_home(place: str, units: str) -> Solution:
    moves = (units, Write("Home", place), "Save settings")
    home = "document.querySelector('[name=home]').value"
    unit = "document.querySelector('[name=units]:checked').value"
    return solution(
        step("Open Settings", "The settings are shown", "Settings"),
        step(f"Set {units} and {place}", "The settings are saved", *moves),
        eval=html(
            target("__MAP__/settings", home, exact_match=place),
            target("__MAP__/settings", unit, exact_match=units),
        ),
    )


# ---- held out ----


@template(
    "Which of the {kind} has the most stars?",
    one_each("kind", sorted({p.kind for p in PLACES.values()})),
    held_out=True,
)
def best(kind: str) -> Solution:
    places = [p for p in PLACES.values() if p.kind == kind]
    top = max(places, key=lambda p: float(p.stars))
    return solution(
        step(f"Open {kind}", "The list is shown", kind),
        step("Sort by stars", "The best comes first", "Sort by stars"),
        step("Answer with the first", "The name is given", Answer(top.name)),
        eval=string(exact_match=top.name),
    )
