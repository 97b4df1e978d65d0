"""The code site: projects with issues, merge requests, members, milestones and settings.

Paths, class names and test ids are GitLab's, as WebArena's login, evaluators and helpers expect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from flask import Blueprint, abort, g, request
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
    when,
)
from jhima.pocket.sites.visitor import (
    GET_AND_POST,
    find,
    go_to,
    here,
    login_page,
    one_of,
    require_login,
    typed,
)

site = Blueprint("gitlab", __name__)
require_login(site)

MENU = [
    ("Explore", "/explore"),
    ("Starred", f"/users/{ME}/starred"),
    ("My issues", f"/dashboard/issues?assignee_username={ME}"),
    ("My merges", f"/dashboard/merge_requests?assignee_username={ME}"),
    ("Profile", f"/{ME}"),
    ("Edit profile", "/-/profile"),
    ("New project", "/projects/new"),
]
IN_HEADER = ("Explore", "My issues", "My merges", "Profile")
NAVIGATION["gitlab"] += [(label, href) for label, href in MENU if label in IN_HEADER]


def project(owner: str, name: str) -> Project:
    """The project, or a 404 page."""
    return find(g.world.forge.projects, f"/{owner}/{name}")


def own_project(owner: str, name: str) -> Project:
    """The project, or a 404 page, also where somebody else owns it."""
    this = project(owner, name)
    if this.owner != ME:
        abort(404)
    return this


# ---- signing in, dashboard, profile ----


@site.route("/users/sign_in", methods=GET_AND_POST)
def login():
    return login_page(
        field("Username", "user", data_testid="username-field"),
        field("Password", "password", kind="password", data_testid="password-field"),
        button("Sign in", data_testid="sign-in-button"),
    )


def project_links(projects: Iterable[Project]) -> list[Markup]:
    return grid([link(p.name, p.path) for p in projects]) or [text("No projects")]


@site.get("/")
def home():
    own = [p for p in g.world.forge.projects.values() if p.owner == ME]
    menu = [link(label, href) for label, href in MENU]
    return page("Projects", *grid(menu), *project_links(g.world.listing(own, "home")))


@site.get("/explore")
def explore():
    projects = g.world.listing(g.world.forge.projects.values(), "explore")
    title = "Explore"
    if request.args.get("sort") == "stars_desc":
        projects.sort(key=lambda p: p.stars, reverse=True)
        title = "Most stars first"
    sort = link("Sort by stars", "/explore?sort=stars_desc")
    return page(title, sort, *project_links(projects))


@site.get(f"/users/{ME}/starred")
def starred():
    projects = [p for p in g.world.forge.projects.values() if p.starred]
    return page("Starred", block("starred-projects", *project_links(projects)))


@site.get("/dashboard/issues")
def my_issues():
    links = []
    for p in g.world.forge.projects.values():
        mine = [i for i in p.issues.values() if i.open and i.assignee == ME]
        links += [link(i.title, f"{p.path}/-/issues/{i.id}") for i in mine]
    return page("My issues", *links)


@site.get("/dashboard/merge_requests")
def my_merges():
    links = []
    for p in g.world.forge.projects.values():
        mine = [m for m in p.merges.values() if not m.merged and m.assignee == ME]
        links += [link(m.title, f"{p.path}/-/merge_requests/{m.id}") for m in mine]
    return page("My merges", *links)


@site.get(f"/{ME}")
def profile():
    return page(
        "Profile",
        pair("User", f"@{ME}"),
        pair("Status", g.world.forge.status, "cover-status"),
        pair("Website", g.world.forge.website, "website"),
        link("Edit profile", "/-/profile"),
    )


@site.route("/-/profile", methods=GET_AND_POST)
def edit_profile():
    forge = g.world.forge
    if request.method == "POST":
        forge.status, forge.website = typed("status", 100), typed("website", 100)
        return go_to(f"/{ME}", "Saved")
    fields = (field("Status", "status", forge.status), field("Website", "website", forge.website))
    return page("Edit profile", form(here(), *fields, button("Update profile")))


# ---- projects ----


@site.route("/projects/new", methods=GET_AND_POST)
def new_project():
    projects, name, error = g.world.forge.projects, typed("name", 30), ""
    visibility = one_of("visibility", VISIBILITIES, "Private")
    if request.method == "POST":
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*", name, re.ASCII) and f"/{ME}/{name}" not in projects:
            this = Project(ME, name, typed("about"), visibility, members={ME: "Owner"})
            projects[this.path] = this
            return go_to(this.path)
        error = "Taken, or not one word"
    return page(
        "New project",
        form(
            here(),
            field("Name", "name", name),
            field("About", "about", typed("about")),
            choice("visibility", VISIBILITIES, visibility),
            button("Create project"),
        ),
        *when(error, text(error)),
    )


@site.get("/<owner>/<name>")
def overview(owner: str, name: str):
    this = project(owner, name)
    tools = [form(f"{this.path}/star", button("Unstar" if this.starred else "Star"))]
    links = [
        link("Readme", f"{this.path}/-/blob/main/README.md"),
        link("Issues", f"{this.path}/-/issues"),
        link("Merges", f"{this.path}/-/merge_requests"),
        link("Milestones", f"{this.path}/-/milestones"),
        link("Members", f"{this.path}/-/project_members"),
        link("Commits", f"{this.path}/-/commits/main"),
        link("Contributors", f"{this.path}/-/graphs/main"),
    ]
    if this.owner == ME:
        links.append(link("Settings", f"{this.path}/edit"))
    elif f"/{ME}/{name}" not in g.world.forge.projects:
        tools.append(form(f"{this.path}/-/forks", button("Fork")))
    return page(
        name,
        pair("Owner", this.owner, "owner"),
        text(this.about, "home-panel-description"),
        columns(pair("Stars", this.stars, "star-count"), pair("Forks", this.forks, "fork-count")),
        text(this.visibility, "visibility-icon"),
        *grid(tools),
        *grid(links),
    )


@site.post("/<owner>/<name>/star")
def star(owner: str, name: str):
    this = project(owner, name)
    this.starred = not this.starred
    this.stars += 1 if this.starred else -1
    return go_to(this.path, "Starred" if this.starred else "Unstarred")


@site.post("/<owner>/<name>/-/forks")
def fork(owner: str, name: str):
    this, projects = project(owner, name), g.world.forge.projects
    copy = Project(
        owner=ME,
        name=name,
        about=this.about,
        visibility=this.visibility,
        readme=dict(this.readme),
        commits=list(this.commits),
        members={ME: "Owner"},
    )
    if copy.path not in projects:
        projects[copy.path] = copy
        this.forks += 1
    return go_to(copy.path, "Forked")


@site.route("/<owner>/<name>/edit", methods=GET_AND_POST)
def settings(owner: str, name: str):
    this = own_project(owner, name)
    if request.method == "POST":
        this.about = typed("about")
        this.visibility = one_of("visibility", VISIBILITIES, this.visibility)
        return go_to(this.path, "Saved")
    about = field("About", "about", this.about)
    visibility = choice("visibility", VISIBILITIES, this.visibility)
    return page("Settings", form(f"{this.path}/edit", about, visibility, button("Save changes")))


@site.get("/<owner>/<name>/-/blob/main/README.md")
def readme(owner: str, name: str):
    return rows_page(f"Readme of {name}", project(owner, name).readme.items())


@site.get("/<owner>/<name>/-/commits/main")
def commits(owner: str, name: str):
    rows = [(message, author) for author, message in project(owner, name).commits]
    return rows_page(f"Commits to {name}", rows)


@site.get("/<owner>/<name>/-/graphs/main")
def contributors(owner: str, name: str):
    counts = project(owner, name).commits_by_author()
    rows = [(author, f"{count} commits") for author, count in counts.items()]
    return rows_page(f"Contributors of {name}", rows)


def rows_page(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return page(title, *([pair(*row) for row in rows] or [text("Nothing here yet")]))


@site.route("/<owner>/<name>/-/milestones", methods=GET_AND_POST)
def milestones(owner: str, name: str):
    this = project(owner, name)
    path = f"{this.path}/-/milestones"
    if request.method == "POST":
        if this.owner == ME and typed("title"):
            this.milestones[typed("title", 40)] = typed("due", 20)
        return go_to(path, "Saved")
    fields = (field("Title", "title"), field("Due", "due"))
    return page(
        f"{name} milestones",
        *when(this.owner == ME, form(path, *fields, button("Create milestone"))),
        block("milestones", *(pair(title, due) for title, due in this.milestones.items())),
    )


# ---- members ----


def member_row(this: Project, user: str, role: str) -> Markup:
    """A row of GitLab's table of members, with the cells that WebArena's helper reads."""
    name = Markup('<span class="gl-avatar-labeled-sublabel">@{}</span>').format(user)
    if this.owner == ME and user != ME:
        member_link = Markup('<a class="link" href="{}/-/project_members/{}">{}</a>')
        name = member_link.format(this.path, user, name)
    return Markup(
        '<tr class="row pair"><td data-label="Account">{}</td>'
        '<td class="col-max-role"><span>{}</span></td></tr>'
    ).format(name, role)


@site.get("/<owner>/<name>/-/project_members")
def members(owner: str, name: str):
    this = project(owner, name)
    rows = Markup("").join(member_row(this, user, role) for user, role in this.members.items())
    table = Markup('<table style="display:block"><tbody style="display:block">{}</tbody></table>')
    invite_link = link("Invite member", f"{this.path}/-/project_members/invite")
    return page(f"Members of {name}", *when(this.owner == ME, invite_link), table.format(rows))


@site.route("/<owner>/<name>/-/project_members/invite", methods=GET_AND_POST)
def invite(owner: str, name: str):
    this, error = own_project(owner, name), ""
    user, role = typed("user").lstrip("@"), one_of("role", ROLES, "Guest")
    if request.method == "POST":
        if user in USERS and user not in this.members:
            this.members[user] = role
            return go_to(f"{this.path}/-/project_members", "Invited")
        error = "Unknown, or already a member"
    rows = (field("Username", "user", user), choice("role", ROLES, role), button("Invite"))
    return page("Invite member", form(here(), *rows), *when(error, text(error)))


@site.route("/<owner>/<name>/-/project_members/<user>", methods=GET_AND_POST)
def member(owner: str, name: str, user: str):
    this = own_project(owner, name)
    role = find(this.members, user)
    path = f"{this.path}/-/project_members"
    if request.method == "GET" or user == ME:
        return page(
            f"Member {user}",
            form(
                f"{path}/{user}",
                choice("role", ROLES, role),
                button("Update role", name="do", value="update"),
                button("Remove member", name="do", value="remove"),
            ),
        )
    if typed("do") == "remove":
        del this.members[user]
        return go_to(path, "Removed")
    this.members[user] = one_of("role", ROLES, role)
    return go_to(path, "Updated")


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
        topics = {"issues": this.issues, "merge_requests": this.merges}[kind]
        find(topics, id).comments.append((ME, typed("note")))
    return go_to(f"{this.path}/-/{kind}/{id}")


@site.get("/<owner>/<name>/-/issues")
def issues(owner: str, name: str):
    this, path = project(owner, name), f"/{owner}/{name}/-/issues"
    label = request.args.get("label_name[]", "")[:20]
    word, value = "open", "opened"  # the second is GitLab's word in addresses
    if request.args.get("state") == "closed":
        word = value = "closed"
    is_open = word == "open"
    shown = [i for i in this.issues.values() if i.open == is_open and label in ("", i.label)]
    links = [link(i.title, f"{path}/{i.id}") for i in g.world.listing(shown, path)]
    tools = [
        link("Open", f"{path}?state=opened"),
        link("Closed", f"{path}?state=closed"),
        *(link(other, f"{path}?state={value}&label_name%5B%5D={other}") for other in LABELS),
        link("New issue", f"{path}/new"),
    ]
    return page(f"{name} {word} {label or 'issues'}", *grid(tools), *(links or [text("No issues")]))


@site.get("/<owner>/<name>/-/issues/<int:id>")
def issue(owner: str, name: str, id: int):
    this, path = find(project(owner, name).issues, id), f"/{owner}/{name}/-/issues/{id}"
    toggle = "Close issue" if this.open else "Reopen issue"
    return page(
        this.title,
        pair("Title", this.title, "title"),
        pair("State", this.state, "state"),
        pair("Author", this.author, "author"),
        pair("Assignee", this.assignee or "nobody", "assignee"),
        pair("Label", this.label or "none", "labels"),
        columns(link("Edit issue", f"{path}/edit"), form(f"{path}/toggle", button(toggle))),
        *discussion(path, this.comments),
    )


@site.post("/<owner>/<name>/-/issues/<int:id>/toggle")
def toggle_issue(owner: str, name: str, id: int):
    this = find(project(owner, name).issues, id)
    this.open = not this.open
    return go_to(f"/{owner}/{name}/-/issues/{id}", "Reopened" if this.open else "Closed")


@site.route("/<owner>/<name>/-/issues/new", methods=GET_AND_POST)
def new_issue(owner: str, name: str):
    this = project(owner, name)
    draft = Issue(max(this.issues, default=0) + 1, "", "", ME)
    return write_issue(this, draft, "New issue", "Create issue")


@site.route("/<owner>/<name>/-/issues/<int:id>/edit", methods=GET_AND_POST)
def edit_issue(owner: str, name: str, id: int):
    this = project(owner, name)
    return write_issue(this, find(this.issues, id), "Edit issue", "Save issue")


def write_issue(this: Project, draft: Issue, heading: str, submit: str):
    """The form of an issue and its POST."""
    error = ""
    if request.method == "POST":
        draft = replace(
            draft,
            title=typed("title", 100),
            assignee=typed("assignee").lstrip("@"),
            label=one_of("label", LABELS, draft.label),
        )
        if draft.title and draft.assignee in ("", *USERS):
            this.issues[draft.id] = draft
            return go_to(f"{this.path}/-/issues/{draft.id}")
        error = "Title missing, or unknown user"
    return page(
        heading,
        form(
            here(),
            field("Title", "title", draft.title),
            field("Assignee", "assignee", draft.assignee),
            choice("label", LABELS, draft.label),
            button(submit),
        ),
        *when(error, text(error)),
    )


@site.get("/<owner>/<name>/-/merge_requests")
def merges(owner: str, name: str):
    this = project(owner, name)
    links = [link(m.title, f"{this.path}/-/merge_requests/{m.id}") for m in this.merges.values()]
    return page(f"Merges of {name}", *(links or [text("No merge requests")]))


@site.get("/<owner>/<name>/-/merge_requests/<int:id>")
def merge_request(owner: str, name: str, id: int):
    this, path = find(project(owner, name).merges, id), f"/{owner}/{name}/-/merge_requests/{id}"
    approve = form(f"{path}/approve", button("Unapprove" if this.approved else "Approve"))
    merge = form(f"{path}/merge", button("Merge"))
    return page(
        this.title,
        pair("State", this.state, "state"),
        pair("Author", this.author, "author"),
        pair("Branch", this.branch, "branch"),
        pair("Approved by", ME if this.approved else "nobody", "approvals"),
        *when(not this.merged, columns(approve, merge)),
        *discussion(path, this.comments),
    )


def own_merge(owner: str, name: str, id: int) -> MergeRequest:
    return find(own_project(owner, name).merges, id)


@site.post("/<owner>/<name>/-/merge_requests/<int:id>/approve")
def approve(owner: str, name: str, id: int):
    this = own_merge(owner, name, id)
    this.approved = not this.approved
    done = "Approved" if this.approved else "Unapproved"
    return go_to(f"/{owner}/{name}/-/merge_requests/{id}", done)


@site.post("/<owner>/<name>/-/merge_requests/<int:id>/merge")
def merge(owner: str, name: str, id: int):
    own_merge(owner, name, id).merged = True
    return go_to(f"/{owner}/{name}/-/merge_requests/{id}", "Merged")
