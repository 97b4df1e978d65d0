"""Stage 3 (section 3.4): joint hierarchical multi-agent GRPO.

    deepspeed train_rl.py --K 3 --M 7                        # all visible GPUs, or one process on a CPU
    torchrun --nproc-per-node 2 train_rl.py --K 3 --M 7

For each task the decomposer samples K plans from the first screenshot; for each plan the actor plays M episodes of at
most T steps in a real browser; both are updated from this one batch by its 0/1 rewards alone. How it differs from
textbook GRPO is at the head of jhima/grpo.py. Where the paper is silent:
1. a rollout batch is --tasks-per-batch tasks, and both optimisation steps go over all of it,
2. the loss constant is sequences x token budget, fixed before the rollout (grpo.loss_constants),
3. every episode plays in a world of its own; an episode that the environment broke leaves its group's mean,
4. samples with advantage zero are skipped while beta is 0: their gradient is exactly zero.
Defaults are the paper's (section 4.3). Running the same command again resumes; finished episodes are not replayed.

    --train actor                          the paper's ablation without decomposer RL
    --no-plan --M 21 (or 7)                its ablations without a decomposer: multi-turn GRPO of one model
    --train actor --decomposer http://localhost:8000/v1#MODEL       plans of an API model
    --alternate N, --shared                neighbouring methods: roles take turns, or are one set of weights
    --normalize-std --normalize-length     standard GRPO
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from jhima import grpo
from jhima.environment import (
    NAMES,
    Environment,
    add_sampler_arguments,
    add_site_arguments,
    check_environment,
    environment,
    load_tasks,
    sampler_for,
)
from jhima.episodes import Group, Task, load_group
from jhima.policy import Policy, Sample, check_checkpoint, default_dtype, load_policy, save_policy
from jhima.prompts import load_prompts
from jhima.rollout import Agents, Sampling, rollout, seed_of
from jhima.run_directory import same_run
from jhima.sampler import ApiSampler
from jhima.training.checkpoints import (
    Learner,
    batches_done,
    load_resumable,
    save_resumable,
    trained,
)
from jhima.training.deepspeed_engine import (
    all_sum,
    backward,
    init_distributed,
    make_engine,
    nothing,
    step,
)
from jhima.training.metrics import TokenSums, memory, rollout_metrics, tracker, write
from jhima.training.ranks import balanced, check_agreed
from jhima.training.watchdog import leave

ROLES = ("decomposer", "actor")
# What a run may be resumed with other values of: nothing that changes what it computes.
FREE = {
    "local_rank",
    "sites",
    "concurrency",
    "browsers",
    "keep",
    "judge_url",
    "epochs",
    "limit_batches",
    "micro_batch",
    "checkpointing",
    "kv_gib",
    "track",
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument_group("models and tasks").add_argument
    add(
        "--decomposer",
        default="checkpoints/decomposer",
        help="SFT checkpoint, or URL#MODEL (default: %(default)s)",
    )
    add("--actor", default="checkpoints/actor", help="SFT checkpoint (default: %(default)s)")
    add(
        "--tasks",
        default="pocket",
        help=f"a WebArena task file, or: {', '.join(NAMES)} (default: %(default)s)",
    )
    add(
        "--full",
        action="store_true",
        help="the pocket arena at 1280x720 with longer, shuffled lists",
    )
    add("--prompt", type=Path, help="JSON file of prompts over the checkpoints' own")
    add(
        "--judge-url",
        help="OpenAI-compatible endpoint for fuzzy_match (default: OpenAI's; pocket: its own)",
    )
    add("--judge-model", default="gpt-5.2-codex", help="(default: %(default)s)")
    add_site_arguments(add)
    add = parser.add_argument_group("rollout").add_argument
    add("--K", type=int, default=3, help="plans a task (default: %(default)s)")
    add("--M", type=int, default=7, help="episodes a plan (default: %(default)s)")
    add("--T", type=int, default=15, help="steps an episode, at most (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="of both policies (default: %(default)s)")
    add(
        "--tasks-per-batch",
        type=int,
        default=8,
        help="tasks in a rollout batch (default: %(default)s)",
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
    add(
        "--concurrency",
        type=int,
        default=32,
        help="browser contexts at once, a rank (default: %(default)s)",
    )
    add("--browsers", type=int, default=1, help="Chromium processes, a rank (default: %(default)s)")
    add_sampler_arguments(add)
    add(
        "--sampler-batch",
        type=int,
        default=32,
        help="replies sampled together; 1: no reply depends, even in its last "
        "bit, on what else is asked at that time (default: %(default)s)",
    )
    add = parser.add_argument_group("objective").add_argument
    add(
        "--passes",
        type=int,
        default=2,
        help="optimisation steps a rollout batch (default: %(default)s)",
    )
    add("--lr", type=float, default=1e-5, help="learning rate of both roles (default: %(default)s)")
    add(
        "--eps",
        type=float,
        default=0.2,
        help="clipping, epsilon_A = epsilon_D (default: %(default)s)",
    )
    add("--eps-high", type=float, help="clip-higher: clipping above 1 (default: --eps)")
    add(
        "--beta",
        type=float,
        default=0.0,
        help="KL weight against the SFT model (default: %(default)s)",
    )
    add(
        "--tis",
        type=float,
        metavar="C",
        help="weigh tokens by trainer's over sampler's probability, at most C (default: off)",
    )
    add(
        "--normalize-std",
        action="store_true",
        help="divide advantages by their group's standard deviation",
    )
    add(
        "--normalize-length",
        action="store_true",
        help="divide a sequence's loss by its length, not by the token budget",
    )
    add("--clip", type=float, default=1.0, help="gradient norm to clip at (default: %(default)s)")
    add("--lora-rank", type=int, default=32, help="(default: %(default)s)")
    add("--lora-alpha", type=int, default=64, help="(default: %(default)s)")
    add = parser.add_argument_group(
        "ablations, neighbouring methods and the paper's future work"
    ).add_argument
    add(
        "--train",
        choices=("both", *ROLES),
        default="both",
        help="roles to update (default: %(default)s)",
    )
    add(
        "--alternate",
        type=int,
        metavar="N",
        help="update one role at a time, the other after N batches (default: both at once)",
    )
    add(
        "--no-plan",
        action="store_true",
        help="an actor alone, without subtasks: one group of M episodes a task, no K",
    )
    add(
        "--shared",
        action="store_true",
        help="one set of weights, --actor's, plays both roles with their two prompts",
    )
    add(
        "--replan",
        type=int,
        default=0,
        metavar="N",
        help="a new plan every N steps of an episode (default: never)",
    )
    add(
        "--milestone",
        type=float,
        default=0.0,
        metavar="W",
        help="add W x the share of subtasks that a judge saw completed "
        "to the actor's reward, not to the plan's score (default: %(default)s)",
    )
    add = parser.add_argument_group("run").add_argument
    add("--out", type=Path, default=Path("runs/rl"), help="run directory (default: %(default)s)")
    add("--epochs", type=int, default=1, help="times through the tasks (default: %(default)s)")
    add("--limit-batches", type=int, help="stop after N rollout batches")
    add("--micro-batch", type=int, default=1, help="samples a backward pass (default: %(default)s)")
    add(
        "--checkpointing",
        choices=("auto", "on", "off"),
        default="auto",
        help="recompute activations; auto: where memory is short",
    )
    add(
        "--deepspeed-config",
        type=Path,
        default=Path("ds_config.json"),
        help="(default: %(default)s)",
    )
    add("--keep", type=int, default=2, help="checkpoints to keep (default: %(default)s)")
    add(
        "--track",
        choices=("tensorboard", "wandb"),
        help="send the metrics there too (default: RUN/metrics.jsonl alone)",
    )
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--local_rank", type=int, help=argparse.SUPPRESS)  # the deepspeed launcher gives it
    return parser.parse_args()


def check(args: argparse.Namespace) -> None:
    """Raises ValueError in one line for arguments that cannot be, or could not teach anything."""
    if args.no_plan:
        args.K, args.train = 1, "actor"  # one group of M episodes: the baseline is the task's mean
    for name in (
        "K",
        "M",
        "T",
        "tasks_per_batch",
        "passes",
        "epochs",
        "micro_batch",
        "sampler_batch",
        "keep",
        "alternate",
    ):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(
                f"--{name.replace('_', '-')}: expected at least 1, got {getattr(args, name)}"
            )
    for name in ("temperature", "lr", "eps", "eps_high", "tis", "clip"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            raise ValueError(
                f"--{name.replace('_', '-')}: expected more than 0, got {getattr(args, name)}"
            )
    planless = [
        name
        for name in ("shared", "replan", "milestone", "alternate")
        if args.no_plan and getattr(args, name)
    ]
    for nonsense, why in (
        (planless, f"--no-plan has no decomposer, so no --{'/'.join(planless)}"),
        (
            args.alternate and args.train != "both",
            f"--alternate switches between both roles, so no --train {args.train}",
        ),
        (
            args.train != "actor" and args.K < 2,
            "--K 1: a plan learns by comparison with others; give more, or --train actor",
        ),
        (
            args.train != "decomposer" and args.M < 2,
            "--M 1: an episode learns by comparison with others; give more",
        ),
        (
            args.replan and args.milestone,
            "--milestone judges the plan that an episode began with, so no --replan",
        ),
        (
            "#" in args.decomposer and (args.train != "actor" or args.shared),
            "an API decomposer needs --train actor",
        ),
    ):
        if nonsense:
            raise ValueError(why)


def main() -> None:
    # ---- 1. Arguments, checked before anything is loaded ----
    args = parse_args()
    try:
        check(args)
        for role in needed(args):
            check_checkpoint(
                getattr(args, role),
                f"deepspeed train_sft.py --role {role} (or `make demo`, which runs every stage)",
            )
        tasks = load_tasks(args.tasks)
        check_environment(args, tasks, int(os.environ.get("WORLD_SIZE", "1")))
        same_run(args, "train_rl.py", FREE)
        start = batches_done(args.out)
        track = tracker(args.track if os.environ.get("RANK", "0") == "0" else None, args)
    except ValueError as error:
        sys.exit(f"train_rl.py: {error}")
    rank, world, device = init_distributed(args.out)

    # ---- 2. Policies with an adapter each, and engines (ZeRO-1: ranks may hold different numbers of samples) ----
    learners = [load_learner(args, role, device) for role in needed(args)]
    load_resumable(args.out, learners, start)
    if rank == 0:
        Z = constants(args, args.tasks_per_batch)
        print(
            f"{len(tasks)} tasks, {args.tasks_per_batch} a batch on {world} ranks; {args.K} plans x {args.M} episodes a task; loss "
            f"constants: actor {Z['actor']:g}, decomposer {Z['decomposer']:g}"
            + (f"; resuming at batch {start}" if start else ""),
            flush=True,
        )
        if world > args.tasks_per_batch:
            print(
                f"warning: --tasks-per-batch {args.tasks_per_batch}: {world - args.tasks_per_batch} ranks play nothing",
                file=sys.stderr,
            )

    # ---- 3. Rollout, update, checkpoint ----
    asyncio.run(train(args, tasks, learners, start, rank, world, track))

    # ---- 4. The adapters: PEFT and vLLM load them as they are ----
    if rank == 0:
        for learner in trained(learners):
            for role in learner.roles:
                save_policy(learner.policy, args.out / role)
                print(f"{args.out / role}: the {role}'s adapter")
    leave()


def needed(args: argparse.Namespace) -> list[str]:
    """The arguments that name the checkpoints to load: one a set of weights."""
    return ["actor"] if args.shared or args.no_plan or "#" in args.decomposer else list(ROLES)


def load_learner(args: argparse.Namespace, source: str, device: torch.device) -> Learner:
    """A checkpoint with a fresh adapter and its optimizer, or alone where no role of it is ever updated."""
    roles = ROLES if args.shared else (source,)
    learns = args.train == "both" or args.train in roles
    torch.manual_seed(
        seed_of(args.seed, source)
    )  # a run killed before its first checkpoint draws the same adapter
    policy = load_policy(
        getattr(args, source),
        device,
        default_dtype(device),
        (args.lora_rank, args.lora_alpha) if learns else None,
        prompts=args.prompt,
        checkpointing=args.checkpointing,
    ).eval()
    if device.type == "cuda":
        policy.compile()
    engine = (
        make_engine(policy, args.deepspeed_config, args.lr, stage=1, bf16=False, clip=args.clip)
        if learns
        else None
    )
    return Learner(policy, roles, engine)


async def train(
    args: argparse.Namespace,
    tasks: list[Task],
    learners: list[Learner],
    start: int,
    rank: int,
    world: int,
    track,
) -> None:
    batches = task_batches(tasks, args)
    async with AsyncExitStack() as stack:
        agents = make_agents(args, learners, stack)
        samplers = {agents.decomposer, agents.actor} - {None}
        env = await stack.enter_async_context(environment(args))
        for number in tqdm(
            range(start, len(batches)),
            initial=start,
            total=len(batches),
            desc="rl",
            unit="batch",
            disable=rank != 0,
        ):
            # 3a. Rollout (eqs. 1 and 2): each rank plays its share of the batch's tasks.
            began = time.monotonic()
            folder = args.out / "rollouts" / f"{number:06d}"
            how = Sampling(
                args.temperature,
                args.temperature,
                args.plan_tokens,
                args.action_tokens,
                seed_of(args.seed, number),
                args.replan,
                args.milestone > 0,
            )
            env.failures.clear()
            sampled = sum(sampler.tokens for sampler in samplers)
            for sampler in samplers:
                await sampler.sync()
            await play_batch(env, agents, batches[number][rank::world], args, how, folder, rank)
            dist.barrier()
            groups = [
                g for t in batches[number] if (g := load_group(folder / t.id, t, args.K, args.M))
            ]
            check_agreed("episodes", [(g.task.id, g.rewards().tolist()) for g in groups])
            seconds = {"seconds/rollout": time.monotonic() - began}
            sampled = all_sum(sum(sampler.tokens for sampler in samplers) - sampled)[0]

            # 3b. Update (eqs. 5 to 11): each role from its own samples, both from the same batch.
            for sampler in samplers:
                await sampler.rest()
            Z = constants(args, len(batches[number]))
            player = {t.id: at % world for at, t in enumerate(batches[number])}
            played = [[g for g in groups if player[g.task.id] == r] for r in range(world)]
            rows = [{} for _ in range(args.passes)]
            for learner in trained(learners):
                began = time.monotonic()
                shares = {
                    role: balanced([useful(SAMPLES[role](own, args), args.beta) for own in played])[
                        rank
                    ]
                    for role in learner.roles
                    if role in updated(args, number)
                }
                for row, metrics in zip(rows, update(learner, shares, Z, args) if shares else []):
                    row |= metrics
                seconds[f"seconds/update_{learner.name}"] = time.monotonic() - began

            # 3c. One line of metrics an optimisation step, then the checkpoint that makes the batch count.
            if rank == 0:
                about = rollout_metrics(
                    groups, len(batches[number]), args.plan_tokens, args.action_tokens
                )
                speed = {"tokens_per_second/rollout": sampled / seconds["seconds/rollout"]}
                write(
                    args.out,
                    [
                        {
                            "step": number * args.passes + p,
                            "batch": number,
                            "pass": p,
                            **about,
                            **row,
                            **seconds,
                            **speed,
                            **memory(),
                        }
                        for p, row in enumerate(rows)
                    ],
                    track,
                )
            save_resumable(args.out, learners, number + 1, args.keep)


# ---- rollout ----


def make_agents(args: argparse.Namespace, learners: list[Learner], stack: AsyncExitStack) -> Agents:
    """The two policies as samplers with their prompts; with --shared one sampler is both. `stack` ends vLLM's engines."""
    samplers, prompts = {}, {}
    for source, learner in zip(needed(args), learners):
        sampler = sampler_for(
            learner.policy, getattr(args, source), args, stack, args.sampler_batch
        )
        for role in learner.roles:
            samplers[role], prompts[role] = sampler, learner.policy.prompts
    if "#" in args.decomposer and not (args.no_plan or args.shared):
        samplers["decomposer"] = ApiSampler(*args.decomposer.rsplit("#", 1))
        prompts["decomposer"] = load_prompts(None, args.prompt)
    return Agents(
        samplers.get("decomposer"),
        samplers["actor"],
        prompts.get("decomposer", prompts["actor"]),
        prompts["actor"],
    )


