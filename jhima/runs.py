"""What train_rl.py and evaluate.py share: the environment to play in, and its judge."""
from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path

from .arena import PocketArena
from .chromium import Browsers
from .pocket import SITES
from .policy import Policy
from .replicas import Replicas, check_sites, load_replicas
from .rewards import Judge
from .rollout import Environment
from .sampler import LocalSampler
from .same_run import same_run  # noqa: F401  where scripts look for it
from .tasks import Task


@contextmanager
def judge_for(tasks: str, url: str | None, model: str, run: Path) -> Iterator[Judge]:
    """The judge of a run's tasks, with its replies kept in the run. Pocket tasks are judged by the pocket teacher,
    unless another URL is given."""
    from .pocket.teacher import MODEL, serve_teacher

    with serve_teacher() if tasks.startswith("pocket") and not url else nullcontext() as teacher:
        yield Judge(teacher or url, MODEL if teacher else model, None, cache=run / "judge.jsonl")


def add_site_arguments(add: Callable) -> None:
    """The options of WebArena's sites, for a script's parser."""
    add("--sites", type=Path, help="sites.json: WebArena's replicas, accounts and resets; see jhima/replicas.py "
                                   "(default: the pocket arena)")
    add("--published-rules", action=argparse.BooleanOptionalAction, default=False,
        help="must_include and URLs as WebArena-Lite-v2's harness has them, to compare with published numbers "
             "(jhima/rewards.py)")


def add_sampler_arguments(add: Callable) -> None:
    """The options of what samples replies, for a script's parser."""
    def sampler(name: str) -> str:
        if name not in ("local", "vllm"):
            raise argparse.ArgumentTypeError(f"expected local or vllm, got {name!r}")
        if name == "vllm" and find_spec("vllm") is None:
            raise argparse.ArgumentTypeError("vLLM is not installed; requirements.txt has it")
        return name

    add("--sampler", type=sampler, default="local", metavar="NAME",
        help="local: transformers, in this process; vllm: an engine a set of weights, for a GPU (default: %(default)s)")
    add("--kv-gib", type=float, default=12.0, help="vLLM: GiB for each engine's keys and values (default: %(default)s)")


def sampler_for(policy: Policy, checkpoint: str, args: argparse.Namespace, stack: AsyncExitStack, max_batch: int = 32):
    """What samples from a policy: itself, or vLLM's engine of its checkpoint, which ends with `stack`."""
    if args.sampler == "local":
        return LocalSampler(policy, max_batch)
    from .vllm_sampler import with_engine                      # not every machine has vLLM
    return with_engine(policy, checkpoint, args.kv_gib, stack)


def check_environment(args: argparse.Namespace, tasks: Sequence[Task], world: int = 1) -> None:
    """Whether these tasks can be played on these sites; says what the sites do to rewards. Raises ValueError."""
    if args.sites:
        replicas = load_replicas(args.sites)
        for warning in check_sites(replicas, tasks, args.concurrency):
            print(f"warning: {args.sites}: {warning}", file=sys.stderr)
        Replicas(replicas, world=world)
    elif wanted := {site for task in tasks for site in task.sites} - set(SITES):
        raise ValueError(f"--sites: expected a sites.json, for the pocket arena has no {', '.join(sorted(wanted))}")
    elif not args.tasks.startswith("pocket"):
        print(f"warning: no --sites: {args.tasks} is played in the pocket arena", file=sys.stderr)


@asynccontextmanager
async def environment(args: argparse.Namespace) -> AsyncIterator[Environment]:
    """The arena, browsers and judge that the arguments ask for; says at the end what went wrong with them."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    arena = Replicas(load_replicas(args.sites), rank=rank, world=world) if args.sites else PocketArena(full=args.full)
    with judge_for(args.tasks, args.judge_url, args.judge_model, args.out) as judge:
        async with arena, Browsers(args.browsers) as browsers:
            env = Environment(arena, browsers, judge, concurrency=args.concurrency, published=args.published_rules)
            yield env
    counts = env.failures | {"logins repaired": env.repairs} | (dict(arena.counts) if args.sites else {})
    if any(counts.values()):
        print("environment: " + ", ".join(f"{name} {count}" for name, count in counts.items() if count), file=sys.stderr)
