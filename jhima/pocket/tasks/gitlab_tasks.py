"""Task templates of the code site."""

from __future__ import annotations

from functools import partial
from itertools import product

from jhima.pocket.sites.gitlab_data import (
    LABELS,
    ME,
    ROLES,
    USERS,
    Issue,
    MergeRequest,
    Project,
    fresh,
)
from jhima.pocket.tasks import intents
from jhima.pocket.tasks.intents import (
    Solution,
    Subtask,
    Write,
    answer,
    html,
    one_each,
    solution,
    step,
    string,
    string_and_url,
    target,
    url,
    url_and_html,
)

template = partial(intents.template, "gitlab")

PROJECTS = {p.name: p for p in fresh(full=False).projects.values()}  # names are unique
OWN = [p for p in PROJECTS.values() if p.owner == ME]
OTHERS = [p for p in PROJECTS.values() if p.owner != ME]
PEOPLE = [user for user in USERS if user != ME]

ISSUES: dict[str, tuple[Project, Issue]] = {}  # by title, which is unique
MERGES: dict[str, tuple[Project, MergeRequest]] = {}
MEMBERS: list[tuple[Project, str, str]] = []  # project, user, role
for _project in OWN:
    ISSUES |= {issue.title: (_project, issue) for issue in _project.issues.values()}
    MERGES |= {merge.title: (_project, merge) for merge in _project.merges.values()}
    MEMBERS += [(_project, user, role) for user, role in _project.members.items()]

OPEN_ISSUES = [{"project": p.name, "title": title} for title, (p, i) in ISSUES.items() if i.open]
MERGE_TITLES = [{"project": p.name, "title": title} for title, (p, _merge) in MERGES.items()]
WORDS = ["hello", "great", "thanks", "agreed", "why", "wow", "maybe"]

LAST_NOTE = (
    "document.querySelector('[id=\"notes-list\"]').lastElementChild"
    ".querySelector('.timeline-discussion-body').outerText"
)


def issue_url(title: str) -> str:
    p, issue = ISSUES[title]
    return f"__GITLAB__{p.path}/-/issues/{issue.id}"


def merge_url(title: str) -> str:
    p, merge = MERGES[title]
    return f"__GITLAB__{p.path}/-/merge_requests/{merge.id}"


# ---- what a page holds afterwards ----


def shows(cls: str, page: str, value: str) -> dict:
    """The element of this class on the page holds exactly the value."""
    return target(page, f"document.querySelector('.{cls}').outerText", exact_match=value)


def has_role(project: str, user: str, role: str) -> dict:
    return target(
        f"__GITLAB__/{ME}/{project}/-/project_members",
        f"func:gitlab_get_project_memeber_role(__page__, '{user}')",
        must_include=[role],
    )


# ---- parts of plans ----


def open_project(name: str) -> Subtask:
    moves = [name]
    if PROJECTS[name].owner != ME:
        moves = ["Explore", name]
    return step(f"Open {name}", f"The project {name} is shown", *moves)


def open_issue(title: str) -> tuple[Subtask, Subtask]:
    p, issue = ISSUES[title]
    moves = ["Issues", title]
    if not issue.open:
        moves = ["Issues", "Closed", title]
    return (
        open_project(p.name),
        step(f"Open {title}", f"The issue {title} is shown", *moves),
    )


def open_merge(title: str) -> tuple[Subtask, Subtask]:
    p, _merge = MERGES[title]
    return (
        open_project(p.name),
        step(f"Open {title}", f"The request {title} is shown", "Merges", title),
    )


def comment(word: str) -> Subtask:
    moves = (Write("Comment", word), "Add comment")
    return step(f"Comment {word}", "The comment is shown", *moves)


def invite_member(user: str, role: str) -> Subtask:
    moves = ("Members", "Invite member", Write("Username", user), role, "Invite")
    return step(f"Invite {user} as {role}", f"{user} is a member", *moves)


# ---- look up ----


@template("How many stars does the project {project} have?", one_each("project", PROJECTS))
def stars(project: str) -> Solution:
    count = str(PROJECTS[project].stars)
    return solution(
        open_project(project),
        answer("stars", count),
        eval=string(must_include=[count]),
    )


README_LINES = ("license", "version", "language")


