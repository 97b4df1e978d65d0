"""Task templates of the forum site."""

from __future__ import annotations

from functools import partial
from itertools import product

from jhima.pocket.sites.reddit_data import ME, Post, fresh
from jhima.pocket.tasks import intents
from jhima.pocket.tasks.intents import (
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

template = partial(intents.template, "reddit")

FORUM = fresh(full=False)
POSTS = {p.title: p for p in FORUM.posts.values()}  # titles are unique
BOARDS = list(FORUM.boards)
FRIENDS = [user for user in FORUM.users if user != ME]
ALL = [{"title": p.title, "board": p.board} for p in POSTS.values()]
OTHERS = [value for value in ALL if POSTS[value["title"]].author != ME]
OWN = [p.title for p in POSTS.values() if p.author == ME]
WORDS = ["hello", "great", "thanks", "agreed", "why", "wow", "maybe"]
OTHERS_WITH_WORDS = [value | {"word": WORDS[i % 7]} for i, value in enumerate(OTHERS)]

SUBSCRIBED = "document.querySelector('.subscribed-forums').innerText"
PROFILE = f"__REDDIT__/user/{ME}"


def newest(board: str) -> Post:
    return max((p for p in POSTS.values() if p.board == board), key=lambda p: p.id)


def most_voted(board: str) -> Post:
    return max((p for p in POSTS.values() if p.board == board), key=lambda p: p.votes)


# ---- parts of plans ----


def open_board(board: str, *further: str) -> Subtask:
    return step(f"Open {board}", f"The forum {board} is shown", board, *further)


def open_title(title: str) -> Subtask:
    return step(f"Open {title}", f"The post {title} is shown", title)


def open_post(board: str, title: str) -> tuple[Subtask, Subtask]:
    return open_board(board), open_title(title)


def open_own(title: str) -> tuple[Subtask, Subtask]:
    return step("Open Profile", "My posts are shown", "Profile"), open_title(title)


def open_chat(user: str) -> Subtask:
    return step(f"Open the chat with {user}", "The chat is shown", "Messages", user)


def send_message(word: str) -> Subtask:
    return step(f"Send {word}", "The message is sent", Write("Message", word), "Send")


def write_post(board: str, title: str, body: str) -> Subtask:
    moves = ("New post", Write("Title", title), Write("Body", body), "Post")
    return step(f"Post {title} to {board}", "The new post is shown", *moves)


# ---- what a page holds afterwards ----


def posted(board: str, *contents: str) -> dict:
    """The browser ends on a new post of this forum that shows the contents."""
    page = "func:reddit_get_post_url('__last_url__')"
    post = "document.querySelector('.submission__inner').outerText"
    return url_and_html(f"__REDDIT__/f/{board}", target(page, post, must_include=list(contents)))


def voted(post: Post, vote: str) -> dict:
    form = "document.querySelector('div.submission__vote').querySelector('form')"
    return html(
        target(
            f"__REDDIT__{post.path}",
            f"{form}.getAttribute('class')",
            must_include=[f"vote--user-{vote.lower()}d"],
        )
    )


def last_message(user: str, word: str) -> dict:
    message = "document.querySelector('.message__body').innerText"
    return html(target(f"__REDDIT__/messages/{user}", message, exact_match=word))


# ---- look up ----


@template("Who wrote the post {title} in the forum {board}?", OTHERS)
def author(board: str, title: str) -> Solution:
    name = POSTS[title].author
    return solution(
        *open_post(board, title),
        answer("author", name),
        eval=string(exact_match=name),
    )


@template("How many votes does the post {title} in {board} have?", ALL)
def count_votes(board: str, title: str) -> Solution:
    count = str(POSTS[title].votes)
    return solution(
        open_board(board),
        answer("votes", count),
        eval=string(must_include=[count]),
    )


@template("Open the post {title} in the forum {board}.", ALL)
def show(board: str, title: str) -> Solution:
    address = f"__REDDIT__{POSTS[title].path}"
    return solution(*open_post(board, title), eval=url(address, exact=True))


@template(
    "Find the post {title} with the search and tell me who wrote it.",
    one_each("title", [value["title"] for value in OTHERS]),
)
def find_author(title: str) -> Solution:
    p = POSTS[title]
    return solution(
        search("Words", title),
        open_title(title),
        answer("author", p.author),
        eval=string_and_url(f"__REDDIT__/f/{p.board}/{p.id}", exact_match=p.author),
    )


# ---- posts, comments and votes ----

NEW_TITLES = ("Party", "Question", "Secret")


@template(
    "Post {title} with the text {body} in the forum {board}.",
    [
        {"board": board, "title": title, "body": WORDS[(i + j) % 7]}
        for (i, board), (j, title) in product(enumerate(BOARDS), enumerate(NEW_TITLES))
    ],
)
def submit(board: str, title: str, body: str) -> Solution:
    return solution(
        open_board(board),
        write_post(board, title, body),
        eval=posted(board, title, body),
    )


@template(
    "Comment {word} on the post {title} in {board}.",
    [value | {"word": WORDS[i % 7]} for i, value in enumerate(ALL)],
)
def comment(board: str, title: str, word: str) -> Solution:
    moves = (Write("Comment", word), "Post comment")
    first = "document.querySelector('.comment__body').outerText"
    return solution(
        *open_post(board, title),
        step(f"Comment {word}", "The comment is shown", *moves),
        eval=url_and_html(
            f"__REDDIT__/f/{board}/{POSTS[title].id}", target("last", first, exact_match=word)
        ),
    )


@template(
    "{vote} the post {title} in {board}.",
    [value | {"vote": ("Upvote", "Downvote")[i % 2]} for i, value in enumerate(OTHERS)],
)
def cast_vote(board: str, title: str, vote: str) -> Solution:
    return solution(
        *open_post(board, title),
        step(f"{vote} it", f"{vote}d is shown", vote),
        eval=voted(POSTS[title], vote),
    )


@template("Upvote the newest post in the forum {board}.", one_each("board", BOARDS))
def vote_newest(board: str) -> Solution:
    p = newest(board)
    return solution(
        open_board(board, "New"),
        step("Open the first post", "The newest post is shown", p.title),
        step("Upvote it", "Upvoted is shown", "Upvote"),
        eval=voted(p, "Upvote"),
    )


# ---- forums, profile, messages ----


@template(
    "Subscribe to the forum {board}.",
    one_each("board", [b.name for b in FORUM.boards.values() if not b.subscribed]),
)
def subscribe(board: str) -> Solution:
    return solution(
        open_board(board),
        step("Subscribe", "The forum is subscribed", "Subscribe"),
        eval=html(target("__REDDIT__/subscribed", SUBSCRIBED, must_include=[board])),
    )


@template(
    "Unsubscribe from the forum {board}.",
    one_each("board", [b.name for b in FORUM.boards.values() if b.subscribed]),
)
def unsubscribe(board: str) -> Solution:
    return solution(
        step("Open Subscribed", "My forums are shown", "Subscribed"),
        open_board(board),
        step("Unsubscribe", "The forum is left", "Unsubscribe"),
        eval=html(target("__REDDIT__/subscribed", SUBSCRIBED, must_exclude=[board])),
    )


# fmt: off
BIOGRAPHIES = [
    "I like cats", "I draw maps", "I sell cars", "I grow apples",
    "I fix clocks", "I love snow", "I teach chess", "I cook rice",
]
# fmt: on


@template("Change my biography to {text}.", one_each("text", BIOGRAPHIES))
def biography(text: str) -> Solution:
    moves = ("Edit biography", Write("Biography", text), "Save biography")
    shown = "document.querySelector('.user-bio__biography').outerText"
    return solution(
        step("Open Profile", "My page is shown", "Profile"),
        step("Edit the biography", "The biography is saved", *moves),
        eval=html(target(PROFILE, shown, exact_match=text)),
    )


@template("What did {user} write to me?", one_each("user", FRIENDS))
def read_message(user: str) -> Solution:
    line = FORUM.messages[user][0][1]
    return solution(
        step(f"Open the chat with {user}", "The message is shown", "Messages", user),
        answer("message", line),
        eval=string(fuzzy_match=[line]),
    )


@template(
    "Send {user} the message {word}.",
    [
        {"user": user, "word": WORDS[(i + j) % 7]}
        for (i, user), j in product(enumerate(FRIENDS), (0, 2))
    ],
)
def send(user: str, word: str) -> Solution:
    return solution(open_chat(user), send_message(word), eval=last_message(user, word))


@template(
    "Send the message {word} to the author of the post {title} in {board}.",
    OTHERS_WITH_WORDS,
)
def thank_author(board: str, title: str, word: str) -> Solution:
    name = POSTS[title].author
    return solution(
        *open_post(board, title),
        step("Write to the author", "The chat is shown", f"By {name}", "Write message"),
        send_message(word),
        eval=last_message(name, word),
    )


@template(
    "Show posts by {sort} and take messages from {contact}.",
    [
        {"sort": sort, "contact": contact}
        for sort, contact in product(("New", "Top"), ("Nobody", "Everyone"))
    ],
)
def preferences(sort: str, contact: str) -> Solution:
    page = f"{PROFILE}/preferences"
    chosen_sort = "document.querySelector('[name=sort]:checked').value"
    chosen_contact = "document.querySelector('[name=contact]:checked').value"
    moves = (sort, contact, "Save preferences")
    return solution(
        step("Open Preferences", "The preferences are shown", "Preferences"),
        step(f"Set {sort} and {contact}", "The preferences are saved", *moves),
        eval=html(
            target(page, chosen_sort, exact_match=sort),
            target(page, chosen_contact, exact_match=contact),
        ),
    )


NEW_FORUMS = {
    "cats": "kittens",
    "space": "stars",
    "plants": "trees",
    "money": "banks",
    "health": "doctors",
    "tools": "hammers",
}


@template(
    "Create a forum named {name} about {about}.",
    [{"name": name, "about": about} for name, about in NEW_FORUMS.items()],
)
def create_forum(name: str, about: str) -> Solution:
    moves = (Write("Name", name), Write("About", about), "Create forum")
    description = "document.querySelector('#forum_description').value"
    return solution(
        step("Open New forum", "The form is shown", "New forum"),
        step(f"Create {name}", "The forum is shown", *moves),
        eval=html(target(f"__REDDIT__/f/{name}/edit", description, must_include=[about])),
    )


# ---- own posts ----


@template(
    "Change the text of my post {title} to {text}.",
    [
        {"title": title, "text": text}
        for title, text in product(OWN, ("solved", "never mind", "ask me"))
    ],
)
def edit_post(title: str, text: str) -> Solution:
    moves = ("Edit post", Write("Body", text), "Save post")
    body = "document.querySelector('.submission__body').outerText"
    return solution(
        *open_own(title),
        step("Edit the post", "The new text is shown", *moves),
        eval=html(target(f"__REDDIT__{POSTS[title].path}", body, exact_match=text)),
    )


@template("Delete my post {title}.", one_each("title", OWN))
def delete_post(title: str) -> Solution:
    posts = "document.querySelector('.submissions').innerText"
    return solution(
        *open_own(title),
        step("Delete the post", "The post is gone", "Delete post"),
        eval=html(target(PROFILE, posts, must_exclude=[title])),
    )


SOURCES = BOARDS * 2
DESTINATIONS = BOARDS[3:] + BOARDS[:3] + BOARDS[5:] + BOARDS[:5]


@template(
    "Find the top post in {source} and post its title in {board} with the text {body}.",
    [
        {"source": source, "board": board, "body": word}
        for source, board, word in zip(SOURCES, DESTINATIONS, WORDS * 3)
    ],
)
def repost(source: str, board: str, body: str) -> Solution:
    title = most_voted(source).title
    return solution(
        open_board(source, "Top"),
        step("Go home", "All forums are shown", "Forum"),
        open_board(board),
        write_post(board, title, body),
        eval=posted(board, title, body),
    )


# ---- held out ----


@template("Downvote the top post in the forum {board}.", one_each("board", BOARDS), held_out=True)
def vote_top(board: str) -> Solution:
    p = most_voted(board)
    return solution(
        open_board(board, "Top"),
        step("Open the first post", "The top post is shown", p.title),
        step("Downvote it", "Downvoted is shown", "Downvote"),
        eval=voted(p, "Downvote"),
    )


@template(
    "What does the author of the post {title} in {board} say in the biography?",
    OTHERS[::2],
    held_out=True,
)
def author_biography(board: str, title: str) -> Solution:
    name = POSTS[title].author
    return solution(
        *open_post(board, title),
        step("Open the author", "The page of the author is shown", f"By {name}"),
        answer("biography", FORUM.users[name]),
        eval=string(fuzzy_match=[FORUM.users[name]]),
    )


@template(
    "Sort the forums by members and tell me which is larger, {a} or {b}.",
    [{"a": a, "b": b} for a, b in zip(BOARDS, BOARDS[3:] + BOARDS[:3])],
    held_out=True,
)
def larger(a: str, b: str) -> Solution:
    less, more = sorted((a, b), key=lambda name: FORUM.boards[name].members)
    return solution(
        step("Sort the forums", "The largest come first", "Forums", "Sort by members"),
        answer("forum", more),
        eval=string(must_include=[more], must_exclude=[less]),
    )
