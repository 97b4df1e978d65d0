"""What one can ask of the forum site."""

from __future__ import annotations

from jhima.pocket.sites.reddit_data import ME, Post, fresh
from jhima.pocket.tasks.intents import (
    Answer,
    Click,
    Move,
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

FORUM = fresh(full=False)


POSTS = {p.title: p for p in FORUM.posts.values()}  # titles are unique


BOARDS = list(FORUM.boards)


FRIENDS = [user for user in FORUM.users if user != ME]


TITLES = [{"title": p.title, "board": p.board} for p in POSTS.values()]


OTHERS = [v for v in TITLES if POSTS[v["title"]].author != ME]


OWN = [p.title for p in POSTS.values() if p.author == ME]


WORDS = ["hello", "great", "thanks", "agreed", "why", "wow", "maybe"]


SUBSCRIBED = "document.querySelector('.subscribed-forums').innerText"


LAST_MESSAGE = "document.querySelector('.message__body').innerText"


PROFILE = f"__REDDIT__/user/{ME}"


def by(board: str, key: str) -> Post:
    """The forum's newest (key "id") or most voted (key "votes") post."""
    return max((p for p in POSTS.values() if p.board == board), key=lambda p: getattr(p, key))


def open_board(board: str, *further: Move) -> Subtask:
    return step(f"Open {board}", f"The forum {board} is shown", Click(board), *further)


def open_post(board: str, title: str) -> tuple[Subtask, Subtask]:
    return open_board(board), step(f"Open {title}", f"The post {title} is shown", Click(title))


def open_own(title: str) -> tuple[Subtask, Subtask]:
    return (
        step("Open Profile", "My posts are shown", Click("Profile")),
        step(f"Open {title}", f"The post {title} is shown", Click(title)),
    )


def answer(what: str, value: str) -> Subtask:
    return step(f"Answer with the {what}", f"The {what} is given", Answer(value))


def write_post(board: str, title: str, body: str) -> Subtask:
    return step(
        f"Post {title} to {board}",
        "The new post is shown",
        Click("New post"),
        Write("Title", title),
        Write("Body", body),
        Click("Post"),
    )


def posted(board: str, *contents: str) -> dict:
    """The browser ends on a new post of this forum that shows the contents."""
    return url_and_html(
        f"__REDDIT__/f/{board}",
        target(
            "func:reddit_get_post_url('__last_url__')",
            "document.querySelector('.submission__inner').outerText",
            must_include=list(contents),
        ),
    )


def voted(post: Post, vote: str) -> dict:
    return html(
        target(
            f"__REDDIT__{post.path}",
            "document.querySelector('div.submission__vote').querySelector('form').getAttribute('class')",
            must_include=[f"vote--user-{vote.lower()}d"],
        )
    )


@template("reddit", "Who wrote the post {title} in the forum {board}?", OTHERS)
def author(board: str, title: str) -> Solution:
    who = POSTS[title].author
    return Solution((*open_post(board, title), answer("author", who)), string(exact_match=who))


@template("reddit", "How many votes does the post {title} in {board} have?", TITLES)
def count_votes(board: str, title: str) -> Solution:
    count = str(POSTS[title].votes)
    return Solution((open_board(board), answer("votes", count)), string(must_include=[count]))


@template("reddit", "Open the post {title} in the forum {board}.", TITLES)
def show(board: str, title: str) -> Solution:
    return Solution(open_post(board, title), url(f"__REDDIT__{POSTS[title].path}", exact=True))


@template(
    "reddit",
    "Find the post {title} with the search and tell me who wrote it.",
    [{"title": v["title"]} for v in OTHERS],
)
def find_author(title: str) -> Solution:
    p = POSTS[title]
    return Solution(
        (
            step(
                f"Search for {title}",
                "The results are shown",
                Click("Search"),
                Write("Words", title),
                Click("Find"),
            ),
            step(f"Open {title}", f"The post {title} is shown", Click(title)),
            answer("author", p.author),
        ),
        string_and_url(f"__REDDIT__/f/{p.board}/{p.id}", exact_match=p.author),
    )


@template(
    "reddit",
    "Post {title} with the text {body} in the forum {board}.",
    [
        {"board": board, "title": title, "body": WORDS[(i + j) % 7]}
        for i, board in enumerate(BOARDS)
        for j, title in enumerate(("Party", "Question", "Secret"))
    ],
)
def submit(board: str, title: str, body: str) -> Solution:
    return Solution((open_board(board), write_post(board, title, body)), posted(board, title, body))


@template(
    "reddit",
    "Comment {word} on the post {title} in {board}.",
    [v | {"word": WORDS[i % 7]} for i, v in enumerate(TITLES)],
)
def comment(board: str, title: str, word: str) -> Solution:
    return Solution(
        (
            *open_post(board, title),
            step(
                f"Comment {word}",
                "The comment is shown",
                Write("Comment", word),
                Click("Post comment"),
            ),
        ),
        url_and_html(
            f"__REDDIT__/f/{board}/{POSTS[title].id}",
            target("last", "document.querySelector('.comment__body').outerText", exact_match=word),
        ),
    )


@template(
    "reddit",
    "{vote} the post {title} in {board}.",
    [v | {"vote": ("Upvote", "Downvote")[i % 2]} for i, v in enumerate(OTHERS)],
)
def cast_vote(board: str, title: str, vote: str) -> Solution:
    return Solution(
        (*open_post(board, title), step(f"{vote} it", f"{vote}d is shown", Click(vote))),
        voted(POSTS[title], vote),
    )


@template(
    "reddit", "Upvote the newest post in the forum {board}.", [{"board": board} for board in BOARDS]
)
def vote_newest(board: str) -> Solution:
    p = by(board, "id")
    return Solution(
        (
            open_board(board, Click("New")),
            step("Open the first post", "The newest post is shown", Click(p.title)),
            step("Upvote it", "Upvoted is shown", Click("Upvote")),
        ),
        voted(p, "Upvote"),
    )


@template(
    "reddit",
    "Subscribe to the forum {board}.",
    [{"board": b.name} for b in FORUM.boards.values() if not b.subscribed],
)
def subscribe(board: str) -> Solution:
    return Solution(
        (open_board(board), step("Subscribe", "The forum is subscribed", Click("Subscribe"))),
        html(target("__REDDIT__/subscribed", SUBSCRIBED, must_include=[board])),
    )


@template(
    "reddit",
    "Unsubscribe from the forum {board}.",
    [{"board": b.name} for b in FORUM.boards.values() if b.subscribed],
)
def unsubscribe(board: str) -> Solution:
    return Solution(
        (
            step("Open Subscribed", "My forums are shown", Click("Subscribed")),
            open_board(board),
            step("Unsubscribe", "The forum is left", Click("Unsubscribe")),
        ),
        html(target("__REDDIT__/subscribed", SUBSCRIBED, must_exclude=[board])),
    )


@template(
    "reddit",
    "Change my biography to {text}.",
    [
        {"text": text}
        for text in (
            "I like cats",
            "I draw maps",
            "I sell cars",
            "I grow apples",
            "I fix clocks",
            "I love snow",
            "I teach chess",
            "I cook rice",
        )
    ],
)
def biography(text: str) -> Solution:
    return Solution(
        (
            step("Open Profile", "My page is shown", Click("Profile")),
            step(
                "Edit the biography",
                "The biography is saved",
                Click("Edit biography"),
                Write("Biography", text),
                Click("Save biography"),
            ),
        ),
        html(
            target(
                PROFILE,
                "document.querySelector('.user-bio__biography').outerText",
                exact_match=text,
            )
        ),
    )


@template("reddit", "What did {user} write to me?", [{"user": user} for user in FRIENDS])
def read_message(user: str) -> Solution:
    line = FORUM.messages[user][0][1]
    return Solution(
        (
            step(
                f"Open the chat with {user}", "The message is shown", Click("Messages"), Click(user)
            ),
            answer("message", line),
        ),
        string(fuzzy_match=[line]),
    )


@template(
    "reddit",
    "Send {user} the message {word}.",
    [{"user": user, "word": WORDS[(i + j) % 7]} for i, user in enumerate(FRIENDS) for j in (0, 2)],
)
def send(user: str, word: str) -> Solution:
    return Solution(
        (
            step(f"Open the chat with {user}", "The chat is shown", Click("Messages"), Click(user)),
            step(f"Send {word}", "The message is sent", Write("Message", word), Click("Send")),
        ),
        html(target(f"__REDDIT__/messages/{user}", LAST_MESSAGE, exact_match=word)),
    )


@template(
    "reddit",
    "Send the message {word} to the author of the post {title} in {board}.",
    [v | {"word": WORDS[i % 7]} for i, v in enumerate(OTHERS)],
)
def thank_author(board: str, title: str, word: str) -> Solution:
    who = POSTS[title].author
    return Solution(
        (
            *open_post(board, title),
            step(
                "Write to the author",
                "The chat is shown",
                Click(f"By {who}"),
                Click("Write message"),
            ),
            step(f"Send {word}", "The message is sent", Write("Message", word), Click("Send")),
        ),
        html(target(f"__REDDIT__/messages/{who}", LAST_MESSAGE, exact_match=word)),
    )


@template(
    "reddit",
    "Show posts by {sort} and take messages from {contact}.",
    [
        {"sort": sort, "contact": contact}
        for sort in ("New", "Top")
        for contact in ("Nobody", "Everyone")
    ],
)
def preferences(sort: str, contact: str) -> Solution:
    return Solution(
        (
            step("Open Preferences", "The preferences are shown", Click("Preferences")),
            step(
                f"Set {sort} and {contact}",
                "The preferences are saved",
                Click(sort),
                Click(contact),
                Click("Save preferences"),
            ),
        ),
        html(
            *(
                target(
                    f"{PROFILE}/preferences",
                    f"document.querySelector('[name={name}]:checked').value",
                    exact_match=value,
                )
                for name, value in (("sort", sort), ("contact", contact))
            )
        ),
    )


@template(
    "reddit",
    "Create a forum named {name} about {about}.",
    [
        {"name": name, "about": about}
        for name, about in (
            ("cats", "kittens"),
            ("space", "stars"),
            ("plants", "trees"),
            ("money", "banks"),
            ("health", "doctors"),
            ("tools", "hammers"),
        )
    ],
)
def create_forum(name: str, about: str) -> Solution:
    return Solution(
        (
            step("Open New forum", "The form is shown", Click("New forum")),
            step(
                f"Create {name}",
                "The forum is shown",
                Write("Name", name),
                Write("About", about),
                Click("Create forum"),
            ),
        ),
        html(
            target(
                f"__REDDIT__/f/{name}/edit",
                "document.querySelector('#forum_description').value",
                must_include=[about],
            )
        ),
    )


@template(
    "reddit",
    "Change the text of my post {title} to {text}.",
    [
        {"title": title, "text": text}
        for title in OWN
        for text in ("solved", "never mind", "ask me")
    ],
)
def edit_post(title: str, text: str) -> Solution:
    return Solution(
        (
            *open_own(title),
            step(
                "Edit the post",
                "The new text is shown",
                Click("Edit post"),
                Write("Body", text),
                Click("Save post"),
            ),
        ),
        html(
            target(
                f"__REDDIT__{POSTS[title].path}",
                "document.querySelector('.submission__body').outerText",
                exact_match=text,
            )
        ),
    )


@template("reddit", "Delete my post {title}.", [{"title": title} for title in OWN])
def delete_post(title: str) -> Solution:
    return Solution(
        (*open_own(title), step("Delete the post", "The post is gone", Click("Delete post"))),
        html(
            target(
                PROFILE, "document.querySelector('.submissions').innerText", must_exclude=[title]
            )
        ),
    )


@template(
    "reddit",
    "Find the top post in {source} and post its title in {board} with the text {body}.",
    [
        {"source": source, "board": board, "body": word}
        for source, board, word in zip(
            BOARDS * 2, BOARDS[3:] + BOARDS[:3] + BOARDS[5:] + BOARDS[:5], WORDS * 3
        )
    ],
)
def repost(source: str, board: str, body: str) -> Solution:
    title = by(source, "votes").title
    return Solution(
        (
            open_board(source, Click("Top")),
            step("Go home", "All forums are shown", Click("Forum")),
            open_board(board),
            write_post(board, title, body),
        ),
        posted(board, title, body),
    )


@template(
    "reddit",
    "Downvote the top post in the forum {board}.",
    [{"board": board} for board in BOARDS],
    held_out=True,
)
def vote_top(board: str) -> Solution:
    p = by(board, "votes")
    return Solution(
        (
            open_board(board, Click("Top")),
            step("Open the first post", "The top post is shown", Click(p.title)),
            step("Downvote it", "Downvoted is shown", Click("Downvote")),
        ),
        voted(p, "Downvote"),
    )


@template(
    "reddit",
    "What does the author of the post {title} in {board} say in the biography?",
    OTHERS[::2],
    held_out=True,
)
def author_biography(board: str, title: str) -> Solution:
    who = POSTS[title].author
    return Solution(
        (
            *open_post(board, title),
            step("Open the author", "The page of the author is shown", Click(f"By {who}")),
            answer("biography", FORUM.users[who]),
        ),
        string(fuzzy_match=[FORUM.users[who]]),
    )


@template(
    "reddit",
    "Sort the forums by members and tell me which is larger, {a} or {b}.",
    [{"a": a, "b": b} for a, b in zip(BOARDS, BOARDS[3:] + BOARDS[:3])],
    held_out=True,
)
def larger(a: str, b: str) -> Solution:
    less, more = sorted((a, b), key=lambda name: FORUM.boards[name].members)
    return Solution(
        (
            step(
                "Sort the forums",
                "The largest come first",
                Click("Forums"),
                Click("Sort by members"),
            ),
            answer("forum", more),
        ),
        string(must_include=[more], must_exclude=[less]),
    )


TEMPLATES = [
    author,
    count_votes,
    show,
    find_author,
    submit,
    comment,
    cast_vote,
    vote_newest,
    subscribe,
    unsubscribe,
    biography,
    read_message,
    send,
    thank_author,
    preferences,
    create_forum,
    edit_post,
    delete_post,
    repost,
    vote_top,
    author_biography,
    larger,
]