@template(
    "What is the {what} of the project {project} according to its readme?",
    [{"project": name, "what": what} for name, what in product(PROJECTS, README_LINES)],
)
def readme(project: str, what: str) -> Solution:
    value = PROJECTS[project].readme[what.title()]
    return solution(
        open_project(project),
        step("Open the readme", "The readme is shown", "Readme"),
        answer(what, value),
        eval=string(exact_match=value),
    )


@template("Open the issue {title} of the project {project}.", OPEN_ISSUES)
def show_issue(project: str, title: str) -> Solution:
    return solution(*open_issue(title), eval=url(issue_url(title), exact=True))


@template("Who reported the issue {title} of {project}? Leave its page open.", OPEN_ISSUES)
def reporter(project: str, title: str) -> Solution:
    author = ISSUES[title][1].author
    return solution(
        *open_issue(title),
        answer("author", author),
        eval=string_and_url(issue_url(title), exact_match=author),
    )


# ---- issues ----

FILTERS = [("open", label) for label in LABELS] + [("closed", LABELS[0])]


@template(
    "Show the {state} issues of {project} with the label {label}.",
    [
        {"project": p.name, "state": state, "label": label}
        for p, (state, label) in product(OWN, FILTERS)
    ],
)
def filter_issues(project: str, state: str, label: str) -> Solution:
    moves, value = ["Issues"], "opened"
    if state == "closed":
        moves, value = ["Issues", "Closed"], "closed"
    return solution(
        open_project(project),
        step("Open the issues", f"The {state} issues are shown", *moves),
        step(f"Filter by {label}", f"The {label} issues are shown", label),
        eval=url(f"__GITLAB__/{ME}/{project}/-/issues?state={value}&label_name%5B%5D={label}"),
    )


NEW_TITLES = ("Smoke", "Speed", "Search", "Timeout")


@template(
    "Create the issue {title} with the label {label} in {project} and assign it to {user}.",
    [
        {
            "project": p.name,
            "title": title,
            "label": LABELS[(i + j) % 3],
            "user": PEOPLE[(2 * i + j) % 7],
        }
        for (i, p), (j, title) in product(enumerate(OWN), enumerate(NEW_TITLES))
    ],
)
def new_issue(project: str, title: str, label: str, user: str) -> Solution:
    moves = (Write("Title", title), Write("Assignee", user), label, "Create issue")
    return solution(
        open_project(project),
        step("Open a new issue", "The form is shown", "Issues", "New issue"),
        step(f"Create {title}", "The issue is shown", *moves),
        eval=url_and_html(
            f"__GITLAB__/{ME}/{project}/-/issues",
            shows("title", "last", title),
            shows("labels", "last", label),
            shows("assignee", "last", user),
        ),
    )


@template("Close the issue {title} of the project {project}.", OPEN_ISSUES)
def close_issue(project: str, title: str) -> Solution:
    return solution(
        *open_issue(title),
        step("Close it", "The state is Closed", "Close issue"),
        eval=html(shows("state", issue_url(title), "Closed")),
    )


@template(
    "Close the issue {title} that is assigned to me.",
    one_each("title", [t for t, (_project, i) in ISSUES.items() if i.open and i.assignee == ME]),
)
def close_mine(title: str) -> Solution:
    return solution(
        step("Open My issues", "My issues are shown", "My issues"),
        step(f"Close {title}", "The state is Closed", title, "Close issue"),
        eval=html(shows("state", issue_url(title), "Closed")),
    )


ASSIGNMENTS = [value | {"user": PEOPLE[(i + 4) % 7]} for i, value in enumerate(OPEN_ISSUES)]


@template(
    "Assign the issue {title} of {project} to {user}.",
    [value for value in ASSIGNMENTS if ISSUES[value["title"]][1].assignee != value["user"]],
)
def assign(project: str, title: str, user: str) -> Solution:
    moves = ("Edit issue", Write("Assignee", user), "Save issue")
    return solution(
        *open_issue(title),
        step(f"Assign {user}", f"{user} is the assignee", *moves),
        eval=html(shows("assignee", issue_url(title), user)),
    )


@template(
    "Comment {word} on the issue {title} of {project}.",
    [value | {"word": WORDS[i % 7]} for i, value in enumerate(OPEN_ISSUES)],
)
def comment_issue(project: str, title: str, word: str) -> Solution:
    return solution(
        *open_issue(title),
        comment(word),
        eval=url_and_html(issue_url(title), target("last", LAST_NOTE, exact_match=word)),
    )


