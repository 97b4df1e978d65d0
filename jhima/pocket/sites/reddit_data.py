"""Data of the forum site: boards, posts and comments, users, and what the reader can change."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product

ME = "MarvelsGrantMan136"


@dataclass
class Post:
    id: int  # counts up, so newer posts have higher ids
    board: str
    title: str
    body: str
    author: str
    others: int  # votes of everybody else
    comments: list[tuple[str, str]] = field(default_factory=list)  # (author, text), newest first
    vote: int = 0  # the reader's own: -1, 0 or 1

    @property
    def votes(self) -> int:
        return self.others + self.vote

    @property
    def path(self) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        return f"/f/{self.board}/{self.id}/{slug[:60]}"


@dataclass
class Board:
    """One forum of the site, served at /f/<name>."""

    name: str
    about: str
    members: int
    subscribed: bool = False
    mine: bool = False  # made by the reader, who may then edit it


@dataclass
class Forum:
    boards: dict[str, Board]
    posts: dict[int, Post]
    users: dict[str, str]  # name -> biography
    messages: dict[str, list[tuple[str, str]]]  # other user -> (author, text), oldest first
    sort: str = "Hot"  # preference: the order of a forum's first page
    contact: str = "Everyone"  # preference: who may write messages to the reader


SORTS = ("Hot", "New", "Top")
CONTACTS = ("Everyone", "Nobody")

_USERS = {
    "anna": "I teach math",
    "ben": "I paint birds",
    "carl": "I fix bikes",
    "dora": "I bake bread",
    "emil": "I sail boats",
    "fay": "I write code",
    "gus": "I grow roses",
    ME: "New here",
}

_MESSAGES = {
    "anna": "Lunch at noon",
    "ben": "Call me soon",
    "carl": "Bring a map",
    "dora": "Tea at five",
    "emil": "The boat is ready",
    "fay": "The code is done",
    "gus": "Roses for you",
}

_BOARDS = [
    # name, about, members, subscribed
    ("books", "Read and share", 41, True),
    ("games", "Play together", 87, False),
    ("music", "Listen up", 65, True),
    ("movies", "Lights off", 92, False),
    ("sports", "Run and win", 78, False),
    ("food", "Cook and eat", 53, True),
    ("travel", "See the world", 36, False),
    ("news", "What is new", 24, False),
]

# fmt: off
_POSTS = [
    # board, title, body, author, votes, id, comments. The order here is "hot"; ids give "new",
    # votes give "top".
    ("books", "Novels", "Which one is long?", "anna", 31, 212, [("ben", "Try Dune")]),
    ("books", "Poems", "I like short ones", "ben", 57, 211, [("gus", "Me too"), ("fay", "Nice")]),
    ("books", "Comics", "Old or new?", "carl", 22, 214, [("anna", "Old")]),
    ("books", "Diaries", "I keep one", "dora", 46, 213, []),
    ("games", "Chess", "White moves first", "emil", 63, 221, [("carl", "Always")]),
    ("games", "Poker", "Never bet all", "fay", 28, 223, [("dora", "So true")]),
    ("games", "Darts", "My aim is bad", ME, 17, 222, [("ben", "Train more")]),
    ("games", "Puzzles", "A thousand parts", "gus", 39, 224,
     [("anna", "Wow"), ("emil", "Too many")]),
    ("music", "Jazz", "Best at night", "anna", 26, 233, [("fay", "Yes")]),
    ("music", "Rock", "Play it loud", "ben", 34, 231, [("gus", "Louder")]),
    ("music", "Opera", "I fell asleep", "carl", 15, 234, []),
    ("music", "Drums", "My new hobby", ME, 49, 232, [("dora", "Poor family")]),
    ("movies", "Aliens", "They come in peace", "dora", 71, 242, [("emil", "They do not")]),
    ("movies", "Pirates", "Ships and gold", "emil", 33, 244, [("ben", "Great"), ("anna", "Fun")]),
    ("movies", "Zombies", "I hid all night", "fay", 58, 243, []),
    ("movies", "Robots", "Metal with heart", "gus", 84, 241, [("carl", "I cried")]),
    ("sports", "Tennis", "Court is open", "anna", 44, 252, [("fay", "Sunday?")]),
    ("sports", "Rugby", "It was muddy", "ben", 67, 251, [("dora", "Ouch")]),
    ("sports", "Golf", "Lost ten balls", "gus", 13, 253, [("carl", "Only ten?")]),
    ("sports", "Hockey", "Ice is thin", "carl", 29, 254, []),
    ("food", "Pizza", "Thin or thick?", "dora", 76, 263, [("ben", "Thin"), ("emil", "Thick")]),
    ("food", "Pasta", "Salt the water", "emil", 52, 264, [("anna", "Thanks")]),
    ("food", "Sushi", "Rolled at home", ME, 38, 261, [("gus", "Yummy")]),
    ("food", "Soup", "Good in winter", "fay", 91, 262, []),
    ("travel", "Paris", "Rain every day", "gus", 42, 271, [("anna", "Sorry")]),
    ("travel", "Tokyo", "Trains on time", ME, 66, 274, [("fay", "Of course")]),
    ("travel", "Cairo", "Sun and sand", "anna", 21, 272, [("carl", "Hot")]),
    ("travel", "Oslo", "Cold but kind", "ben", 73, 273, []),
    ("news", "Weather", "Snow is coming", "carl", 32, 283, [("dora", "Finally")]),
    ("news", "Traffic", "Bridge is closed", "dora", 19, 282, [("ben", "Again")]),
    ("news", "Election", "Vote on Monday", "emil", 47, 284, [("gus", "I will")]),
    ("news", "Science", "Water on Mars", "fay", 88, 281, [("anna", "Amazing"), ("ben", "Really?")]),
]

# Only in full worlds: more forums, and older posts with few votes, so that the newest and the
# top posts stay the same.
_MORE_NAMES = ("art", "cars", "pets", "history", "garden", "fitness", "photos", "trains")
# fmt: on
_NOUNS = ("Ideas", "Tips", "Stories", "Questions")  # of forums without posts
_MORE_BOARDS = [(name, "Talk about it", 3 + i, False) for i, name in enumerate(_MORE_NAMES)]


def _older_posts() -> list[tuple]:
    titles = []  # (board, title)
    for board, *_ in _BOARDS + _MORE_BOARDS:
        nouns = [row[1] for row in _POSTS if row[0] == board]
        for word, noun in product(("Old", "Rare"), nouns or _NOUNS):
            titles.append((board, f"{word} {noun}"))
    authors = [user for user in _USERS if user != ME]
    return [
        (board, title, "Any thoughts?", authors[i % len(authors)], 1 + i % 9, 1 + i, [])
        for i, (board, title) in enumerate(titles)
    ]


def fresh(full: bool) -> Forum:
    board_rows, post_rows = _BOARDS, _POSTS
    if full:
        board_rows, post_rows = _BOARDS + _MORE_BOARDS, _POSTS + _older_posts()
    boards = [Board(*row) for row in board_rows]
    posts = {}
    for board, title, body, author, votes, id, comments in post_rows:
        posts[id] = Post(id, board, title, body, author, others=votes, comments=list(comments))
    return Forum(
        boards={board.name: board for board in boards},
        posts=posts,
        users=dict(_USERS),
        messages={user: [(user, line)] for user, line in _MESSAGES.items()},
    )
