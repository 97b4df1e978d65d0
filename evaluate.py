"""Evaluation (section 4): success by site of a decomposer and an actor, over several runs.

    python evaluate.py --adapters runs/rl --out runs/eval-rl                 # after joint RL
    python evaluate.py --out runs/eval-sft                                   # after SFT
    python evaluate.py --no-plan --actor checkpoints/actor-no-plan --out runs/eval-no-plan
    python evaluate.py --agent uitars-1.5 --agent-model ui-tars \\
        --agent-url http://localhost:8000/v1 --out runs/eval-uitars
    python evaluate.py --agent planner-grounder --agent-model gpt-4o --grounder scalecua \\
        --grounder-model scalecua --grounder-url http://localhost:8000/v1 --out runs/eval-gpt4o
    python evaluate.py --compare runs/eval-sft runs/eval-rl                  # no model, no browser
    python evaluate.py --rescore runs/eval-rl                                # no model, no browser

One plan per task at temperature 0, then one episode of at most T steps, as in the paper. Prints the
success table and writes it beside the episodes as results.md, .csv and .json. Running the same
command again resumes; no episode is played twice.

--compare prints one table of finished runs, and how each differs from the first. --rescore scores a
run's episodes again with the task file as it is now: without more options only those that the judge
gave no verdict on, with another judge or --published-rules all of them. What was checked on a page
keeps its verdict.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from jhima import cli
from jhima.baselines.agents import AGENTS, GROUNDERS, Baseline, failing, planner_grounder
from jhima.baselines.chat import ApiChat
from jhima.environment import (
    Environment,
    EnvironmentOptions,
    check_environment,
    environment,
    judge_for,
    load_tasks,
)
from jhima.episodes import Task
from jhima.models.checkpoint_files import check_adapter, check_checkpoint
from jhima.models.openai_client import ApiFailure
from jhima.policy import Policy, default_dtype, load_policy
from jhima.prompts import Prompts
from jhima.results import success
from jhima.results.episode_bar import EpisodeBar
from jhima.results.rescore import rescore
from jhima.results.run_reader import write_planned
from jhima.rollout import Agents, Sampling, make_agents, rollout, seed_of
from jhima.run_directory import read_args, same_run, write_args
from jhima.sampler import SamplerOptions
from jhima.serving.checks import EngineFailure, check_sampler

# What a reward depends on, with its defaults; --rescore has the run's own values as defaults.
SCORING = {
    "tasks": "pocket-eval",
    "judge_url": None,
    "judge_model": EnvironmentOptions.judge_model,
    "published_rules": False,
}
SHARED = "decomposer-actor"  # the folder of train_rl.py --shared in a checkpoint
# Arguments that may differ when a run is resumed, because they do not change how its episodes go.
# fmt: off
FREE = {"runs", "concurrency", "browsers", "sites", "judge_url", "agent_url", "grounder_url",
        "sampler", "kv_gib", "sampler_batch", "no_published_rules", "compare"}
# fmt: on


@dataclass
class Args(EnvironmentOptions, SamplerOptions):
    decomposer: str = "checkpoints/decomposer"
    """checkpoint, or URL#MODEL"""
    actor: str = "checkpoints/actor"
    """checkpoint, or URL#MODEL"""
    adapters: Path | None = None
    """run directory of train_rl.py, or RUN/checkpoints/N, whose adapters to add"""
    no_plan: bool = False
    """an actor alone, without subtasks"""
    prompt: Path | None = None
    """JSON file of prompts to use instead of the checkpoints' own"""
    tasks: str | None = None
    """a WebArena task file, or the name of a list (see jhima/environment.py); by default
    pocket-eval, with --rescore the run's"""
    judge_model: str | None = None
    """the judge's name at its endpoint, by default gpt-5.2-codex, with --rescore the run's"""
    no_published_rules: bool = False
    """with --rescore: score by our own rules a run that was scored by the published ones"""
    limit: int | None = None
    """only the first N tasks"""
    out: Path | None = None
    """run directory, by default runs/eval; with --compare where to write the table, by default
    nowhere"""
    runs: int = 4
    """independent runs"""
    T: int = 15
    """steps per episode, at most"""
    seed: int = 0
    """of everything that is sampled"""
    temperature: float = 0.0
    """of the actor; the plan's is 0"""
    plan_tokens: int = 512
    """token budget of a plan"""
    action_tokens: int = 256
    """token budget of an action"""
    unparseable: Literal["noop", "retry:1", "retry:2", "retry:3", "fail"] = "noop"
    """on a reply without a readable action: noop (a step that does nothing), retry:K (up to K more
    draws at temperature 1) or fail"""
    agent: Literal[
        "jhima", "scalecua", "uitars-1.5", "uitars-72b", "gui-libra", "planner-grounder"
    ] = "jhima"
    """jhima (decomposer and actor), or a baseline in their place"""
    agent_model: str | None = None
    """the baseline's name at --agent-url, or an OpenAI model, gpt-..."""
    agent_url: str | None = None
    """OpenAI-compatible endpoint that serves the baseline; needed unless it is an OpenAI model"""
    grounder: Literal["uitars", "scalecua"] = "uitars"
    """what finds the planner's targets"""
    grounder_model: str | None = None
    """as --agent-model"""
    grounder_url: str | None = None
    """as --agent-url"""
    compare: tuple[Path, ...] | None = None
    """compare these finished runs with the first of them; plays nothing"""
    rescore: Path | None = None
    """score this run of evaluate.py or train_rl.py again; plays nothing. --tasks, --judge-url,
    --judge-model and --published-rules are the run's own unless given"""


