"""What train_rl.py and evaluate.py share: the environment to play in, and its judge."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from jhima.browser.chromium import Browsers
from jhima.browser.lease import Lease
from jhima.browser.session import Session
from jhima.episodes import (
    Task,
)
from jhima.failures import EnvironmentFailure
from jhima.pocket import SITES
from jhima.pocket.arena import PocketArena
from jhima.pocket.tasks.generate import task_list
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.policy import Policy
from jhima.sampler import LocalSampler
from jhima.webarena.judge import Judge
from jhima.webarena.login import log_in
from jhima.webarena.replicas import Replicas, check_sites, load_replicas
from jhima.webarena.sites import AND, fill
from jhima.webarena.task_files import PUBLISHED, needs_judge, parse_task, read_rows


@dataclass
class Environment:
    """Where episodes play. Deadlines in seconds."""

    arena: PocketArena | Replicas
    browsers: Browsers
    judge: Judge | None = None
    episode_deadline: float = 900.0
    attempts: int = 2  # how often an episode is played before its failure is final
    concurrency: int = 32  # browser contexts at once; about 60 MB each
    published: bool = False  # score by the published harness's rules (rewards.py)
    failures: dict[str, int] = field(default_factory=dict)  # by kind, retried ones too
    repairs: int = 0  # logins that a site forgot in mid-episode

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.concurrency)

    @asynccontextmanager
    async def start(self, task: Task) -> AsyncIterator[tuple[Lease, Session]]:
        """A fresh world and browser context, logged in to the task's sites, on its start page.

        The episode's deadline begins with the lease: to wait for a world says nothing about the episode.
        """
        async with (
            self._slots,
            self.arena.lease(task) as lease,
            asyncio.timeout(self.episode_deadline),
            self.browsers.session(lease) as session,
        ):
            for site in task.sites:
                if site in lease.accounts and site not in lease.signed_in:
                    await log_in(session, lease, site)
            await session.goto(*fill(task.start_url, lease.urls).split(AND))
            yield lease, session

    def count(self, failure: EnvironmentFailure) -> None:
        self.failures[failure.kind] = self.failures.get(failure.kind, 0) + 1


@contextmanager
def judge_for(tasks: str, url: str | None, model: str, run: Path) -> Iterator[Judge]:
    """The judge of a run's tasks, with its replies kept in the run. Pocket tasks are judged by the pocket teacher,
    unless another URL is given."""
    with serve_teacher() if tasks.startswith("pocket") and not url else nullcontext() as teacher:
        yield Judge(teacher or url, MODEL if teacher else model, None, cache=run / "judge.jsonl")


def add_site_arguments(add: Callable) -> None:
    """The options of WebArena's sites, for a script's parser."""
    add(
        "--sites",
        type=Path,
        help="sites.json: WebArena's replicas, accounts and resets; see jhima/webarena/replicas.py "
        "(default: the pocket arena)",
    )
    add(
        "--published-rules",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="must_include and URLs as WebArena-Lite-v2's harness has them, to compare with published numbers "
        "(jhima/webarena/evaluators.py)",
    )


def add_sampler_arguments(add: Callable) -> None:
    """The options of what samples replies, for a script's parser."""

    def sampler(name: str) -> str:
        if name not in ("local", "vllm"):
            raise argparse.ArgumentTypeError(f"expected local or vllm, got {name!r}")
        if name == "vllm" and find_spec("vllm") is None:
            raise argparse.ArgumentTypeError("vLLM is not installed; requirements.txt has it")
        return name

    add(
        "--sampler",
        type=sampler,
        default="local",
        metavar="NAME",
        help="local: transformers, in this process; vllm: an engine a set of weights, for a GPU (default: %(default)s)",
    )
    add(
        "--kv-gib",
        type=float,
        default=12.0,
        help="vLLM: GiB for each engine's keys and values (default: %(default)s)",
    )


def sampler_for(
    policy: Policy,
    checkpoint: str,
    args: argparse.Namespace,
    stack: AsyncExitStack,
    max_batch: int = 32,
):
    """What samples from a policy: itself, or vLLM's engine of its checkpoint, which ends with `stack`."""
    if args.sampler == "local":
        return LocalSampler(policy, max_batch)
    from jhima.serving.vllm_sampler import with_engine

    return with_engine(policy, checkpoint, args.kv_gib, stack)


