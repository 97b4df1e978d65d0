"""Evaluation (section 4): success by site of a decomposer and an actor, over several runs.

    python evaluate.py --adapters runs/rl --tasks pocket-eval --out runs/eval-rl        # after joint RL
    python evaluate.py --tasks pocket-eval --out runs/eval-sft                          # after SFT
    python evaluate.py --no-plan --actor checkpoints/actor-no-plan --out runs/eval-no-plan
    python evaluate.py --agent uitars-1.5 --agent-url http://localhost:8000/v1 --agent-model ui-tars --out runs/eval-uitars
    python evaluate.py --agent planner-grounder --agent-model gpt-4o --grounder scalecua --grounder-model scalecua \\
        --grounder-url http://localhost:8000/v1 --out runs/eval-gpt4o
    python evaluate.py --compare runs/eval-sft runs/eval-rl                             # no model, no browser
    python evaluate.py --rescore runs/eval-rl                                           # no model, no browser

One plan a task at temperature 0, then one episode of at most T steps, as in the paper. Prints the success table and
writes it beside the episodes as results.md, .csv and .json. Running the same command again goes on where it stopped;
nothing is played twice. --compare prints a table of finished runs, and the differences from the first of them.
--rescore scores a run's episodes again, by its task file and the arguments below as they are now: those the judge gave
no verdict on, or all, by another judge or with --published-rules. What was checked on a page keeps its verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import torch
from tqdm import tqdm

from jhima.baselines.agents import AGENTS, GROUNDERS, Baseline, failing, planner_grounder
from jhima.baselines.chat import ModelFailure, load_chat
from jhima.environment import (
    NAMES,
    Environment,
    add_sampler_arguments,
    add_site_arguments,
    check_environment,
    environment,
    judge_for,
    load_tasks,
    sampler_for,
)
from jhima.episodes import Task
from jhima.policy import check_checkpoint, default_dtype, load_policy
from jhima.prompts import Prompts, load_prompts
from jhima.results import success as analysis
from jhima.results.rescore import rescore
from jhima.results.run_reader import GroupRecord, read_args, read_groups, write_planned
from jhima.rollout import Agents, Sampling, rollout, seed_of
from jhima.run_directory import same_run, write_whole
from jhima.sampler import ApiSampler

SCORING = {"tasks", "judge_url", "judge_model", "published_rules"}  # what a reward depends on


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--decomposer",
        default="checkpoints/decomposer",
        help="checkpoint, or URL#MODEL (default: %(default)s)",
    )
    add(
        "--actor",
        default="checkpoints/actor",
        help="checkpoint, or URL#MODEL (default: %(default)s)",
    )
    add(
        "--adapters",
        type=Path,
        help="run directory of train_rl.py, or RUN/checkpoints/N, whose adapters to add (default: none)",
    )
    add("--no-plan", action="store_true", help="an actor alone, without subtasks")
    add(
        "--tasks",
        default="pocket-eval",
        help=f"a WebArena task file, or: {', '.join(NAMES)} (default: %(default)s)",
    )
    add("--limit", type=int, help="only the first N tasks")
    add(
        "--out",
        type=Path,
        help="run directory (default: runs/eval), or where --compare writes its table (default: nowhere)",
    )
    add("--runs", type=int, default=4, help="independent runs (default: %(default)s)")
    add("--T", type=int, default=15, help="steps an episode, at most (default: %(default)s)")
    add(
        "--agent",
        choices=["jhima", *AGENTS, "planner-grounder"],
        default="jhima",
        metavar="NAME",
        help=f"jhima (decomposer and actor), or a baseline: {', '.join(AGENTS)}, planner-grounder (default: %(default)s)",
    )
    add(
        "--agent-model",
        metavar="MODEL",
        help="the baseline's folder or hub name, or its name at --agent-url; gpt-... is OpenAI's",
    )
    add(
        "--agent-url",
        metavar="URL",
        help="OpenAI-compatible endpoint of the baseline (default: run it here)",
    )
    add(
        "--grounder",
        choices=list(GROUNDERS),
        default="uitars",
        help="what finds the planner's targets (default: %(default)s)",
    )
    add("--grounder-model", metavar="MODEL", help="as --agent-model")
    add("--grounder-url", metavar="URL", help="as --agent-url")
    add(
        "--unparseable",
        type=policy_on_unparseable,
        default="noop",
        metavar="POLICY",
        help="on a reply without a readable action: noop (a step that does nothing), retry:K (up to K draws more at "
        "temperature 1, K at most 3) or fail (default: %(default)s)",
    )
    add(
        "--temperature",
        type=float,
        default=0.0,
        help="of the actor; the plan's is 0 (default: %(default)s)",
    )
    add(
        "--plan-tokens", type=int, default=512, help="token budget of a plan (default: %(default)s)"
    )
    add(
        "--action-tokens",
        type=int,
        default=256,
        help="token budget of an action (default: %(default)s)",
    )
    add_sampler_arguments(add)
    add(
        "--concurrency",
        type=int,
        default=32,
        help="browser contexts at once (default: %(default)s)",
    )
    add("--browsers", type=int, default=1, help="Chromium processes (default: %(default)s)")
    add(
        "--full",
        action="store_true",
        help="the pocket arena at 1280x720 with longer, shuffled lists",
    )
    add(
        "--judge-url",
        help="OpenAI-compatible endpoint for fuzzy_match (default: OpenAI's; pocket: its own)",
    )
    add("--judge-model", default="gpt-5.2-codex", help="(default: %(default)s)")
    add_site_arguments(add)
    add("--prompt", type=Path, help="JSON file of prompts over the checkpoints' own")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add(
        "--rescore",
        type=Path,
        metavar="RUN",
        help="score a run of evaluate.py or train_rl.py again, and play nothing; --tasks, --judge-url, --judge-model and "
        "--published-rules are the run's unless given",
    )
    add(
        "--compare",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="compare finished runs with the first, and play nothing",
    )
    args = parser.parse_args()
    if args.rescore:
        parser.set_defaults(
            **{name: value for name, value in read_args(args.rescore).items() if name in SCORING}
        )
        args = parser.parse_args()
    return args


def policy_on_unparseable(text: str) -> str:
    if text not in ("noop", "fail", "retry:1", "retry:2", "retry:3"):
        raise argparse.ArgumentTypeError(
            f"expected noop, fail, or retry:1 to retry:3, got {text!r}"
        )
    return text


def main() -> None:
    # ---- 1. Arguments, checked before anything is loaded ----
    args = parse_args()
    if args.compare:
        return compare(args.compare, args.out)
    if args.rescore:
        return score_again(args)
    args.out = args.out or Path("runs/eval")
    roles = () if args.agent != "jhima" else ("actor",) if args.no_plan else ("decomposer", "actor")
    try:
        if not roles and not args.agent_model:
            raise ValueError(
                f"--agent {args.agent} needs --agent-model: a folder, a hub name, or a name at --agent-url"
            )
        if args.agent == "planner-grounder" and not args.grounder_model:
            raise ValueError(
                "--agent planner-grounder needs --grounder-model, and perhaps --grounder-url"
            )
        for role in roles:
            if "#" not in getattr(args, role):
                check_checkpoint(getattr(args, role), f"deepspeed train_sft.py --role {role}")
        adapters = adapters_in(args.adapters, roles) if args.adapters else {}
        tasks = load_tasks(args.tasks)[: args.limit]
        if args.runs < 1 or not tasks:
            raise ValueError(
                f"expected at least one run of one task, got --runs {args.runs} and {len(tasks)} tasks"
            )
        check_environment(args, tasks)
        same_run(
            args,
            "evaluate.py",
            free={
                "concurrency",
                "browsers",
                "sites",
                "runs",
                "judge_url",
                "compare",
                "agent_url",
                "grounder_url",
                "sampler",
                "kv_gib",
            },
        )
        write_planned(args.out, args.runs, tasks)
    except ValueError as error:
        sys.exit(f"evaluate.py: {error}")

    # ---- 2. Episodes ----
    asyncio.run(play(args, adapters, tasks))

    # ---- 3. Table ----
    write_table(args.out)


def adapters_in(folder: Path, roles: tuple[str, ...]) -> dict[str, Path]:
    """The adapters of a finished run of train_rl.py, or of one of its checkpoints. Raises ValueError where there are none."""
    found = {
        role: place
        for role in roles
        for place in (folder / role, folder / role / "adapter")
        if (place / "adapter_config.json").is_file()
    }
    if not found:
        raise ValueError(
            f"{folder}: holds no adapters; expected a finished run of train_rl.py, or RUN/checkpoints/N"
        )
    return found


async def load_agents(
    args: argparse.Namespace, adapters: dict[str, Path], stack: AsyncExitStack
) -> Agents:
    """Decomposer and actor, each a checkpoint or, as URL#MODEL, behind an OpenAI-compatible API. `stack` ends vLLM."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    samplers, prompts = {}, {}
    for role in ("actor",) if args.no_plan else ("decomposer", "actor"):
        source = getattr(args, role)
        if "#" in source:
            samplers[role], prompts[role] = (
                ApiSampler(*source.rsplit("#", 1)),
                load_prompts(None, args.prompt),
            )
        else:
            policy = load_policy(
                source,
                device,
                default_dtype(device),
                adapter=adapters.get(role),
                prompts=args.prompt,
            ).eval()
            samplers[role], prompts[role] = sampler_for(policy, source, args, stack), policy.prompts
            await samplers[role].sync()
    return Agents(
        samplers.get("decomposer"),
        samplers["actor"],
        prompts.get("decomposer", prompts["actor"]),
        prompts["actor"],
    )