async def play_batch(
    env: Environment,
    agents: Agents,
    tasks: list[Task],
    args: argparse.Namespace,
    how: Sampling,
    folder: Path,
    rank: int,
) -> None:
    """Plays K x M episodes of each task, all at once; what `folder` already holds is not played again."""
    won, played = 0, 0
    with tqdm(
        total=len(tasks) * args.K * args.M,
        desc="rollout",
        unit="episode",
        leave=False,
        disable=rank != 0,
    ) as bar:

        def finished(e) -> None:
            nonlocal won, played
            won, played = won + (e.reward or 0), played + (e.reward is not None)
            bar.update()
            bar.set_postfix(success=f"{won}/{played}", failures=sum(env.failures.values()))

        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(
                    rollout(
                        env, agents, task, args.K, args.M, args.T, how, folder / task.id, finished
                    )
                )


def task_batches(tasks: list[Task], args: argparse.Namespace) -> list[list[Task]]:
    """The run's batches of tasks: each epoch in a fresh order; the last batch of an epoch may be smaller."""
    batches = []
    for epoch in range(args.epochs):
        order = list(tasks)
        random.Random(seed_of(args.seed, "order", epoch)).shuffle(order)
        batches += [
            order[at : at + args.tasks_per_batch]
            for at in range(0, len(order), args.tasks_per_batch)
        ]
    return batches[: args.limit_batches]


