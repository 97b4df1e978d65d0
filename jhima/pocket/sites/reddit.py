"""The forum site: boards of posts, comments and votes, users, private messages.

Paths and class names are those of Postmill, the software of WebArena's reddit, where its evaluators look.
"""

from __future__ import annotations

import re

from flask import Blueprint, abort, g, redirect, request
from markupsafe import Markup

from jhima.pocket.sites.page import (
    NAVIGATION,
    block,
    button,
    choice,
    columns,
    field,
    form,
    grid,
    link,
    page,
    pair,
    text,
)
from jhima.pocket.sites.reddit_data import CONTACTS, ME, SORTS, Board, Post
from jhima.pocket.sites.visitor import (
    done,
    find,
    login_page,
    login_required,
    try_login,
    typed,
)

site = Blueprint("reddit", __name__)


NAVIGATION["reddit"] += [
    ("Forums", "/forums"),
    ("Search", "/search"),
    ("Messages", "/messages"),
    ("Profile", f"/user/{ME}"),
    ("Preferences", f"/user/{ME}/preferences"),
]


HOME_BOARDS = 8  # the home page keeps its place for the first forums; all are at /forums


def complaint(error: str) -> list[Markup]:
    return [text(error)] if error else []


@site.before_request
def guard():
    """Every page but the login form is for a visitor who is logged in."""
    return None if request.endpoint == "reddit.login" else login_required(lambda: None)()


def sign_in(error: str = "") -> str:
    return login_page(
        field("Username", "user"), field("Password", "password", kind="password"), "Log in", error
    )


@site.route("/login", methods=["GET", "POST"])
def login():
    return try_login(sign_in) if request.method == "POST" else sign_in()


@site.get("/")
def home():
    boards = [link(name, f"/f/{name}") for name in list(g.world.forum.boards)[:HOME_BOARDS]]
    menu = [
        link("Forums", "/forums"),
        link("Subscribed", "/subscribed"),
        link("Search", "/search"),
        link("Messages", "/messages"),
        link("Profile", f"/user/{ME}"),
        link("New forum", "/create_forum"),
        link("Preferences", f"/user/{ME}/preferences"),
    ]
    return page("Welcome", *grid(boards), *grid(menu))


# ---- forums ----


@site.get("/forums")
@site.get("/forums/by_subscribers", endpoint="forums_by_members")
def forums():
    boards = g.world.listing(g.world.forum.boards.values(), "forums")
    by_members = request.endpoint == "reddit.forums_by_members"
    if by_members:
        boards.sort(key=lambda b: b.members, reverse=True)
    return page(
        "By members" if by_members else "Forums",
        link("Sort by members", "/forums/by_subscribers"),
        *(columns(link(b.name, f"/f/{b.name}"), text(f"{b.members} members")) for b in boards),
    )


@site.get("/subscribed")
def subscribed():
    names = [b.name for b in g.world.forum.boards.values() if b.subscribed]
    return page(
        "Subscribed", block("subscribed-forums", *(link(name, f"/f/{name}") for name in names))
    )


@site.get("/f/<name>")
@site.get("/f/<name>/<any(hot, new, top):sort>", endpoint="board_sorted")
def board(name: str, sort: str = ""):
    this = find(g.world.forum.boards, name)
    order = sort.title() or g.world.forum.sort
    posts = g.world.listing((p for p in g.world.forum.posts.values() if p.board == name), name)
    if order != "Hot":
        posts.sort(key=lambda p: p.id if order == "New" else p.votes, reverse=True)
    return page(
        name if order == "Hot" else f"{name} {order.lower()}",
        text(this.about, "forum-description"),
        *grid(
            [
                link("Hot", f"/f/{name}/hot"),
                link("New", f"/f/{name}/new"),
                link("Top", f"/f/{name}/top"),
                link("New post", f"/submit/{name}"),
                form(
                    f"/f/{name}/subscribe",
                    button("Unsubscribe" if this.subscribed else "Subscribe"),
                ),
                *([link("Edit forum", f"/f/{name}/edit")] if this.mine else []),
            ]
        ),
        *(
            [columns(link(p.title, p.path), text(f"{p.votes} votes")) for p in posts]
            or [text("No posts yet")]
        ),
        notice=done(),
    )