def load_baseline(args: argparse.Namespace) -> Agents:
    """A baseline of table 1 in the place of decomposer and actor."""
    try:
        model = load_chat(args.agent_model, args.agent_url)
        if args.agent == "planner-grounder":
            grounder = args.grounder, load_chat(args.grounder_model, args.grounder_url)
            baseline = Baseline(planner_grounder(GROUNDERS[args.grounder]), model, grounder)
        else:
            baseline = Baseline(AGENTS[args.agent], model)
    except ValueError as error:
        sys.exit(f"evaluate.py: {error}")
    return Agents(None, None, Prompts(), Prompts(), baseline.agent.dialect, baseline)


def write_table(out: Path) -> None:
    groups = read_groups(out)
    table = analysis.success_table(groups)
    write_results(
        out,
        "results",
        analysis.markdown(table) + unreadable_replies(groups) + "\n",
        analysis.csv_text({out.name: table}),
        analysis.json_text(table),
    )


def unreadable_replies(groups: list[GroupRecord]) -> str:
    """The share of replies without a readable action by site, and why, to be read beside the scores."""
    errors: dict[str, list[str]] = {}
    for group in groups:
        for e in group.episodes:
            errors.setdefault(", ".join(group.task.sites), []).extend(e.errors)
    every = [error for site in errors.values() for error in site]
    sites = ", ".join(f"{site} {percent(found)}" for site, found in sorted(errors.items()))
    why = (
        ", ".join(f"{name} {count}" for name, count in Counter(filter(None, every)).most_common())
        or "none"
    )
    return f"\nReplies without a readable action: {percent(every)} of {len(every)} ({sites}); classes: {why}."


