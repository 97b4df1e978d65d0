"""Data of the map site: places of one small town, and what a visitor can change."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product


@dataclass
class Place:
    name: str
    kind: str
    address: str
    phone: str
    hours: str
    stars: str
    position: tuple[int, int]  # in km on the town's grid
    notes: list[str] = field(default_factory=list)


@dataclass
class Atlas:
    places: dict[str, Place]
    saved: list[str] = field(default_factory=lambda: ["Cafe"])
    units: str = "km"
    home: str = "Station"


KINDS = ("Sights", "Food", "Travel", "Services")
MINUTES_PER_KM = {"Car": 2, "Bike": 5, "Walk": 12}

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
_STREETS = ("Oak", "Elm", "Pine", "Birch", "Cedar")
_MORE_KINDS = {"Gallery": "Sights", "Bistro": "Food", "Garage": "Travel", "Clinic": "Services"}


def _more_row(i: int, street: str, what: str) -> tuple:
    address, phone = f"{10 + i} {street} Street", f"555-{60 + i}"
    stars, x, y = f"3.{i % 10}", i % 10, (3 * i) % 10
    return (f"{street} {what}", _MORE_KINDS[what], address, phone, "9 to 18", stars, x, y)


_MORE = [
    _more_row(i, street, what) for i, (street, what) in enumerate(product(_STREETS, _MORE_KINDS))
]


def fresh(full: bool) -> Atlas:
    rows = _ROWS + _MORE if full else _ROWS
    return Atlas({row[0]: Place(*row[:6], position=row[6:]) for row in rows})


def distance(a: Place, b: Place) -> int:
    """Road distance in km: streets run along the grid."""
    return abs(a.position[0] - b.position[0]) + abs(a.position[1] - b.position[1])