@site.post("/f/<name>/subscribe")
def subscribe(name: str):
    this = find(g.world.forum.boards, name)
    this.subscribed = not this.subscribed
    return redirect(f"/f/{name}?done={'Subscribed' if this.subscribed else 'Left'}", 303)


@site.route("/create_forum", methods=["GET", "POST"])
def create_forum():
    boards, name, error = g.world.forum.boards, typed("name", 20), ""
    if request.method == "POST":
        if re.fullmatch(r"\w+", name, re.ASCII) and name not in boards:
            boards[name] = Board(name, typed("about"), 1, subscribed=True, mine=True)
            return redirect(f"/f/{name}?done=Created", 303)
        error = "Taken, or not one word"
    return page(
        "New forum",
        form(
            "/create_forum",
            field("Name", "name", name),
            field("About", "about", typed("about")),
            button("Create forum"),
        ),
        *complaint(error),
    )


@site.route("/f/<name>/edit", methods=["GET", "POST"])
def edit_forum(name: str):
    this = find(g.world.forum.boards, name)
    if not this.mine:
        abort(404)
    if request.method == "POST":
        this.about = typed("about")
        return redirect(f"/f/{name}?done=Saved", 303)
    return page(
        "Edit forum",
        form(
            f"/f/{name}/edit",
            field("About", "about", this.about, id="forum_description"),
            button("Save forum"),
        ),
    )


# ---- posts ----


def post_form(
    action: str, heading: str, submit: str, title: str = "", body: str = "", error: str = ""
) -> str:
    return page(
        heading,
        form(
            action,
            field("Title", "title", title),
            field("Body", "body", body, "textarea"),
            button(submit),
        ),
        *complaint(error),
    )


@site.route("/submit/<name>", methods=["GET", "POST"])
def submit(name: str):
    find(g.world.forum.boards, name)
    title, body, posts = typed("title", 100), typed("body", 1000), g.world.forum.posts
    if request.method == "GET" or not title:
        return post_form(
            f"/submit/{name}",
            f"Post to {name}",
            "Post",
            title,
            body,
            "The title is missing" if request.method == "POST" else "",
        )
    new = Post(max(posts) + 1, name, title, body, ME, others=0, vote=1)
    posts[new.id] = new
    return redirect(new.path, 303)


def vote_form(post: Post) -> Markup:
    """Postmill keeps the reader's vote in the form's class; evaluators read it there."""
    state = {1: " vote--user-upvoted", -1: " vote--user-downvoted", 0: ""}[post.vote]
    buttons = columns(
        button("Upvoted" if post.vote > 0 else "Upvote", name="choice", value="1"),
        button("Downvoted" if post.vote < 0 else "Downvote", name="choice", value="-1"),
    )
    return block(
        "submission__vote",
        Markup('<form class="vote{}" action="/sv/{}" method="post">{}</form>').format(
            state, post.id, buttons
        ),
    )


@site.get("/f/<name>/<int:id>", strict_slashes=False)
@site.get("/f/<name>/<int:id>/", strict_slashes=False)
@site.get("/f/<name>/<int:id>/<slug>")
def post(name: str, id: int, slug: str = ""):
    this = find(g.world.forum.posts, id)
    if this.board != name:
        abort(404)
    own = columns(
        link("Edit post", f"/f/{name}/{id}/edit"),
        form(f"/f/{name}/{id}/delete", button("Delete post")),
    )
    return page(
        this.title,
        block(
            "submission__inner",
            pair("Title", this.title, "submission__title"),
            *([text(this.body, "submission__body")] if this.body else []),
            pair("Votes", this.votes, "vote__net-score"),
            link(f"By {this.author}", f"/user/{this.author}"),
        ),
        vote_form(this),
        *([own] if this.author == ME else []),
        form(
            f"/f/{name}/{id}/comment",
            field("Comment", "comment", kind="textarea"),
            button("Post comment"),
        ),
        *(block("comment", pair(author, body, "comment__body")) for author, body in this.comments),
        notice=done(),
    )