def main() -> None:
    args = cli.parse(Args, __doc__)
    if args.compare is not None:
        return compare(args)
    if args.rescore:
        return score_again(args)

    # ---- 1. Arguments, checked before anything is loaded ----
    args = with_defaults(args, SCORING)
    args.out = args.out or Path("runs/eval")
    adapters, baseline = {}, None
    with cli.one_line_errors():
        if args.agent != "jhima":
            baseline = make_baseline(args)
        if args.adapters:
            adapters = adapters_in(args.adapters, roles(args))
            if is_shared(args.adapters) and "decomposer" in adapters and "#" not in args.decomposer:
                print(f"{args.adapters}: one set of weights, that of --actor, plays both roles")
                args = replace(args, decomposer=args.actor)
        for role in roles(args):
            source = getattr(args, role)
            if "#" not in source:
                check_checkpoint(source, f"deepspeed train_sft.py --role {role}")
                check_sampler(args, args.temperature, source)
                if role in adapters:
                    check_adapter(adapters[role], source)
        for name in ("limit", "T", "concurrency", "browsers", "plan_tokens", "action_tokens"):
            value = getattr(args, name)
            if value is not None and value < 1:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag}: expected at least 1, got {value}")
        tasks = load_tasks(args.tasks)[: args.limit]
        if args.runs < 1 or not tasks:
            counts = f"--runs {args.runs}, {len(tasks)} tasks"
            raise ValueError(f"{counts}: expected at least one run of one task")
        check_environment(args, tasks)
        same_run(args, "evaluate.py", FREE)
        write_planned(args.out, args.runs, tasks)

    # ---- 2. Models and episodes ----
    asyncio.run(play(args, adapters, baseline, tasks))

    # ---- 3. Table ----
    success.write_results(args.out)


# ---- arguments ----


def with_defaults(args: Args, defaults: dict) -> Args:
    """The arguments, with what a reward depends on taken from `defaults` where it is not given."""
    values = {name: defaults[name] for name in SCORING}
    for name in SCORING:
        if getattr(args, name) not in (None, False):
            values[name] = getattr(args, name)
    if args.no_published_rules:
        values["published_rules"] = False
    return replace(args, **values)


def roles(args: Args) -> tuple[str, ...]:
    """The roles whose models play; none where a baseline does."""
    if args.agent != "jhima":
        return ()
    return ("actor",) if args.no_plan else ("decomposer", "actor")


def make_baseline(args: Args) -> Baseline:
    """A baseline of Table 1. Raises ValueError where a model or its endpoint is not given."""
    for name, model in (("agent", args.agent_model), ("grounder", args.grounder_model)):
        if not model and (name == "agent" or args.agent == "planner-grounder"):
            raise ValueError(
                f"--agent {args.agent} needs --{name}-model: its name at --{name}-url, or an "
                "OpenAI model (gpt-...)"
            )
    model = ApiChat(args.agent_url, args.agent_model)
    if args.agent != "planner-grounder":
        return Baseline(AGENTS[args.agent], model)
    grounder = ApiChat(args.grounder_url, args.grounder_model)
    agent = planner_grounder(GROUNDERS[args.grounder])
    return Baseline(agent, model, (args.grounder, grounder))


def adapters_in(folder: Path, roles: tuple[str, ...]) -> dict[str, Path]:
    """Role -> its adapter, of a finished run of train_rl.py or of one of its checkpoints.

    After --shared both roles have one adapter. Raises ValueError where there is none.
    """
    adapters = {}
    shared = is_shared(folder)
    for role in roles:
        own = "actor" if shared else role
        for path in (folder / own, folder / own / "adapter", folder / SHARED / "adapter"):
            if (path / "adapter_config.json").is_file():
                adapters[role] = path
    if not adapters:
        raise ValueError(
            f"{folder}: holds no adapters; expected a finished run of train_rl.py, or "
            "RUN/checkpoints/N"
        )
    return adapters


