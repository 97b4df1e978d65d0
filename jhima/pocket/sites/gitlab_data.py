"""Data of the code site: projects with issues, merge requests, members and commits, and the reader's profile."""

from __future__ import annotations

from dataclasses import dataclass, field

ME = "byteblaze"


USERS = ("anna", "ben", "carl", "dora", "emil", "fay", "gus", ME)


ROLES = ("Guest", "Reporter", "Developer", "Maintainer")  # that one can give; the owner's is Owner


LABELS = ("bug", "docs", "idea")


VISIBILITIES = ("Private", "Internal", "Public")


Comments = list[tuple[str, str]]  # (author, text), oldest first


@dataclass
class Issue:
    id: int
    title: str
    label: str
    author: str
    assignee: str = ""
    open: bool = True
    comments: Comments = field(default_factory=list)


@dataclass
class MergeRequest:
    id: int
    title: str
    branch: str
    author: str
    assignee: str = ""
    approved: bool = False  # by the reader
    merged: bool = False
    comments: Comments = field(default_factory=list)


@dataclass
class Project:
    owner: str
    name: str
    about: str
    visibility: str
    stars: int = 0
    forks: int = 0
    readme: dict[str, str] = field(default_factory=dict)  # heading -> line
    commits: list[tuple[str, str]] = field(default_factory=list)  # (author, message), newest first
    members: dict[str, str] = field(default_factory=dict)  # user -> role
    issues: dict[int, Issue] = field(default_factory=dict)
    merges: dict[int, MergeRequest] = field(default_factory=dict)
    milestones: dict[str, str] = field(default_factory=dict)  # title -> due date
    starred: bool = False  # by the reader, and counted in `stars`

    @property
    def path(self) -> str:
        return f"/{self.owner}/{self.name}"

    def commits_by_author(self) -> dict[str, int]:
        """How many commits each contributor made, most first."""
        authors = [author for author, _message in self.commits]
        return {
            author: authors.count(author)
            for author in sorted(set(authors), key=authors.count, reverse=True)
        }


@dataclass
class Forge:
    projects: dict[str, Project]  # path -> project
    status: str = "Hello"
    website: str = "home.page"


_PROJECTS = [
    # owner, name, about, visibility, stars, forks, (license, version, language), commits by author, members
    (
        ME,
        "robot",
        "It walks and talks",
        "Public",
        31,
        4,
        ("MIT", "2.1", "Python"),
        "anna 4 ben 2 byteblaze 3",
        {"anna": "Developer", "ben": "Guest"},
    ),
    (
        ME,
        "garden",
        "Plan the beds",
        "Public",
        12,
        2,
        ("BSD", "1.4", "Ruby"),
        "carl 3 dora 2 byteblaze 4",
        {"carl": "Reporter", "dora": "Developer"},
    ),
    (
        ME,
        "clock",
        "Time in a row",
        "Private",
        8,
        1,
        ("GPL", "3.0", "Rust"),
        "emil 4 anna 3 byteblaze 2",
        {"emil": "Maintainer", "anna": "Guest"},
    ),
    (
        ME,
        "piano",
        "Play by mouse",
        "Internal",
        26,
        5,
        ("ISC", "0.9", "Java"),
        "fay 3 gus 4 byteblaze 2",
        {"fay": "Developer", "gus": "Reporter"},
    ),
    (
        ME,
        "rocket",
        "Fly to the moon",
        "Public",
        44,
        7,
        ("MIT", "5.2", "Go"),
        "ben 4 carl 3 byteblaze 2",
        {"ben": "Maintainer", "carl": "Guest"},
    ),
    (
        ME,
        "camera",
        "Shoot and share",
        "Internal",
        19,
        3,
        ("GPL", "1.7", "Swift"),
        "dora 2 fay 4 byteblaze 3",
        {"dora": "Guest", "fay": "Reporter"},
    ),
    (
        "anna",
        "ocean",
        "Waves on screen",
        "Public",
        73,
        11,
        ("MIT", "4.0", "Python"),
        "anna 6 emil 2",
        {},
    ),
    (
        "ben",
        "forest",
        "Grow random trees",
        "Public",
        58,
        9,
        ("BSD", "2.6", "Go"),
        "ben 5 fay 3",
        {},
    ),
    (
        "carl",
        "island",
        "A tiny world",
        "Public",
        90,
        14,
        ("ISC", "1.1", "Rust"),
        "carl 4 gus 3",
        {},
    ),
    (
        "dora",
        "desert",
        "Sand and sound",
        "Public",
        37,
        6,
        ("GPL", "3.3", "Java"),
        "dora 5 anna 2",
        {},
    ),
    (
        "emil",
        "river",
        "Streams of data",
        "Public",
        62,
        8,
        ("MIT", "0.8", "Swift"),
        "emil 3 ben 2",
        {},
    ),
    ("fay", "valley", "Low and level", "Public", 21, 2, ("BSD", "6.0", "Ruby"), "fay 4 dora 3", {}),
]


