"""The code site: projects with issues, merge requests, members, milestones and settings.

Paths, class names and test ids are GitLab's, as WebArena's login, evaluators and helpers expect them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from flask import Blueprint, abort, g, redirect, request
from markupsafe import Markup

from jhima.pocket.sites.gitlab_data import (
    LABELS,
    ME,
    ROLES,
    USERS,
    VISIBILITIES,
    Comments,
    Issue,
    MergeRequest,
    Project,
)
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
from jhima.pocket.sites.visitor import (
    done,
    find,
    login_page,
    login_required,
    try_login,
    typed,
)

site = Blueprint("gitlab", __name__)


NAVIGATION["gitlab"] += [
    ("Explore", "/explore"),
    ("My issues", f"/dashboard/issues?assignee_username={ME}"),
    ("My merges", f"/dashboard/merge_requests?assignee_username={ME}"),
    ("Profile", f"/{ME}"),
]


def project(owner: str, name: str, mine: bool = False) -> Project:
    """The project, or a 404 page; with `mine`, also where somebody else owns it."""
    this = find(g.world.forge.projects, f"/{owner}/{name}")
    return abort(404) if mine and this.owner != ME else this


def complaint(error: str) -> list[Markup]:
    return [text(error)] if error else []


def one_of(name: str, options: tuple[str, ...], default: str) -> str:
    """The option that the visitor chose in the radio group `name`."""
    return typed(name) if typed(name) in options else default


# ---- signing in, dashboard, profile ----


@site.before_request
def guard():
    """Every page but the login form is for a visitor who is logged in."""
    return None if request.endpoint == "gitlab.login" else login_required(lambda: None)()


def sign_in(error: str = "") -> str:
    return login_page(
        field("Username", "user", data_testid="username-field"),
        field("Password", "password", kind="password", data_testid="password-field"),
        "Sign in",
        error,
        data_testid="sign-in-button",
    )


@site.route("/users/sign_in", methods=["GET", "POST"])
def login():
    return try_login(sign_in) if request.method == "POST" else sign_in()


def project_links(projects: list[Project]) -> list[Markup]:
    return grid([link(p.name, p.path) for p in projects]) or [text("No projects")]


@site.get("/")
def home():
    own = [p for p in g.world.forge.projects.values() if p.owner == ME]
    menu = [
        link("Explore", "/explore"),
        link("Starred", f"/users/{ME}/starred"),
        link("My issues", f"/dashboard/issues?assignee_username={ME}"),
        link("My merges", f"/dashboard/merge_requests?assignee_username={ME}"),
        link("Profile", f"/{ME}"),
        link("Edit profile", "/-/profile"),
        link("New project", "/projects/new"),
    ]
    return page("Projects", *grid(menu), *project_links(g.world.listing(own, "home")))


@site.get("/explore")
def explore():
    projects = g.world.listing(g.world.forge.projects.values(), "explore")
    by_stars = request.args.get("sort") == "stars_desc"
    if by_stars:
        projects.sort(key=lambda p: p.stars, reverse=True)
    return page(
        "Most stars first" if by_stars else "Explore",
        link("Sort by stars", "/explore?sort=stars_desc"),
        *project_links(projects),
    )


@site.get(f"/users/{ME}/starred")
def starred():
    return page(
        "Starred",
        block(
            "starred-projects",
            *project_links([p for p in g.world.forge.projects.values() if p.starred]),
        ),
    )


@site.get("/dashboard/<any(issues, merge_requests):kind>")
def assigned(kind: str):
    projects = g.world.forge.projects.values()
    mine = [
        link(i.title, f"{p.path}/-/issues/{i.id}")
        for p in projects
        for i in p.issues.values()
        if i.open and i.assignee == ME
    ]
    if kind == "merge_requests":
        mine = [
            link(m.title, f"{p.path}/-/merge_requests/{m.id}")
            for p in projects
            for m in p.merges.values()
            if not m.merged and m.assignee == ME
        ]
    return page("My issues" if kind == "issues" else "My merges", *mine)


@site.get(f"/{ME}")
def profile():
    return page(
        "Profile",
        pair("User", f"@{ME}"),
        pair("Status", g.world.forge.status, "cover-status"),
        pair("Website", g.world.forge.website, "website"),
        link("Edit profile", "/-/profile"),
        notice=done(),
    )


@site.route("/-/profile", methods=["GET", "POST"])
def edit_profile():
    forge = g.world.forge
    if request.method == "POST":
        forge.status, forge.website = typed("status", 100), typed("website", 100)
        return redirect(f"/{ME}?done=Saved", 303)
    return page(
        "Edit profile",
        form(
            "/-/profile",
            field("Status", "status", forge.status),
            field("Website", "website", forge.website),
            button("Update profile"),
        ),
    )


# ---- projects ----


@site.route("/projects/new", methods=["GET", "POST"])
def new_project():
    projects, name, error = g.world.forge.projects, typed("name", 30), ""
    visibility = one_of("visibility", VISIBILITIES, "Private")
    if request.method == "POST":
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII) and f"/{ME}/{name}" not in projects:
            this = Project(ME, name, typed("about"), visibility, members={ME: "Owner"})
            projects[this.path] = this
            return redirect(this.path, 303)
        error = "Taken, or not one word"
    return page(
        "New project",
        form(
            "/projects/new",
            field("Name", "name", name),
            field("About", "about", typed("about")),
            choice("visibility", list(VISIBILITIES), visibility),
            button("Create project"),
        ),
        *complaint(error),
    )


@site.get("/<owner>/<name>")
def overview(owner: str, name: str):
    this = project(owner, name)
    tools = [form(f"{this.path}/star", button("Unstar" if this.starred else "Star"))]
    links = [
        ("Readme", "-/blob/main/README.md"),
        ("Issues", "-/issues"),
        ("Merges", "-/merge_requests"),
        ("Milestones", "-/milestones"),
        ("Members", "-/project_members"),
        ("Commits", "-/commits/main"),
        ("Contributors", "-/graphs/main"),
    ]
    if this.owner == ME:
        links.append(("Settings", "edit"))
    elif f"/{ME}/{name}" not in g.world.forge.projects:
        tools.append(form(f"{this.path}/-/forks", button("Fork")))
    return page(
        name,
        pair("Owner", this.owner, "owner"),
        text(this.about, "home-panel-description"),
        columns(pair("Stars", this.stars, "star-count"), pair("Forks", this.forks, "fork-count")),
        text(this.visibility, "visibility-icon"),
        *grid(tools),
        *grid([link(label, f"{this.path}/{rest}") for label, rest in links]),
        notice=done(),
    )


@site.post("/<owner>/<name>/star")
def star(owner: str, name: str):
    this = project(owner, name)
    this.starred = not this.starred
    this.stars += 1 if this.starred else -1
    return redirect(f"{this.path}?done={'Starred' if this.starred else 'Unstarred'}", 303)


@site.post("/<owner>/<name>/-/forks")
def fork(owner: str, name: str):
    this, projects = project(owner, name), g.world.forge.projects
    copy = Project(
        ME,
        name,
        this.about,
        this.visibility,
        readme=dict(this.readme),
        commits=list(this.commits),
        members={ME: "Owner"},
    )
    if copy.path not in projects:
        projects[copy.path] = copy
        this.forks += 1
    return redirect(f"{copy.path}?done=Forked", 303)


@site.route("/<owner>/<name>/edit", methods=["GET", "POST"])
def settings(owner: str, name: str):
    this = project(owner, name, mine=True)
    if request.method == "POST":
        this.about, this.visibility = (
            typed("about"),
            one_of("visibility", VISIBILITIES, this.visibility),
        )
        return redirect(f"{this.path}?done=Saved", 303)
    return page(
        "Settings",
        form(
            f"{this.path}/edit",
            field("About", "about", this.about),
            choice("visibility", list(VISIBILITIES), this.visibility),
            button("Save changes"),
        ),
    )


@site.get("/<owner>/<name>/-/blob/main/README.md")
def readme(owner: str, name: str):
    return rows_page(f"Readme of {name}", project(owner, name).readme.items())


@site.get("/<owner>/<name>/-/commits/main")
def commits(owner: str, name: str):
    return rows_page(
        f"Commits to {name}",
        ((message, author) for author, message in project(owner, name).commits),
    )


@site.get("/<owner>/<name>/-/graphs/main")
def contributors(owner: str, name: str):
    counts = project(owner, name).commits_by_author()
    return rows_page(
        f"Contributors of {name}", ((author, f"{n} commits") for author, n in counts.items())
    )


def rows_page(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return page(title, *([pair(*row) for row in rows] or [text("Nothing here yet")]))


@site.route("/<owner>/<name>/-/milestones", methods=["GET", "POST"])
def milestones(owner: str, name: str):
    this = project(owner, name)
    if request.method == "POST":
        if this.owner == ME and typed("title"):
            this.milestones[typed("title", 40)] = typed("due", 20)
        return redirect(f"{this.path}/-/milestones?done=Saved", 303)
    add = form(
        f"{this.path}/-/milestones",
        field("Title", "title"),
        field("Due", "due"),
        button("Create milestone"),
    )
    return page(
        f"{name} milestones",
        *([add] if this.owner == ME else []),
        block("milestones", *(pair(title, due) for title, due in this.milestones.items())),
        notice=done(),
    )


# ---- members ----


def member_row(this: Project, user: str, role: str) -> Markup:
    """A row of GitLab's table of members, with the cells that WebArena's helper reads."""
    name = Markup('<span class="gl-avatar-labeled-sublabel">@{}</span>').format(user)
    if this.owner == ME and user != ME:
        name = Markup('<a class="link" href="{}/-/project_members/{}">{}</a>').format(
            this.path, user, name
        )
    return Markup(
        '<tr class="row pair"><td data-label="Account">{}</td>'
        '<td class="col-max-role"><span>{}</span></td></tr>'
    ).format(name, role)


@site.get("/<owner>/<name>/-/project_members")
def members(owner: str, name: str):
    this = project(owner, name)
    rows = Markup("").join(member_row(this, user, role) for user, role in this.members.items())
    table = Markup(
        '<table style="display:block"><tbody style="display:block">{}</tbody></table>'
    ).format(rows)
    invite = (
        [link("Invite member", f"{this.path}/-/project_members/invite")] if this.owner == ME else []
    )
    return page(f"Members of {name}", *invite, table, notice=done())


@site.route("/<owner>/<name>/-/project_members/invite", methods=["GET", "POST"])
def invite(owner: str, name: str):
    this, user, role = (
        project(owner, name, mine=True),
        typed("user").lstrip("@"),
        one_of("role", ROLES, "Guest"),
    )
    if request.method == "POST" and user in USERS and user not in this.members:
        this.members[user] = role
        return redirect(f"{this.path}/-/project_members?done=Invited", 303)
    return page(
        "Invite member",
        form(
            f"{this.path}/-/project_members/invite",
            field("Username", "user", user),
            choice("role", list(ROLES), role),
            button("Invite"),
        ),
        *complaint("Unknown, or already a member" if request.method == "POST" else ""),
    )


@site.route("/<owner>/<name>/-/project_members/<user>", methods=["GET", "POST"])
def member(owner: str, name: str, user: str):
    this = project(owner, name, mine=True)
    role = find(this.members, user)
    if request.method == "GET" or user == ME:
        return page(
            f"Member {user}",
            form(
                f"{this.path}/-/project_members/{user}",
                choice("role", list(ROLES), role),
                button("Update role", name="do", value="update"),
                button("Remove member", name="do", value="remove"),
            ),
        )
    if typed("do") == "remove":
        del this.members[user]
        return redirect(f"{this.path}/-/project_members?done=Removed", 303)
    this.members[user] = one_of("role", ROLES, role)
    return redirect(f"{this.path}/-/project_members?done=Updated", 303)


# ---- issues and merge requests ----


def discussion(path: str, comments: Comments) -> list[Markup]:
    notes = [
        block("note", pair(author, body, "timeline-discussion-body")) for author, body in comments
    ]
    return [
        form(f"{path}/notes", field("Comment", "note", kind="textarea"), button("Add comment")),
        Markup('<div id="notes-list">{}</div>').format(Markup("").join(notes)),
    ]


@site.post("/<owner>/<name>/-/<any(issues, merge_requests):kind>/<int:id>/notes")
def add_note(owner: str, name: str, kind: str, id: int):
    this = project(owner, name)
    if typed("note"):
        find(this.issues if kind == "issues" else this.merges, id).comments.append(
            (ME, typed("note"))
        )
    return redirect(f"{this.path}/-/{kind}/{id}", 303)


@site.get("/<owner>/<name>/-/issues")
def issues(owner: str, name: str):
    this, path = project(owner, name), f"/{owner}/{name}/-/issues"
    is_open = request.args.get("state") != "closed"
    label = request.args.get("label_name[]", "")[:20]
    shown = [i for i in this.issues.values() if i.open == is_open and label in ("", i.label)]
    state = "opened" if is_open else "closed"  # GitLab's words
    filters = [
        link("Open", f"{path}?state=opened"),
        link("Closed", f"{path}?state=closed"),
        *(link(other, f"{path}?state={state}&label_name%5B%5D={other}") for other in LABELS),
    ]
    return page(
        f"{name} {'open' if is_open else 'closed'} {label or 'issues'}",
        *grid([*filters, link("New issue", f"{path}/new")]),
        *(
            [link(i.title, f"{path}/{i.id}") for i in g.world.listing(shown, path)]
            or [text("No issues")]
        ),
    )


@site.get("/<owner>/<name>/-/issues/<int:id>")
def issue(owner: str, name: str, id: int):
    this, path = find(project(owner, name).issues, id), f"/{owner}/{name}/-/issues/{id}"
    return page(
        this.title,
        pair("Title", this.title, "title"),
        pair("State", "Open" if this.open else "Closed", "state"),
        pair("Author", this.author, "author"),
        pair("Assignee", this.assignee or "nobody", "assignee"),
        pair("Label", this.label or "none", "labels"),
        columns(
            link("Edit issue", f"{path}/edit"),
            form(f"{path}/toggle", button("Close issue" if this.open else "Reopen issue")),
        ),
        *discussion(path, this.comments),
        notice=done(),
    )


@site.post("/<owner>/<name>/-/issues/<int:id>/toggle")
def toggle_issue(owner: str, name: str, id: int):
    this = find(project(owner, name).issues, id)
    this.open = not this.open
    return redirect(
        f"/{owner}/{name}/-/issues/{id}?done={'Reopened' if this.open else 'Closed'}", 303
    )


@site.route("/<owner>/<name>/-/issues/new", methods=["GET", "POST"])
@site.route(
    "/<owner>/<name>/-/issues/<int:id>/edit", methods=["GET", "POST"], endpoint="edit_issue"
)
def write_issue(owner: str, name: str, id: int = 0):
    """The form of a new issue, or of the one with this id."""
    this, error = project(owner, name), ""
    draft = find(this.issues, id) if id else Issue(max(this.issues, default=0) + 1, "", "", ME)
    if request.method == "POST":
        draft = replace(
            draft,
            title=typed("title", 100),
            assignee=typed("assignee").lstrip("@"),
            label=one_of("label", LABELS, draft.label),
        )
        if draft.title and draft.assignee in ("", *USERS):
            this.issues[draft.id] = draft
            return redirect(f"{this.path}/-/issues/{draft.id}", 303)
        error = "Title missing, or unknown user"
    return page(
        "Edit issue" if id else "New issue",
        form(
            f"{this.path}/-/issues/{f'{id}/edit' if id else 'new'}",
            field("Title", "title", draft.title),
            field("Assignee", "assignee", draft.assignee),
            choice("label", list(LABELS), draft.label),
            button("Save issue" if id else "Create issue"),
        ),
        *complaint(error),
    )


@site.get("/<owner>/<name>/-/merge_requests")
def merges(owner: str, name: str):
    this = project(owner, name)
    return page(
        f"Merges of {name}",
        *(
            [link(m.title, f"{this.path}/-/merge_requests/{m.id}") for m in this.merges.values()]
            or [text("No merge requests")]
        ),
    )


@site.get("/<owner>/<name>/-/merge_requests/<int:id>")
def merge_request(owner: str, name: str, id: int):
    this, path = find(project(owner, name).merges, id), f"/{owner}/{name}/-/merge_requests/{id}"
    approve = form(f"{path}/approve", button("Unapprove" if this.approved else "Approve"))
    actions = [] if this.merged else [columns(approve, form(f"{path}/merge", button("Merge")))]
    return page(
        this.title,
        pair("State", "Merged" if this.merged else "Open", "state"),
        pair("Author", this.author, "author"),
        pair("Branch", this.branch, "branch"),
        pair("Approved by", ME if this.approved else "nobody", "approvals"),
        *actions,
        *discussion(path, this.comments),
        notice=done(),
    )


@site.post("/<owner>/<name>/-/merge_requests/<int:id>/<any(approve, merge):what>")
def decide(owner: str, name: str, id: int, what: str):
    this: MergeRequest = find(project(owner, name, mine=True).merges, id)
    if what == "merge":
        this.merged = True
    else:
        this.approved = not this.approved
    word = "Merged" if what == "merge" else "Approved" if this.approved else "Unapproved"
    return redirect(f"/{owner}/{name}/-/merge_requests/{id}?done={word}", 303)