@template("Approve and merge the merge request {title} of {project}.", MERGE_TITLES)
def merge(project: str, title: str) -> Solution:
    page = merge_url(title)
    return solution(
        *open_merge(title),
        step("Approve it", "It is approved", "Approve"),
        step("Merge it", "The state is Merged", "Merge"),
        eval=html(shows("state", page, "Merged"), shows("approvals", page, ME)),
    )


# ---- members ----


@template(
    "Invite {user} to the project {project} as {role}.",
    [
        {"project": p.name, "user": user, "role": ROLES[(i + j) % 3]}
        for (i, p), (j, user) in product(enumerate(OWN), enumerate(PEOPLE))
        if user not in p.members
    ],
)
def invite(project: str, user: str, role: str) -> Solution:
    return solution(
        open_project(project),
        invite_member(user, role),
        eval=html(has_role(project, user, role)),
    )


def other_role(role: str) -> str:
    return ROLES[(ROLES.index(role) + 2) % 4]


@template(
    "Change the role of {user} in {project} to {role}.",
    [
        {"project": p.name, "user": user, "role": other_role(role)}
        for p, user, role in MEMBERS
        if user != ME
    ],
)
def change_role(project: str, user: str, role: str) -> Solution:
    return solution(
        open_project(project),
        step(f"Open {user}", "The role is shown", "Members", f"@{user}"),
        step(f"Set {role}", "The new role is shown", role, "Update role"),
        eval=html(has_role(project, user, role)),
    )


@template(
    "Which users besides me are members of {project}?", one_each("project", [p.name for p in OWN])
)
def list_members(project: str) -> Solution:
    users = [user for user in PROJECTS[project].members if user != ME]
    return solution(
        open_project(project),
        step("Open the members", "The members are shown", "Members"),
        answer("members", " and ".join(users)),
        eval=string(must_include=users, must_exclude=[ME]),
    )


# ---- projects and profile ----


def contributors() -> list[dict]:
    values = []
    for p in PROJECTS.values():
        values += [{"project": p.name, "user": user} for user in p.commits_by_author()]
    return values


@template("How many commits did {user} make to {project}?", contributors())
def count_commits(project: str, user: str) -> Solution:
    count = f"{PROJECTS[project].commits_by_author()[user]} commits"
    return solution(
        open_project(project),
        step("Open the contributors", "The counts are shown", "Contributors"),
        answer("commits", count),
        eval=string(fuzzy_match=[count]),
    )


@template(
    "Star the project {project}.",
    one_each("project", [p.name for p in PROJECTS.values() if not p.starred]),
)
def star(project: str) -> Solution:
    starred = "document.querySelector('.starred-projects').outerText"
    return solution(
        open_project(project),
        step("Star it", "The project is starred", "Star"),
        eval=html(target(f"__GITLAB__/users/{ME}/starred", starred, must_include=[project])),
    )


@template(
    "Fork the project {project} of {owner}.",
    [{"project": p.name, "owner": p.owner} for p in OTHERS],
)
def fork(project: str, owner: str) -> Solution:
    return solution(
        open_project(project),
        step("Fork it", "My copy is shown", "Fork"),
        eval=url_and_html(f"__GITLAB__/{ME}/{project}", shows("owner", "last", ME)),
    )


# fmt: off
PROFILES = [
    ("Busy", "byte.org"), ("Away", "blaze.net"), ("Happy", "code.dev"), ("Tired", "bits.info"),
    ("Coding", "fire.com"), ("Asleep", "moon.org"), ("Traveling", "road.net"),
    ("Reading", "book.dev"),
]
# fmt: on


@template(
    "Set my status to {status} and my website to {website}.",
    [{"status": status, "website": website} for status, website in PROFILES],
)
def set_status(status: str, website: str) -> Solution:
    moves = (Write("Status", status), Write("Website", website), "Update profile")
    page = f"__GITLAB__/{ME}"
    cover = "document.querySelector('.cover-status').lastChild.textContent"
    return solution(
        step("Open Edit profile", "The form is shown", "Edit profile"),
        step(f"Set {status} and {website}", "The profile is saved", *moves),
        eval=html(target(page, cover, exact_match=status), shows("website", page, website)),
    )


