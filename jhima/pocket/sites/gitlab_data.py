"""Data of the code site: projects with issues, merge requests, members and commits; a profile."""

from __future__ import annotations

from collections import Counter
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

    @property
    def state(self) -> str:
        return "Open" if self.open else "Closed"


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

    @property
    def state(self) -> str:
        return "Merged" if self.merged else "Open"


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
        return dict(Counter(author for author, _message in self.commits).most_common())


@dataclass
class Forge:
    projects: dict[str, Project]  # path -> project
    status: str = "Hello"
    website: str = "home.page"


_PROJECTS = [
    # owner, name, about, visibility, stars, forks, license, version, language
    (ME, "robot", "It walks and talks", "Public", 31, 4, "MIT", "2.1", "Python"),
    (ME, "garden", "Plan the beds", "Public", 12, 2, "BSD", "1.4", "Ruby"),
    (ME, "clock", "Time in a row", "Private", 8, 1, "GPL", "3.0", "Rust"),
    (ME, "piano", "Play by mouse", "Internal", 26, 5, "ISC", "0.9", "Java"),
    (ME, "rocket", "Fly to the moon", "Public", 44, 7, "MIT", "5.2", "Go"),
    (ME, "camera", "Shoot and share", "Internal", 19, 3, "GPL", "1.7", "Swift"),
    ("anna", "ocean", "Waves on screen", "Public", 73, 11, "MIT", "4.0", "Python"),
    ("ben", "forest", "Grow random trees", "Public", 58, 9, "BSD", "2.6", "Go"),
    ("carl", "island", "A tiny world", "Public", 90, 14, "ISC", "1.1", "Rust"),
    ("dora", "desert", "Sand and sound", "Public", 37, 6, "GPL", "3.3", "Java"),
    ("emil", "river", "Streams of data", "Public", 62, 8, "MIT", "0.8", "Swift"),
    ("fay", "valley", "Low and level", "Public", 21, 2, "BSD", "6.0", "Ruby"),
]

# How many commits each author made.
_COMMITS = {
    "robot": {"anna": 4, "ben": 2, ME: 3},
    "garden": {"carl": 3, "dora": 2, ME: 4},
    "clock": {"emil": 4, "anna": 3, ME: 2},
    "piano": {"fay": 3, "gus": 4, ME: 2},
    "rocket": {"ben": 4, "carl": 3, ME: 2},
    "camera": {"dora": 2, "fay": 4, ME: 3},
    "ocean": {"anna": 6, "emil": 2},
    "forest": {"ben": 5, "fay": 3},
    "island": {"carl": 4, "gus": 3},
    "desert": {"dora": 5, "anna": 2},
    "river": {"emil": 3, "ben": 2},
    "valley": {"fay": 4, "dora": 3},
}

# The members besides the owner, with their roles.
_MEMBERS = {
    "robot": {"anna": "Developer", "ben": "Guest"},
    "garden": {"carl": "Reporter", "dora": "Developer"},
    "clock": {"emil": "Maintainer", "anna": "Guest"},
    "piano": {"fay": "Developer", "gus": "Reporter"},
    "rocket": {"ben": "Maintainer", "carl": "Guest"},
    "camera": {"dora": "Guest", "fay": "Reporter"},
}

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


# fmt: off
_MESSAGES = (
    "Fix a bug", "Add tests", "Update docs", "Clean up", "Speed up",
    "Fix typo", "Add menu", "New logo", "Sort list",
)
# Only in full worlds: more projects with few stars, and more issues.
_MORE_NAMES = [
    (ME, "lamp"), (ME, "mirror"), (ME, "guitar"), (ME, "kettle"),
    (ME, "ladder"), (ME, "pencil"), (ME, "basket"), (ME, "anchor"),
]
# fmt: on
for _user in USERS[:-1]:
    _MORE_NAMES += [(_user, f"{_user}-notes"), (_user, f"{_user}-tools")]
_MORE_PROJECTS = [
    (owner, name, "Work in progress", "Public", 1 + i % 7, 0, "MIT", "0.1", "Python")
    for i, (owner, name) in enumerate(_MORE_NAMES)
]
_MORE_ISSUES = [
    ("Old button", "bug", "emil", "", True),
    ("Broken button", "bug", "emil", "", True),
    ("Missing button", "bug", "emil", "", True),
    ("Old guide", "docs", "fay", "", True),
    ("Broken guide", "docs", "fay", "", True),
    ("Missing guide", "docs", "fay", "", True),
    ("Old theme", "idea", "gus", "", True),
    ("Broken theme", "idea", "gus", "", True),
    ("Missing theme", "idea", "gus", "", True),
]


def _project(row: tuple, full: bool) -> Project:
    owner, name, about, visibility, stars, forks, *readme = row
    authors = [owner] * 3 + ["gus"] * 2  # of the projects that only full worlds have
    if name in _COMMITS:
        authors = list(Counter(_COMMITS[name]).elements())
    issues = _ISSUES.get(name, [])
    if full:
        issues = issues + _MORE_ISSUES
    return Project(
        owner=owner,
        name=name,
        about=about,
        visibility=visibility,
        stars=stars,
        forks=forks,
        readme=dict(zip(("License", "Version", "Language"), readme)),
        commits=list(zip(authors, _MESSAGES)),
        members={owner: "Owner"} | _MEMBERS.get(name, {}),
        issues={i: Issue(i, *issue) for i, issue in enumerate(issues, 1)},
        merges={i: MergeRequest(i, *merge) for i, merge in enumerate(_MERGES.get(name, []), 1)},
        milestones=dict(zip(("v1", "v2"), _MILESTONES.get(name, ()))),
        starred=name == "clock",
    )


def fresh(full: bool) -> Forge:
    rows = _PROJECTS + _MORE_PROJECTS if full else _PROJECTS
    projects = [_project(row, full) for row in rows]
    return Forge({p.path: p for p in projects})