_ISSUES = {
    # title, label, author, assignee, open
    "robot": [
        ("Crash", "bug", "anna", ME, True),
        ("Battery", "idea", "ben", "anna", True),
        ("Manual", "docs", "carl", "", True),
        ("Noise", "bug", "dora", "ben", False),
    ],
    "garden": [
        ("Frost", "bug", "carl", "dora", True),
        ("Paths", "docs", "dora", ME, True),
        ("Weeds", "bug", "emil", "", True),
        ("Water", "idea", "fay", "carl", False),
    ],
    "clock": [
        ("Delay", "bug", "emil", "", True),
        ("Zones", "docs", "anna", "emil", True),
        ("Chime", "idea", "gus", ME, True),
        ("Display", "docs", "ben", "", False),
    ],
    "piano": [
        ("Tuning", "bug", "fay", "gus", True),
        ("Volume", "idea", "gus", ME, True),
        ("Chords", "docs", "anna", "", True),
        ("Echo", "bug", "carl", "fay", False),
    ],
    "rocket": [
        ("Launch", "docs", "ben", ME, True),
        ("Heat", "bug", "carl", "ben", True),
        ("Weight", "idea", "dora", "", True),
        ("Sensors", "idea", "emil", "", False),
    ],
    "camera": [
        ("Focus", "bug", "dora", "fay", True),
        ("Zoom", "idea", "fay", "", True),
        ("Colors", "docs", "gus", ME, True),
        ("Storage", "bug", "ben", "dora", False),
    ],
}


_MERGES = {
    # title, branch, author, assignee
    "robot": [("Engine", "motor", "anna", ME), ("Wheels", "round", "ben", "")],
    "garden": [("Fence", "wood", "carl", ""), ("Seeds", "spring", "dora", ME)],
    "clock": [("Alarm", "morning", "emil", ME), ("Timer", "count", "anna", "")],
    "piano": [("Keys", "ivory", "fay", ""), ("Pedals", "feet", "gus", ME)],
    "rocket": [("Fuel", "tank", "ben", ME), ("Orbit", "round", "carl", "")],
    "camera": [("Lens", "glass", "dora", ""), ("Flash", "light", "fay", ME)],
}


_MILESTONES = {
    "robot": ("May 1", "June 7"),
    "garden": ("March 3", "April 9"),
    "clock": ("July 2", "July 30"),
    "piano": ("May 15", "May 28"),
    "rocket": ("August 4", "October 6"),
    "camera": ("March 21", "June 12"),
}


_MESSAGES = (
    "Fix a bug",
    "Add tests",
    "Update docs",
    "Clean up",
    "Speed up",
    "Fix typo",
    "Add menu",
    "New logo",
    "Sort list",
)
# Only in full worlds: more projects with few stars, and more issues.
_MORE_PROJECTS = [
    (
        owner,
        name,
        "Work in progress",
        "Public",
        1 + i % 7,
        0,
        ("MIT", "0.1", "Python"),
        f"{owner} 3 gus 2",
        {},
    )
    for i, (owner, name) in enumerate(
        [
            (ME, n)
            for n in ("lamp", "mirror", "guitar", "kettle", "ladder", "pencil", "basket", "anchor")
        ]
        + [(user, f"{user}-{n}") for user in USERS[:-1] for n in ("notes", "tools")]
    )
]


_MORE_ISSUES = [
    (f"{word} {noun}", label, author, "", True)
    for noun, label, author in (
        ("button", "bug", "emil"),
        ("guide", "docs", "fay"),
        ("theme", "idea", "gus"),
    )
    for word in ("Old", "Broken", "Missing")
]


def _project(
    owner: str,
    name: str,
    about: str,
    visibility: str,
    stars: int,
    forks: int,
    readme: tuple[str, str, str],
    commits: str,
    members: dict[str, str],
    full: bool,
) -> Project:
    counts = commits.split()
    authors = [author for author, n in zip(counts[::2], counts[1::2]) for _ in range(int(n))]
    issues = _ISSUES.get(name, []) + (_MORE_ISSUES if full else [])
    return Project(
        owner,
        name,
        about,
        visibility,
        stars,
        forks,
        dict(zip(("License", "Version", "Language"), readme)),
        [(author, message) for author, message in zip(authors, _MESSAGES)],
        {owner: "Owner"} | members,
        {i: Issue(i, *row) for i, row in enumerate(issues, 1)},
        {i: MergeRequest(i, *row) for i, row in enumerate(_MERGES.get(name, []), 1)},
        dict(zip(("v1", "v2"), _MILESTONES.get(name, ()))),
        starred=name == "clock",
    )


def fresh(full: bool) -> Forge:
    projects = [_project(*row, full=full) for row in _PROJECTS + (_MORE_PROJECTS if full else [])]
    return Forge({p.path: p for p in projects})