def is_shared(folder: Path) -> bool:
    """Whether a run of train_rl.py, or one of its checkpoints, has one adapter for both roles."""
    return bool(read_args(folder).get("shared")) or (folder / SHARED).is_dir()


# ---- models and episodes ----


async def play(
    args: Args, adapters: dict[str, Path], baseline: Baseline | None, tasks: list[Task]
) -> None:
    """Plays every task in every run, all at once; what --out already holds is not played again."""
    async with AsyncExitStack() as stack:
        agents = load_agents(args, adapters, baseline, stack)
        env = await stack.enter_async_context(environment(args))
        for sampler in filter(None, (agents.decomposer, agents.actor)):
            await sampler.sync()  # here, because vLLM's engines start while the browsers do
        bar = stack.enter_context(EpisodeBar("evaluate", args.runs * len(tasks)))
        async with asyncio.TaskGroup() as group:
            for run, task in product(range(args.runs), tasks):
                group.create_task(play_task(env, agents, args, run, task, bar))


def load_agents(
    args: Args, adapters: dict[str, Path], baseline: Baseline | None, stack: AsyncExitStack
) -> Agents:
    """What plays, its weights loaded. `stack` ends vLLM's engines."""
    if baseline:
        agents = Agents(
            decomposer=None,
            actor=None,
            decomposer_prompts=Prompts(),
            actor_prompts=Prompts(),
            dialect=baseline.agent.dialect,
            baseline=baseline,
        )
    else:
        agents = make_agents(load_policies(args, adapters), args, args.prompt, stack)
    if args.unparseable == "fail":
        agents.dialect = failing(agents.dialect)
    return agents


def load_policies(args: Args, adapters: dict[str, Path]) -> dict[str, Policy | str]:
    """Role -> its policy, or the URL#MODEL that it was given as."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded: dict[tuple[str, Path | None], Policy] = {}  # the same weights are loaded once
    sources: dict[str, Policy | str] = {}
    for role in roles(args):
        source = sources[role] = getattr(args, role)
        if "#" not in source:
            weights = source, adapters.get(role)
            if weights not in loaded:
                files = {"adapter": weights[1], "prompts": args.prompt}
                policy = load_policy(source, device, default_dtype(device), **files)
                loaded[weights] = policy.eval()
            sources[role] = loaded[weights]
    return sources


async def play_task(
    env: Environment, agents: Agents, args: Args, run: int, task: Task, bar: EpisodeBar
) -> None:
    """One plan and one episode of a task in one run."""
    sampling = Sampling(
        plan_temperature=0.0,
        temperature=args.temperature,
        plan_tokens=args.plan_tokens,
        action_tokens=args.action_tokens,
        seed=seed_of(args.seed, "evaluate", run),
        retries=int(args.unparseable.partition(":")[2] or 0),
    )
    folder = args.out / "rollouts" / f"run_{run}" / task.id
    group = await rollout(env, agents, task, 1, 1, args.T, sampling, folder, bar.finished)
    if group is None:
        bar.update()  # it never began: the table counts it as not played


# ---- --compare and --rescore: no model, no browser ----


def compare(args: Args) -> None:
    """--compare: one table of finished runs, written to --out where one is given."""
    with cli.one_line_errors():
        comparison = success.compare(success.read_runs(args.compare))
    success.write_comparison(comparison, args.out)


def score_again(args: Args) -> None:
    """--rescore: new verdicts on a run's episodes, and a new table.

    The run's args.json gets the arguments that were used: it can only be resumed with those.
    """
    run, before = args.rescore, read_args(args.rescore)
    with cli.one_line_errors():
        if not (SCORING.keys() <= before.keys() and (run / "rollouts").is_dir()):
            raise ValueError(
                f"{run}: expected a run directory of evaluate.py or train_rl.py, with its args.json"
            )
        args = with_defaults(args, before)
        tasks = load_tasks(args.tasks)
        write_args(run, before | {name: getattr(args, name) for name in SCORING})
    with judge_for(args.tasks, args.judge_url, args.judge_model, run) as judge:
        counts = asyncio.run(rescore(run, tasks, judge, args.published_rules))
    message = (
        "{episodes} episodes scored again: {changed} changed, {unscored} without a reward, {kept} "
        "with a verdict kept (it takes a browser or a judge), {unreadable} unreadable"
    )
    print(f"{run}: {message.format(**counts)}")
    success.write_results(run)


if __name__ == "__main__":
    cli.run(main, ApiFailure, EngineFailure)