def check_environment(args: argparse.Namespace, tasks: Sequence[Task], world: int = 1) -> None:
    """Whether these tasks can be played on these sites; says what the sites do to rewards. Raises ValueError."""
    if args.sites:
        replicas = load_replicas(args.sites)
        for warning in check_sites(replicas, tasks, args.concurrency):
            print(f"warning: {args.sites}: {warning}", file=sys.stderr)
        Replicas(replicas, world=world)
    elif wanted := {site for task in tasks for site in task.sites} - set(SITES):
        raise ValueError(
            f"--sites: expected a sites.json, for the pocket arena has no {', '.join(sorted(wanted))}"
        )
    elif not args.tasks.startswith("pocket"):
        print(f"warning: no --sites: {args.tasks} is played in the pocket arena", file=sys.stderr)


@asynccontextmanager
async def environment(args: argparse.Namespace) -> AsyncIterator[Environment]:
    """The arena, browsers and judge that the arguments ask for; says at the end what went wrong with them."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    arena = (
        Replicas(load_replicas(args.sites), rank=rank, world=world)
        if args.sites
        else PocketArena(full=args.full)
    )
    with judge_for(args.tasks, args.judge_url, args.judge_model, args.out) as judge:
        async with arena, Browsers(args.browsers) as browsers:
            env = Environment(
                arena, browsers, judge, concurrency=args.concurrency, published=args.published_rules
            )
            yield env
    counts = (
        env.failures | {"logins repaired": env.repairs} | (dict(arena.counts) if args.sites else {})
    )
    if any(counts.values()):
        print(
            "environment: "
            + ", ".join(f"{name} {count}" for name, count in counts.items() if count),
            file=sys.stderr,
        )


POCKET = {
    "pocket": "train",
    "pocket-demos": "demos",
    "pocket-rl": "rl",
    "pocket-eval": "eval",
    "pocket-new": "new",
}


NAMES = (*POCKET, *PUBLISHED)


def task_rows(name_or_path: str | Path) -> tuple[str, str, list]:
    """A label for messages, the prefix of the tasks' ids, and the raw task objects, of a named list or a file."""
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
    twice = [task_id for task_id, count in Counter(task.id for task in tasks).items() if count > 1]
    if twice:
        raise ValueError(f"{label}: task_id: expected each one once, got {twice[0]} again")
    return tasks


# ---- python -m jhima.environment ----


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Counts the tasks of a file by site and evaluators."
    )
    parser.add_argument("tasks", help=f"a task file, or one of {', '.join(NAMES)}")
    name = parser.parse_args().tasks
    try:
        label, prefix, rows = task_rows(name)
    except ValueError as error:
        sys.exit(str(error))
    tasks, problems = [], []
    for number, row in enumerate(rows):
        try:
            tasks.append(parse_task(row, prefix, f"{label}: task {number}"))
        except ValueError as error:
            problems.append(str(error))
    print(table(tasks))
    print(
        f"{label}: {len(rows)} tasks, {len(tasks)} can be scored ({sum(map(needs_judge, tasks))} need the LLM judge, "
        f"{sum(task.changes for task in tasks)} change a site's state)"
    )
    if problems:
        sys.exit("\n".join(problems))


def table(tasks: list[Task]) -> str:
    """Tasks by the sites they need (rows) and combination of evaluators (columns); how many change a site's state."""
    count = Counter(("+".join(task.sites), "+".join(task.eval["eval_types"])) for task in tasks)
    sites, kinds = sorted({site for site, _ in count}), sorted({kind for _, kind in count})
    changing = Counter("+".join(task.sites) for task in tasks if task.changes)
    lines = [["site", *kinds, "all", "changing"]]
    for site in sites:
        row = [count[site, kind] for kind in kinds]
        lines.append([site, *map(str, row), str(sum(row)), str(changing[site])])
    totals = [sum(count[site, kind] for site in sites) for kind in kinds]
    lines.append(["all", *map(str, totals), str(sum(totals)), str(changing.total())])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            f"{cell:>{width}}" if i else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    )


if __name__ == "__main__":
    main()