ABOUTS = {"Public": "open work", "Internal": "shared work", "Private": "secret work"}


@template(
    "Make the project {project} {visibility} and describe it as {about}.",
    [
        {"project": p.name, "visibility": visibility, "about": ABOUTS[visibility]}
        for p, visibility in product(OWN, ABOUTS)
        if visibility != p.visibility
    ],
)
def settings(project: str, visibility: str, about: str) -> Solution:
    page = f"__GITLAB__/{ME}/{project}"
    moves = (Write("About", about), visibility, "Save changes")
    return solution(
        open_project(project),
        step("Open Settings", "The settings are shown", "Settings"),
        step(f"Set {visibility}", "The settings are saved", *moves),
        eval=html(
            shows("visibility-icon", page, visibility),
            shows("home-panel-description", page, about),
        ),
    )


# fmt: off
NEW_NAMES = [
    "hammer", "bridge", "mountain", "planet", "engine", "castle",
    "tunnel", "window", "pillow", "bottle", "button", "ticket",
]
# fmt: on


@template(
    "Create a {visibility} project named {name} and add {user} as {role}.",
    [
        {
            "name": name,
            "visibility": ("Public", "Private")[i % 2],
            "user": PEOPLE[i % 7],
            "role": ROLES[i % 4],
        }
        for i, name in enumerate(NEW_NAMES)
    ],
)
def new_project(name: str, visibility: str, user: str, role: str) -> Solution:
    moves = (Write("Name", name), visibility, "Create project")
    return solution(
        step("Open New project", "The form is shown", "New project"),
        step(f"Create {name}", "The project is shown", *moves),
        invite_member(user, role),
        eval=html(
            shows("visibility-icon", f"__GITLAB__/{ME}/{name}", visibility),
            has_role(name, user, role),
        ),
    )


def top_contributor(project: Project) -> str:
    return next(iter(project.commits_by_author()))


@template(
    "Find who made the most commits to {source} and invite them to {project} as {role}.",
    [
        {"source": source.name, "project": p.name, "role": ROLES[(i + j) % 3]}
        for (i, source), (j, p) in product(enumerate(OTHERS), enumerate(OWN))
        if top_contributor(source) not in p.members
    ],
)
def invite_best(source: str, project: str, role: str) -> Solution:
    user = top_contributor(PROJECTS[source])
    return solution(
        open_project(source),
        step("Open the contributors", "The first has most", "Contributors"),
        step("Go home", "My projects are shown", "Code"),
        open_project(project),
        invite_member(user, role),
        eval=html(has_role(project, user, role)),
    )


# ---- held out ----


@template(
    "Reopen the closed issue {title} of {project}.",
    [{"project": p.name, "title": title} for title, (p, i) in ISSUES.items() if not i.open],
    held_out=True,
)
def reopen_issue(project: str, title: str) -> Solution:
    return solution(
        *open_issue(title),
        step("Reopen it", "The state is Open", "Reopen issue"),
        eval=html(shows("state", issue_url(title), "Open")),
    )


@template(
    "Go to the merge request {title} of {project} and mention its author in a comment.",
    MERGE_TITLES,
    held_out=True,
)
def mention_author(project: str, title: str) -> Solution:
    mention = f"@{MERGES[title][1].author}"
    return solution(
        *open_merge(title),
        comment(mention),
        eval=html(target(merge_url(title), LAST_NOTE, exact_match=mention)),
    )


NEW_MILESTONES = (("v3", "July 4"), ("beta", "May 9"))


@template(
    "Create the milestone {title} with the due date {due} in {project}.",
    [
        {"project": p.name, "title": title, "due": due}
        for p, (title, due) in product(OWN, NEW_MILESTONES)
    ],
    held_out=True,
)
def new_milestone(project: str, title: str, due: str) -> Solution:
    moves = (Write("Title", title), Write("Due", due), "Create milestone")
    page = f"__GITLAB__/{ME}/{project}/-/milestones"
    milestones = "document.querySelector('.milestones').innerText"
    return solution(
        open_project(project),
        step("Open the milestones", "The milestones are shown", "Milestones"),
        step(f"Create {title}", "The milestone is shown", *moves),
        eval=html(target(page, milestones, must_include=[title, due])),
    )
