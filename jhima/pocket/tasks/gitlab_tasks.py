"""What one can ask of the code site."""

from __future__ import annotations

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
from jhima.pocket.tasks.intents import (
    Answer,
    Click,
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

PROJECTS = {p.name: p for p in fresh(full=False).projects.values()}  # names are unique


OWN = [p for p in PROJECTS.values() if p.owner == ME]


OTHERS = [p for p in PROJECTS.values() if p.owner != ME]


PEOPLE = [user for user in USERS if user != ME]


ISSUES: list[tuple[Project, Issue]] = [(p, i) for p in OWN for i in p.issues.values()]


MERGES: list[tuple[Project, MergeRequest]] = [(p, m) for p in OWN for m in p.merges.values()]


OPEN_ISSUES = [{"project": p.name, "title": i.title} for p, i in ISSUES if i.open]


MERGE_TITLES = [{"project": p.name, "title": m.title} for p, m in MERGES]


WORDS = ["hello", "great", "thanks", "agreed", "why", "wow", "maybe"]


LAST_NOTE = (
    "document.querySelector('[id=\"notes-list\"]').lastElementChild"
    ".querySelector('.timeline-discussion-body').outerText"
)


def issue_named(title: str) -> tuple[Project, Issue]:
    return next((p, i) for p, i in ISSUES if i.title == title)


def merge_named(title: str) -> tuple[Project, MergeRequest]:
    return next((p, m) for p, m in MERGES if m.title == title)


def issue_url(title: str) -> str:
    p, i = issue_named(title)
    return f"__GITLAB__{p.path}/-/issues/{i.id}"


def merge_url(title: str) -> str:
    p, m = merge_named(title)
    return f"__GITLAB__{p.path}/-/merge_requests/{m.id}"


def shows(cls: str, page: str, value: str) -> dict:
    """The element of this class on the page holds exactly the value."""
    return target(page, f"document.querySelector('.{cls}').outerText", exact_match=value)


def has_role(project: str, user: str, role: str) -> dict:
    return target(
        f"__GITLAB__/{ME}/{project}/-/project_members",
        f"func:gitlab_get_project_memeber_role(__page__, '{user}')",
        must_include=[role],
    )


def open_project(name: str) -> Subtask:
    listed = () if PROJECTS[name].owner == ME else (Click("Explore"),)
    return step(f"Open {name}", f"The project {name} is shown", *listed, Click(name))


def open_issue(title: str) -> tuple[Subtask, Subtask]:
    p, i = issue_named(title)
    return (
        open_project(p.name),
        step(
            f"Open {title}",
            f"The issue {title} is shown",
            Click("Issues"),
            *(() if i.open else (Click("Closed"),)),
            Click(title),
        ),
    )


def open_merge(title: str) -> tuple[Subtask, Subtask]:
    p, _m = merge_named(title)
    return open_project(p.name), step(
        f"Open {title}", f"The request {title} is shown", Click("Merges"), Click(title)
    )


def comment(word: str) -> Subtask:
    return step(
        f"Comment {word}", "The comment is shown", Write("Comment", word), Click("Add comment")
    )


def invite_member(user: str, role: str) -> Subtask:
    return step(
        f"Invite {user} as {role}",
        f"{user} is a member",
        Click("Members"),
        Click("Invite member"),
        Write("Username", user),
        Click(role),
        Click("Invite"),
    )


def answer(what: str, value: str) -> Subtask:
    return step(f"Answer with the {what}", f"The {what} is given", Answer(value))


@template(
    "gitlab",
    "How many stars does the project {project} have?",
    [{"project": name} for name in PROJECTS],
)
def stars(project: str) -> Solution:
    count = str(PROJECTS[project].stars)
    return Solution((open_project(project), answer("stars", count)), string(must_include=[count]))


@template(
    "gitlab",
    "What is the {what} of the project {project} according to its readme?",
    [
        {"project": name, "what": what}
        for name in PROJECTS
        for what in ("license", "version", "language")
    ],
)
def readme(project: str, what: str) -> Solution:
    value = PROJECTS[project].readme[what.title()]
    return Solution(
        (
            open_project(project),
            step("Open the readme", "The readme is shown", Click("Readme")),
            answer(what, value),
        ),
        string(exact_match=value),
    )


@template("gitlab", "Open the issue {title} of the project {project}.", OPEN_ISSUES)
def show_issue(project: str, title: str) -> Solution:
    return Solution(open_issue(title), url(issue_url(title), exact=True))


@template(
    "gitlab", "Who reported the issue {title} of {project}? Leave its page open.", OPEN_ISSUES
)
def reporter(project: str, title: str) -> Solution:
    who = issue_named(title)[1].author
    return Solution(
        (*open_issue(title), answer("author", who)),
        string_and_url(issue_url(title), exact_match=who),
    )


@template(
    "gitlab",
    "Show the {state} issues of {project} with the label {label}.",
    [
        {"project": p.name, "state": state, "label": label}
        for p in OWN
        for state, labels in (("open", LABELS), ("closed", LABELS[:1]))
        for label in labels
    ],
)
def filter_issues(project: str, state: str, label: str) -> Solution:
    closed = (Click("Closed"),) if state == "closed" else ()
    value = "closed" if closed else "opened"
    return Solution(
        (
            open_project(project),
            step("Open the issues", f"The {state} issues are shown", Click("Issues"), *closed),
            step(f"Filter by {label}", f"The {label} issues are shown", Click(label)),
        ),
        url(f"__GITLAB__/{ME}/{project}/-/issues?state={value}&label_name%5B%5D={label}"),
    )


@template(
    "gitlab",
    "Create the issue {title} with the label {label} in {project} and assign it to {user}.",
    [
        {
            "project": p.name,
            "title": title,
            "label": LABELS[(i + j) % 3],
            "user": PEOPLE[(2 * i + j) % 7],
        }
        for i, p in enumerate(OWN)
        for j, title in enumerate(("Smoke", "Speed", "Search", "Timeout"))
    ],
)
def new_issue(project: str, title: str, label: str, user: str) -> Solution:
    return Solution(
        (
            open_project(project),
            step("Open a new issue", "The form is shown", Click("Issues"), Click("New issue")),
            step(
                f"Create {title}",
                "The issue is shown",
                Write("Title", title),
                Write("Assignee", user),
                Click(label),
                Click("Create issue"),
            ),
        ),
        url_and_html(
            f"__GITLAB__/{ME}/{project}/-/issues",
            shows("title", "last", title),
            shows("labels", "last", label),
            shows("assignee", "last", user),
        ),
    )


@template("gitlab", "Close the issue {title} of the project {project}.", OPEN_ISSUES)
def close_issue(project: str, title: str) -> Solution:
    return Solution(
        (*open_issue(title), step("Close it", "The state is Closed", Click("Close issue"))),
        html(shows("state", issue_url(title), "Closed")),
    )


@template(
    "gitlab",
    "Close the issue {title} that is assigned to me.",
    [{"title": i.title} for _p, i in ISSUES if i.open and i.assignee == ME],
)
def close_mine(title: str) -> Solution:
    return Solution(
        (
            step("Open My issues", "My issues are shown", Click("My issues")),
            step(f"Close {title}", "The state is Closed", Click(title), Click("Close issue")),
        ),
        html(shows("state", issue_url(title), "Closed")),
    )


@template(
    "gitlab",
    "Assign the issue {title} of {project} to {user}.",
    [
        v | {"user": PEOPLE[(i + 4) % 7]}
        for i, v in enumerate(OPEN_ISSUES)
        if issue_named(v["title"])[1].assignee != PEOPLE[(i + 4) % 7]
    ],
)
def assign(project: str, title: str, user: str) -> Solution:
    return Solution(
        (
            *open_issue(title),
            step(
                f"Assign {user}",
                f"{user} is the assignee",
                Click("Edit issue"),
                Write("Assignee", user),
                Click("Save issue"),
            ),
        ),
        html(shows("assignee", issue_url(title), user)),
    )


@template(
    "gitlab",
    "Comment {word} on the issue {title} of {project}.",
    [v | {"word": WORDS[i % 7]} for i, v in enumerate(OPEN_ISSUES)],
)
def comment_issue(project: str, title: str, word: str) -> Solution:
    return Solution(
        (*open_issue(title), comment(word)),
        url_and_html(issue_url(title), target("last", LAST_NOTE, exact_match=word)),
    )


@template("gitlab", "Approve and merge the merge request {title} of {project}.", MERGE_TITLES)
def merge(project: str, title: str) -> Solution:
    return Solution(
        (
            *open_merge(title),
            step("Approve it", "It is approved", Click("Approve")),
            step("Merge it", "The state is Merged", Click("Merge")),
        ),
        html(shows("state", merge_url(title), "Merged"), shows("approvals", merge_url(title), ME)),
    )


@template(
    "gitlab",
    "Invite {user} to the project {project} as {role}.",
    [
        {"project": p.name, "user": user, "role": ROLES[(i + j) % 3]}
        for i, p in enumerate(OWN)
        for j, user in enumerate(PEOPLE)
        if user not in p.members
    ],
)
def invite(project: str, user: str, role: str) -> Solution:
    return Solution(
        (open_project(project), invite_member(user, role)), html(has_role(project, user, role))
    )


@template(
    "gitlab",
    "Change the role of {user} in {project} to {role}.",
    [
        {"project": p.name, "user": user, "role": ROLES[(ROLES.index(old) + 2) % 4]}
        for p in OWN
        for user, old in p.members.items()
        if user != ME
    ],
)
def change_role(project: str, user: str, role: str) -> Solution:
    return Solution(
        (
            open_project(project),
            step(f"Open {user}", "The role is shown", Click("Members"), Click(f"@{user}")),
            step(f"Set {role}", "The new role is shown", Click(role), Click("Update role")),
        ),
        html(has_role(project, user, role)),
    )


@template(
    "gitlab", "Which users besides me are members of {project}?", [{"project": p.name} for p in OWN]
)
def list_members(project: str) -> Solution:
    users = [user for user in PROJECTS[project].members if user != ME]
    return Solution(
        (
            open_project(project),
            step("Open the members", "The members are shown", Click("Members")),
            answer("members", " and ".join(users)),
        ),
        string(must_include=users, must_exclude=[ME]),
    )


@template(
    "gitlab",
    "How many commits did {user} make to {project}?",
    [
        {"project": p.name, "user": user}
        for p in PROJECTS.values()
        for user in p.commits_by_author()
    ],
)
def count_commits(project: str, user: str) -> Solution:
    count = f"{PROJECTS[project].commits_by_author()[user]} commits"
    return Solution(
        (
            open_project(project),
            step("Open the contributors", "The counts are shown", Click("Contributors")),
            answer("commits", count),
        ),
        string(fuzzy_match=[count]),
    )


@template(
    "gitlab",
    "Star the project {project}.",
    [{"project": p.name} for p in PROJECTS.values() if not p.starred],
)
def star(project: str) -> Solution:
    return Solution(
        (open_project(project), step("Star it", "The project is starred", Click("Star"))),
        html(
            target(
                f"__GITLAB__/users/{ME}/starred",
                "document.querySelector('.starred-projects').outerText",
                must_include=[project],
            )
        ),
    )


@template(
    "gitlab",
    "Fork the project {project} of {owner}.",
    [{"project": p.name, "owner": p.owner} for p in OTHERS],
)
def fork(project: str, owner: str) -> Solution:
    return Solution(
        (open_project(project), step("Fork it", "My copy is shown", Click("Fork"))),
        url_and_html(f"__GITLAB__/{ME}/{project}", shows("owner", "last", ME)),
    )


@template(
    "gitlab",
    "Set my status to {status} and my website to {website}.",
    [
        {"status": status, "website": website}
        for status, website in zip(
            ("Busy", "Away", "Happy", "Tired", "Coding", "Asleep", "Traveling", "Reading"),
            (
                "byte.org",
                "blaze.net",
                "code.dev",
                "bits.info",
                "fire.com",
                "moon.org",
                "road.net",
                "book.dev",
            ),
        )
    ],
)
def set_status(status: str, website: str) -> Solution:
    return Solution(
        (
            step("Open Edit profile", "The form is shown", Click("Edit profile")),
            step(
                f"Set {status} and {website}",
                "The profile is saved",
                Write("Status", status),
                Write("Website", website),
                Click("Update profile"),
            ),
        ),
        html(
            target(
                f"__GITLAB__/{ME}",
                "document.querySelector('.cover-status').lastChild.textContent",
                exact_match=status,
            ),
            shows("website", f"__GITLAB__/{ME}", website),
        ),
    )


@template(
    "gitlab",
    "Make the project {project} {visibility} and describe it as {about}.",
    [
        {"project": p.name, "visibility": visibility, "about": about}
        for p in OWN
        for visibility, about in (
            ("Public", "open work"),
            ("Internal", "shared work"),
            ("Private", "secret work"),
        )
        if visibility != p.visibility
    ],
)
def settings(project: str, visibility: str, about: str) -> Solution:
    page = f"__GITLAB__/{ME}/{project}"
    return Solution(
        (
            open_project(project),
            step("Open Settings", "The settings are shown", Click("Settings")),
            step(
                f"Set {visibility}",
                "The settings are saved",
                Write("About", about),
                Click(visibility),
                Click("Save changes"),
            ),
        ),
        html(
            shows("visibility-icon", page, visibility), shows("home-panel-description", page, about)
        ),
    )


@template(
    "gitlab",
    "Create a {visibility} project named {name} and add {user} as {role}.",
    [
        {
            "name": name,
            "visibility": ("Public", "Private")[i % 2],
            "user": PEOPLE[i % 7],
            "role": ROLES[i % 4],
        }
        for i, name in enumerate(
            (
                "hammer",
                "bridge",
                "mountain",
                "planet",
                "engine",
                "castle",
                "tunnel",
                "window",
                "pillow",
                "bottle",
                "button",
                "ticket",
            )
        )
    ],
)
def new_project(name: str, visibility: str, user: str, role: str) -> Solution:
    return Solution(
        (
            step("Open New project", "The form is shown", Click("New project")),
            step(
                f"Create {name}",
                "The project is shown",
                Write("Name", name),
                Click(visibility),
                Click("Create project"),
            ),
            invite_member(user, role),
        ),
        html(
            shows("visibility-icon", f"__GITLAB__/{ME}/{name}", visibility),
            has_role(name, user, role),
        ),
    )


@template(
    "gitlab",
    "Find who made the most commits to {source} and invite them to {project} as {role}.",
    [
        {"source": source.name, "project": p.name, "role": ROLES[(i + j) % 3]}
        for i, source in enumerate(OTHERS)
        for j, p in enumerate(OWN)
        if next(iter(source.commits_by_author())) not in p.members
    ],
)
def invite_best(source: str, project: str, role: str) -> Solution:
    user = next(iter(PROJECTS[source].commits_by_author()))
    return Solution(
        (
            open_project(source),
            step("Open the contributors", "The first has most", Click("Contributors")),
            step("Go home", "My projects are shown", Click("Code")),
            open_project(project),
            invite_member(user, role),
        ),
        html(has_role(project, user, role)),
    )


@template(
    "gitlab",
    "Reopen the closed issue {title} of {project}.",
    [{"project": p.name, "title": i.title} for p, i in ISSUES if not i.open],
    held_out=True,
)
def reopen_issue(project: str, title: str) -> Solution:
    return Solution(
        (*open_issue(title), step("Reopen it", "The state is Open", Click("Reopen issue"))),
        html(shows("state", issue_url(title), "Open")),
    )


@template(
    "gitlab",
    "Go to the merge request {title} of {project} and mention its author in a comment.",
    MERGE_TITLES,
    held_out=True,
)
def mention_author(project: str, title: str) -> Solution:
    author = merge_named(title)[1].author
    return Solution(
        (*open_merge(title), comment(f"@{author}")),
        html(target(merge_url(title), LAST_NOTE, exact_match=f"@{author}")),
    )


@template(
    "gitlab",
    "Create the milestone {title} with the due date {due} in {project}.",
    [
        {"project": p.name, "title": title, "due": due}
        for p in OWN
        for title, due in (("v3", "July 4"), ("beta", "May 9"))
    ],
    held_out=True,
)
def new_milestone(project: str, title: str, due: str) -> Solution:
    return Solution(
        (
            open_project(project),
            step("Open the milestones", "The milestones are shown", Click("Milestones")),
            step(
                f"Create {title}",
                "The milestone is shown",
                Write("Title", title),
                Write("Due", due),
                Click("Create milestone"),
            ),
        ),
        html(
            target(
                f"__GITLAB__/{ME}/{project}/-/milestones",
                "document.querySelector('.milestones').innerText",
                must_include=[title, due],
            )
        ),
    )


TEMPLATES = [
    stars,
    readme,
    show_issue,
    reporter,
    filter_issues,
    new_issue,
    close_issue,
    close_mine,
    assign,
    comment_issue,
    merge,
    invite,
    change_role,
    list_members,
    count_commits,
    star,
    fork,
    set_status,
    settings,
    new_project,
    invite_best,
    reopen_issue,
    mention_author,
    new_milestone,
]