def percent(errors: list[str]) -> str:
    return f"{100 * sum(map(bool, errors)) / max(1, len(errors)):.1f} %"


def score_again(args: argparse.Namespace) -> None:
    """--rescore. The run's own arguments are brought up to date: it can only go on as its episodes are scored."""
    run, before = args.rescore, read_args(args.rescore)
    try:
        if not (SCORING <= before.keys() and (run / "rollouts").is_dir()):
            raise ValueError(
                f"{run}: expected a run directory of evaluate.py or train_rl.py, with its args.json"
            )
        tasks = load_tasks(args.tasks)
    except ValueError as error:
        sys.exit(f"evaluate.py: {error}")
    write_whole(
        run / "args.json",
        json.dumps(before | {name: getattr(args, name) for name in SCORING}, indent=1),
    )
    with judge_for(args.tasks, args.judge_url, args.judge_model, run) as judge:
        counts = asyncio.run(rescore(run, tasks, judge, args.published_rules))
    print(
        "{}: {episodes} episodes scored again: {changed} changed, {unscored} without a reward, {kept} with a verdict "
        "kept for want of a browser or a judge, {unreadable} unreadable".format(run, **counts)
    )
    write_table(run)


def compare(runs: list[Path], out: Path | None) -> None:
    try:
        compared = analysis.compare(analysis.read_runs(runs))
    except (OSError, ValueError) as error:
        sys.exit(f"evaluate.py: {error}")
    write_results(
        out,
        "comparison",
        analysis.compare_markdown(compared),
        analysis.csv_text(compared.tables),
        analysis.json_text(compared),
    )


def write_results(out: Path | None, name: str, markdown: str, csv: str, json: str) -> None:
    """Prints the Markdown; writes all three beside one another where there is an `out`."""
    print(markdown, end="")
    if out:
        out.mkdir(parents=True, exist_ok=True)
        for ending, text in (("md", markdown), ("csv", csv), ("json", json)):
            (out / f"{name}.{ending}").write_text(text, "utf-8")


async def play(args: argparse.Namespace, adapters: dict[str, Path], tasks: list[Task]) -> None:
    async with AsyncExitStack() as stack:
        agents = (
            await load_agents(args, adapters, stack)
            if args.agent == "jhima"
            else load_baseline(args)
        )
        if args.unparseable == "fail":
            agents.dialect = failing(agents.dialect)
        await play_all(args, agents, tasks)


async def play_all(args: argparse.Namespace, agents: Agents, tasks: list[Task]) -> None:
    with tqdm(total=args.runs * len(tasks), desc="evaluate", unit="episode") as bar:
        won, played = 0, 0

        def finished(e) -> None:
            nonlocal won, played
            won, played = won + (e.reward or 0), played + (e.reward is not None)
            bar.update()
            bar.set_postfix(success=f"{won}/{played}")

        async def one(env: Environment, task: Task, how: Sampling, folder: Path) -> None:
            if await rollout(env, agents, task, 1, 1, args.T, how, folder, finished) is None:
                bar.update()  # its start page never opened: in the table as not played

        async with environment(args) as env, asyncio.TaskGroup() as group:
            for run in range(args.runs):
                how = Sampling(
                    0.0,
                    args.temperature,
                    args.plan_tokens,
                    args.action_tokens,
                    seed_of(args.seed, "evaluate", run),
                    retries=int(args.unparseable.partition(":")[2] or 0),
                )
                for task in tasks:
                    folder = args.out / "rollouts" / f"run_{run}" / task.id
                    group.create_task(one(env, task, how, folder))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(
        int(os.environ.get("OMP_NUM_THREADS", "1" if not torch.cuda.is_available() else "8"))
    )
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("evaluate.py: stopped; run the same command to go on")
    except ExceptionGroup as group:
        if isinstance(group.exceptions[0], ModelFailure):
            sys.exit(f"evaluate.py: {group.exceptions[0]}; run the same command to go on")
        raise group.exceptions[0] from None