@site.post("/sv/<int:id>")
def cast_vote(id: int):
    this = find(g.world.forum.posts, id)
    choice = {"1": 1, "-1": -1}.get(request.form.get("choice", ""), 0)
    this.vote = 0 if this.vote == choice else choice  # the same vote twice takes it back
    return redirect(f"{this.path}?done={('Vote removed', 'Upvoted', 'Downvoted')[this.vote]}", 303)


@site.post("/f/<name>/<int:id>/comment")
def comment(name: str, id: int):
    this = find(g.world.forum.posts, id)
    if typed("comment"):
        this.comments.insert(0, (ME, typed("comment")))
    return redirect(this.path, 303)


def own_post(id: int) -> Post:
    this = find(g.world.forum.posts, id)
    return this if this.author == ME else abort(404)


@site.route("/f/<name>/<int:id>/edit", methods=["GET", "POST"])
def edit_post(name: str, id: int):
    this = own_post(id)
    if request.method == "GET":
        return post_form(f"/f/{name}/{id}/edit", "Edit post", "Save post", this.title, this.body)
    this.title, this.body = typed("title", 100) or this.title, typed("body", 1000)
    return redirect(this.path, 303)


@site.post("/f/<name>/<int:id>/delete")
def delete_post(name: str, id: int):
    del g.world.forum.posts[own_post(id).id]
    return redirect(f"/f/{name}?done=Deleted", 303)


@site.get("/search")
def search():
    query = request.args.get("q", "").strip().lower()
    if not query:
        return page("Search", form("/search", field("Words", "q"), button("Find"), method="get"))
    hits = [p for p in g.world.forum.posts.values() if query in f"{p.title} {p.body}".lower()]
    return page(
        "Results",
        *([link(p.title, p.path) for p in g.world.listing(hits, query)] or [text("Nothing found")]),
    )


# ---- users and messages ----


@site.get("/user/<name>")
def user(name: str):
    about = find(g.world.forum.users, name)
    mine = [p for p in g.world.forum.posts.values() if p.author == name]
    tool = (
        ("Edit biography", f"/user/{ME}/edit_biography")
        if name == ME
        else ("Write message", f"/messages/{name}")
    )
    return page(
        name,
        text(about, "user-bio__biography"),
        link(*tool),
        block("submissions", *(link(p.title, p.path) for p in g.world.listing(mine, name))),
        notice=done(),
    )


@site.route(f"/user/{ME}/edit_biography", methods=["GET", "POST"])
def edit_biography():
    if request.method == "POST":
        g.world.forum.users[ME] = typed("biography")
        return redirect(f"/user/{ME}?done=Saved", 303)
    return page(
        "Edit biography",
        form(
            f"/user/{ME}/edit_biography",
            field("Biography", "biography", g.world.forum.users[ME], "textarea"),
            button("Save biography"),
        ),
    )


@site.route(f"/user/{ME}/preferences", methods=["GET", "POST"])
def preferences():
    forum = g.world.forum
    if request.method == "POST":
        forum.sort = {s: s for s in SORTS}.get(typed("sort"), forum.sort)
        forum.contact = {c: c for c in CONTACTS}.get(typed("contact"), forum.contact)
        return redirect(f"/user/{ME}/preferences?done=Saved", 303)
    return page(
        "Preferences",
        form(
            f"/user/{ME}/preferences",
            text("Show posts by"),
            choice("sort", list(SORTS), forum.sort),
            text("Messages from"),
            choice("contact", list(CONTACTS), forum.contact),
            button("Save preferences"),
        ),
        notice=done(),
    )


@site.get("/messages")
def messages():
    threads = g.world.listing(g.world.forum.messages, "messages")
    return page("Messages", *(link(name, f"/messages/{name}") for name in threads))


@site.route("/messages/<name>", methods=["GET", "POST"])
def thread(name: str):
    find(g.world.forum.users, name)
    if request.method == "POST":
        if typed("message"):
            g.world.forum.messages.setdefault(name, []).append((ME, typed("message")))
        return redirect(f"/messages/{name}?done=Sent", 303)
    lines = g.world.forum.messages.get(name, [])
    return page(
        f"Chat with {name}",
        form(f"/messages/{name}", field("Message", "message", kind="textarea"), button("Send")),
        *(
            block("message", pair("Me" if author == ME else author, line, "message__body"))
            for author, line in reversed(lines)
        ),
        notice=done(),
    )