def updated(args: argparse.Namespace, number: int) -> tuple[str, ...]:
    """The roles that batch `number` updates."""
    if args.alternate:
        return (ROLES[number // args.alternate % 2],)
    return ROLES if args.train == "both" else (args.train,)


# ---- samples ----


def actor_samples(groups: list[Group], args: argparse.Namespace) -> list[Sample]:
    """Every action of every episode, with its episode's advantage A^A_ij (eq. 5)."""
    samples = []
    for g in groups:
        R = g.rewards() + (args.milestone * g.progress() if args.milestone else 0.0)  # [K, M]
        for row, advantages in zip(g.episodes, grpo.actor_advantages(R, args.normalize_std)):
            for e, A in zip(row, advantages):
                weight = (
                    1 / max(1, sum(len(s.ids) for s in e.steps)) if args.normalize_length else 1.0
                )
                samples += [
                    Sample(s.prompt_ids, s.screenshot, s.ids, float(A), s.logps, weight)
                    for s in e.steps
                ]
    return samples


def decomposer_samples(groups: list[Group], args: argparse.Namespace) -> list[Sample]:
    """Every plan, with its advantage A^D_i (eq. 9).

    A plan made anew in episode ij (--replan) served that episode alone: it has the episode's advantage A^A_ij, and
    weighs 1 / M, as the episode does in S_i.
    """
    samples = []
    for g in groups:
        R = g.rewards()  # [K, M]
        made = [
            (plan, g.first, A, 1.0)
            for plan, A in zip(
                g.plans, grpo.decomposer_advantages(grpo.plan_scores(R), args.normalize_std)
            )
        ]
        made += [
            (s.plan, s.screenshot, A, 1 / args.M)
            for row, advantages in zip(g.episodes, grpo.actor_advantages(R, args.normalize_std))
            for e, A in zip(row, advantages)
            for s in e.steps
            if s.plan
        ]
        samples += [
            Sample(
                plan.prompt_ids,
                image,
                plan.ids,
                float(A),
                plan.logps,
                weight / len(plan.ids) if args.normalize_length else weight,
            )
            for plan, image, A, weight in made
        ]
    return samples


SAMPLES = {"actor": actor_samples, "decomposer": decomposer_samples}


def useful(samples: list[Sample], beta: float) -> list[Sample]:
    """Samples that can have a gradient: those with an advantage, and all of them where a KL term counts."""
    return [s for s in samples if s.advantage != 0 or beta]


def constants(args: argparse.Namespace, tasks: int) -> dict[str, float]:
    return dict(
        zip(
            ("actor", "decomposer"),
            grpo.loss_constants(
                tasks,
                args.K,
                args.M,
                args.T,
                args.action_tokens,
                args.plan_tokens,
                args.normalize_length,
            ),
        )
    )


# ---- update ----


def update(
    learner: Learner,
    samples: dict[str, list[Sample]],
    Z: dict[str, float],
    args: argparse.Namespace,
) -> list[dict]:
    """All optimisation passes of a set of weights over this rank's samples of the roles that it plays (eq. 11: their
    losses add up). Returns a dict of global metrics a pass.

    pi_old is the policy that the rollout used. Nothing moves before the first step, so the first pass's own forward
    gives its log-probs: ratios are exactly 1 there, and no forward is spent on them.
    """
    policy, engine = learner.policy, learner.engine
    engine.train()
    parts = [
        (role, mine[at : at + args.micro_batch])
        for role, mine in samples.items()
        for at in range(0, len(mine), args.micro_batch)
    ]
    old: list[Tensor] = []
    rows = []
    for number in range(args.passes):
        sums = {role: TokenSums(policy.device) for role in samples}
        for at, (role, part) in enumerate(parts):
            logp, entropy = engine(part, args.temperature, True)  # [n], [n]
            if number == 0:
                old.append(logp.detach())
            loss = objective(policy, part, logp, old[at], Z[role], args)
            backward(engine, loss)
            sums[role].add(
                part, logp.detach(), old[at], entropy, loss.detach(), args.eps, args.eps_high
            )
        if not parts:
            backward(engine, nothing(policy))
        norm = step(engine, args.lr)
        rows.append(
            {
                f"{role}/{name}": value
                for role in samples
                for name, value in ({"grad_norm": norm} | sums[role].over_ranks()).items()
            }
        )
    engine.eval()
    return rows


def objective(
    policy: Policy,
    part: list[Sample],
    logp: Tensor,
    old: Tensor,
    constant: float,
    args: argparse.Namespace,
) -> Tensor:
    """The loss (eq. 7 or 10) of a micro-batch's tokens. logp, old [n]."""
    advantage, weight = (
        torch.tensor([getattr(s, name) for s in part for _ in s.response_ids], device=logp.device)
        for name in ("advantage", "weight")
    )  # [n] each
    correction, reference = 1.0, None
    if args.tis:
        correction = grpo.sampler_correction(
            old, torch.tensor([p for s in part for p in s.logps], device=logp.device), args.tis
        )
    if args.beta:
        with torch.no_grad(), policy.model.disable_adapter():  # the SFT model
            reference = policy(part, args.temperature)
    return grpo.policy_loss(
        logp,
        old,
        advantage,
        constant,
        args.eps,
        args.beta,
        reference,
        args.eps_high,
        correction,
        weight,
    )


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(
        int(os.environ.get("OMP_NUM_THREADS", "1" if not torch.cuda.is_available() else "8"))
    )
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train_rl.py: stopped; run the same command to go on")
    except (
        ExceptionGroup
    ) as group:  # of the rollout's coroutines: show the first cause, not the tree
        raise group.exceptions[0] from None
