"""Where episodes play: an arena, browsers and a judge; and which task list a name stands for."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from jhima.browser.chromium import Browsers
from jhima.browser.lease import Lease
from jhima.browser.session import Session
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.pocket import SITES
from jhima.pocket.arena import PocketArena
from jhima.pocket.tasks.generate import task_list
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.webarena.judge import Judge
from jhima.webarena.login import enter
from jhima.webarena.replicas import Replicas, check_sites, load_replicas
from jhima.webarena.sites import AND, fill
from jhima.webarena.task_files import PUBLISHED, parse_task, read_rows

# The pocket arena's task lists: all training tasks and their halves, new instances of their
# templates, and templates that no training task has.
POCKET = {
    "pocket": "train",
    "pocket-demos": "demos",
    "pocket-rl": "rl",
    "pocket-eval": "eval",
    "pocket-new": "new",
}
NAMES = (*POCKET, *PUBLISHED)


@dataclass
class EnvironmentOptions:
    """The options of train_rl.py and evaluate.py that say where episodes play and who judges."""

    tasks: str = "pocket"
    """a WebArena task file, or one of the lists pocket, pocket-demos, pocket-rl, pocket-eval,
    pocket-new, webarena-train and webarena-lite-v2"""
    full: bool = False
    """the pocket arena at 1280x720 with longer, shuffled lists"""
    sites: Path | None = None
    """sites.json: WebArena's replicas, accounts and resets, as jhima/webarena/replicas.py describes
    (None: the pocket arena)"""
    published_rules: bool = False
    """must_include and URLs as WebArena-Lite-v2's harness reads them, to compare with published
    numbers (jhima/webarena/evaluators.py)"""
    judge_url: str | None = None
    """OpenAI-compatible endpoint for fuzzy_match (None: OpenAI's; pocket lists: their own)"""
    judge_model: str = "gpt-5.2-codex"
    """the judge's name there"""
    concurrency: int = 32
    """browser contexts at once, per rank"""
    browsers: int = 1
    """Chromium processes, per rank"""
    out: Path = Path("runs/rl")
    """run directory"""


@dataclass
class Environment:
    """Where episodes play. Deadlines in seconds."""

    arena: PocketArena | Replicas
    browsers: Browsers
    judge: Judge | None = None
    episode_deadline: float = 900.0
    attempts: int = 2  # how often an episode is played before its failure is final
    concurrency: int = 32  # browser contexts at once; about 60 MB each
    published: bool = False  # score by the published harness's rules
    failures: dict[str, int] = field(default_factory=dict)  # by kind, retried ones too
    repairs: int = 0  # logins that a site forgot in mid-episode

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)

    @asynccontextmanager
    async def start(self, task: Task) -> AsyncIterator[tuple[Lease, Session]]:
        """A fresh world and browser context, logged in to the task's sites, on its start page.

        The episode's deadline begins with the lease: waiting for a world says nothing about the
        episode.
        """
        async with (
            self._slots,
            self.arena.lease(task) as lease,
            asyncio.timeout(self.episode_deadline),
            self.browsers.session(lease) as session,
        ):
            await enter(session, lease, task.sites)
            pages = fill(task.start_url, lease.urls).split(AND)
            await session.goto(*pages, *filter(None, [lease.homepage]))
            yield lease, session

    def count(self, failure: EnvironmentFailure) -> None:
        self.failures[failure.kind] = self.failures.get(failure.kind, 0) + 1


@asynccontextmanager
async def environment(options: EnvironmentOptions) -> AsyncIterator[Environment]:
    """The arena, browsers and judge that the options ask for.

    On the way out it says what went wrong with them, by kind.
    """
    arena: PocketArena | Replicas = PocketArena(full=options.full)
    if options.sites:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        arena = Replicas(load_replicas(options.sites), rank=rank, world=world)
    with judge_for(options.tasks, options.judge_url, options.judge_model, options.out) as judge:
        async with arena, Browsers(options.browsers) as browsers:
            env = Environment(arena, browsers, judge, concurrency=options.concurrency)
            env.published = options.published_rules
            yield env
    counts = env.failures | {"logins repaired": env.repairs}
    if isinstance(arena, Replicas):
        counts |= dict(arena.counts)
    summary = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    if summary:
        print(f"environment: {summary}", file=sys.stderr)


@contextmanager
def judge_for(tasks: str, url: str | None, model: str, run: Path) -> Iterator[Judge]:
    """The judge of a run's tasks, whose replies are kept in the run.

    The pocket lists are judged by the pocket teacher, unless another URL is given.
    """
    cache = run / "judge.jsonl"
    if url or tasks not in POCKET:
        yield Judge(url, model, None, cache=cache)
        return
    with serve_teacher() as teacher:
        yield Judge(teacher, MODEL, None, cache=cache)


def check_environment(options: EnvironmentOptions, tasks: Sequence[Task], world: int = 1) -> None:
    """Warns of what the sites do to rewards. Raises ValueError where tasks cannot be played."""
    if options.sites:
        replicas = load_replicas(options.sites)
        for warning in check_sites(replicas, tasks, options.concurrency):
            print(f"warning: {options.sites}: {warning}", file=sys.stderr)
        Replicas(replicas, world=world)
        return
    missing = set().union(*(task.sites for task in tasks)) - set(SITES)
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"--sites: expected a sites.json, for the pocket arena has no {names}")
    if options.tasks not in POCKET:
        warning = f"warning: no --sites: {options.tasks} is played in the pocket arena"
        print(warning, file=sys.stderr)


def task_rows(name_or_path: str | Path) -> tuple[str, str, list]:
    """Of a named list or a file: a label for messages, the prefix of task ids, the raw tasks."""
    name = str(name_or_path)
    if name in POCKET:
        prefix = name if name in ("pocket-eval", "pocket-new") else "pocket-train"
        return name, prefix, task_list(POCKET[name])
    if name not in PUBLISHED and not Path(name).exists():
        raise ValueError(f"{name}: no such file; the names are {', '.join(NAMES)}")
    return read_rows(name)


def load_tasks(name_or_path: str | Path) -> list[Task]:
    """All tasks of a named list or a file.

    Raises ValueError, one line that names file, task, field, what was expected and what was found.
    """
    label, prefix, rows = task_rows(name_or_path)
    tasks = [parse_task(row, prefix, f"{label}: task {number}") for number, row in enumerate(rows)]
    for task_id, count in Counter(task.id for task in tasks).items():
        if count > 1:
            raise ValueError(f"{label}: task_id: expected each one once, got {task_id} again")
    return tasks
