"""Data of the map site: places of one small town, and what a visitor can change."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Place:
    name: str
    kind: str
    address: str
    phone: str
    hours: str
    stars: str
    at: tuple[int, int]  # position in km on the town's grid
    notes: list[str] = field(default_factory=list)


@dataclass
class Atlas:
    places: dict[str, Place]
    saved: list[str] = field(default_factory=lambda: ["Cafe"])
    units: str = "km"
    home: str = "Station"


KINDS = ("Sights", "Food", "Travel", "Services")


_ROWS = [
    # name, kind, address, phone, hours, stars, x, y
    ("Castle", "Sights", "1 Hill Road", "555-11", "9 to 17", "4.8", 2, 9),
    ("Museum", "Sights", "5 Main Street", "555-12", "10 to 18", "4.1", 4, 4),
    ("Zoo", "Sights", "9 Park Lane", "555-13", "8 to 19", "4.5", 9, 7),
    ("Theater", "Sights", "7 Main Street", "555-14", "18 to 23", "3.9", 5, 4),
    ("Bakery", "Food", "2 Mill Street", "555-21", "6 to 13", "4.7", 3, 3),
    ("Cafe", "Food", "4 Mill Street", "555-22", "7 to 20", "4.0", 3, 2),
    ("Diner", "Food", "8 Dock Road", "555-23", "11 to 22", "3.5", 8, 1),
    ("Market", "Food", "3 Old Square", "555-24", "8 to 14", "4.4", 4, 6),
    ("Station", "Travel", "1 Rail Street", "555-31", "5 to 23", "3.8", 6, 5),
    ("Harbor", "Travel", "1 Dock Road", "555-32", "6 to 21", "4.2", 9, 1),
    ("Airport", "Travel", "1 Sky Road", "555-33", "4 to 24", "3.6", 1, 1),
    ("Hotel", "Travel", "6 Old Square", "555-34", "0 to 24", "4.6", 5, 6),
    ("Hospital", "Services", "2 Care Road", "555-41", "0 to 24", "4.3", 7, 8),
    ("Library", "Services", "8 Main Street", "555-42", "9 to 20", "4.9", 6, 4),
    ("Bank", "Services", "2 Old Square", "555-43", "9 to 16", "3.4", 4, 7),
    ("School", "Services", "3 Park Lane", "555-44", "8 to 15", "3.7", 8, 7),
]
# Only in full worlds, where lists are longer than a screen.
_MORE = [
    (
        f"{street} {what}",
        kind,
        f"{10 + i} {street} Street",
        f"555-{60 + i}",
        "9 to 18",
        f"3.{i % 10}",
        i % 10,
        (3 * i) % 10,
    )
    for i, (street, what, kind) in enumerate(
        (s, w, k)
        for s in ("Oak", "Elm", "Pine", "Birch", "Cedar")
        for w, k in (
            ("Gallery", "Sights"),
            ("Bistro", "Food"),
            ("Garage", "Travel"),
            ("Clinic", "Services"),
        )
    )
]


def fresh(full: bool) -> Atlas:
    return Atlas({row[0]: Place(*row[:6], row[6:]) for row in _ROWS + (_MORE if full else [])})


def distance(a: Place, b: Place) -> int:
    """Road distance in km: streets run along the grid."""
    return abs(a.at[0] - b.at[0]) + abs(a.at[1] - b.at[1])


MINUTES_PER_KM = {"Car": 2, "Bike": 5, "Walk": 12}
