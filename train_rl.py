"""Stage 3 (section 3.4): joint hierarchical multi-agent GRPO.

    deepspeed train_rl.py --K 3 --M 7                        # all visible GPUs, or one CPU process
    torchrun --nproc-per-node 2 train_rl.py --K 3 --M 7

For each task the decomposer samples K plans from the first screenshot; for each plan the actor
plays M episodes of at most T steps in a real browser; both are updated from this one batch by its
0/1 rewards alone. How it differs from textbook GRPO is at the head of jhima/grpo.py.

Where the paper is silent:
1. a rollout batch is --tasks-per-batch tasks, and both optimisation steps go over all of it
   (what its 32 accumulation steps say of that: docs/beside_the_paper.md),
2. the loss constant is sequences x token budget, fixed before the rollout (grpo.loss_constants),
3. every episode has a world of its own; one that the environment broke leaves its group's mean,
4. samples with advantage zero are skipped while beta is 0: their gradient is exactly zero.

Defaults are the paper's (section 4.3). The same command resumes; finished episodes are kept.

    --train actor                          the paper's ablation without decomposer RL
    --no-plan --M 21 (or 7)                its ablations without a decomposer: multi-turn GRPO
    --train actor --decomposer http://localhost:8000/v1#MODEL       plans of an API model
    --alternate N, --shared                neighbouring methods: roles take turns, or share weights
    --normalize-std --normalize-length     standard GRPO
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from jhima import cli, grpo
from jhima.environment import (
    Environment,
    EnvironmentOptions,
    check_environment,
    environment,
    load_tasks,
)
from jhima.episodes import Group, Task, load_group
from jhima.models.checkpoint_files import check_checkpoint
from jhima.models.openai_client import ApiFailure
from jhima.policy import Policy, Sample, default_dtype, load_policy, save_policy
from jhima.results.episode_bar import EpisodeBar
from jhima.rollout import Agents, Sampling, make_agents, rollout, seed_of
from jhima.run_directory import same_run
from jhima.sampler import SamplerOptions
from jhima.serving.checks import EngineFailure, check_sampler
from jhima.training import checkpoints, deepspeed_engine, metrics
from jhima.training.checkpoints import Learner, trained
from jhima.training.ranks import balanced, check_agreed
from jhima.training.watchdog import leave

ROLES = ("decomposer", "actor")
# Arguments that may differ when a run is resumed, because they do not affect its results.
FREE = {
    *("sites", "judge_url", "concurrency", "browsers", "kv_gib", "micro_batch", "checkpointing"),
    *("epochs", "limit_batches", "keep", "track"),
}


@dataclass
class Method:
    """The method and its ablations; every default is the paper's (section 4.3)."""

    decomposer: str = "checkpoints/decomposer"
    """SFT checkpoint, or URL#MODEL for the plans of an API model (with --train actor)"""
    actor: str = "checkpoints/actor"
    """SFT checkpoint"""
    K: int = 3
    """plans per task"""
    M: int = 7
    """episodes per plan"""
    T: int = 15
    """steps per episode, at most"""
    temperature: float = 0.8
    """of both policies"""
    tasks_per_batch: int = 8
    """tasks in a rollout batch"""
    plan_tokens: int = 512
    """token budget of a plan"""
    action_tokens: int = 256
    """token budget of an action"""
    passes: int = 2
    """optimisation steps per rollout batch"""
    lr: float = 1e-5
    """learning rate of both roles"""
    eps: float = 0.2
    """clipping, epsilon_A = epsilon_D"""
    beta: float = 0.0
    """weight of the KL divergence from the SFT model"""
    clip: float = 1.0
    """gradient norm to clip at"""
    lora_rank: int = 32
    """rank of the adapters"""
    lora_alpha: int = 64
    """scale of the adapters: alpha / rank"""
    eps_high: float | None = None
    """clip-higher: clipping above 1 (None: --eps)"""
    tis: float | None = None
    """truncated importance sampling: weigh tokens by the trainer's over the sampler's probability,
    at most this much (None: off)"""
    normalize_std: bool = False
    """divide advantages by their group's standard deviation"""
    normalize_length: bool = False
    """divide a plan's loss by its tokens, an episode's by its actions and each action's by its
    tokens (as M-GRPO does), not by the token budget"""
    train: Literal["both", "decomposer", "actor"] = "both"
    """roles to update"""
    alternate: int | None = None
    """update one role at a time, the other after this many batches (None: both at once)"""
    no_plan: bool = False
    """an actor alone, without subtasks: one group of M episodes per task, no K"""
    shared: bool = False
    """one set of weights, --actor's, plays both roles with their two prompts"""
    replan: int = 0
    """a new plan every N steps of an episode (0: never)"""
    milestone: float = 0.0
    """add this much times the share of subtasks that a judge saw completed to the actor's reward,
    not to the plan's score"""


@dataclass
class Args(EnvironmentOptions, SamplerOptions, Method):
    """The command line of train_rl.py."""

    epochs: int = 1
    """times through the tasks"""
    limit_batches: int | None = None
    """stop after this many rollout batches"""
    micro_batch: int = 1
    """samples per backward pass"""
    checkpointing: Literal["auto", "on", "off"] = "auto"
    """recompute activations in the backward pass; auto: where memory is short"""
    deepspeed_config: Path = Path("ds_config.json")
    """DeepSpeed's configuration"""
    prompt: Path | None = None
    """JSON file of prompts that replace the checkpoints' own"""
    keep: int = 2
    """checkpoints to keep"""
    track: Literal["tensorboard", "wandb"] | None = None
    """send the metrics there, too (None: only to RUN/metrics.jsonl)"""
    seed: int = 0
    """seed of every random draw"""


def checked(args: Args) -> Args:
    """The arguments, with what --no-plan implies.

    Raises ValueError in one line for arguments that cannot be, or could not teach anything.
    """
    if args.no_plan:  # one group of M episodes: the baseline is the task's mean
        args = replace(args, K=1, train="actor")
    counts = "K M T tasks_per_batch passes epochs micro_batch keep alternate browsers".split()
    for name in (*counts, "plan_tokens", "action_tokens", "concurrency", "limit_batches"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{flag(name)}: expected at least 1, got {value}")
    for name in ("temperature", "lr", "eps", "eps_high", "tis", "clip"):
        value = getattr(args, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"{flag(name)}: expected more than 0, got {value}")
    if args.no_plan:
        for name in ("shared", "replan", "milestone", "alternate"):
            if getattr(args, name):
                raise ValueError(f"--no-plan has no decomposer, so no {flag(name)}")
    if args.alternate and args.train != "both":
        raise ValueError(f"--alternate switches between both roles, so no --train {args.train}")
    if args.train != "actor" and args.K < 2:
        raise ValueError("--K 1: a plan learns by comparison with others; more, or --train actor")
    if args.train != "decomposer" and args.M < 2:
        raise ValueError("--M 1: an episode learns by comparison with others; give more")
    if args.replan and args.milestone:
        raise ValueError("--milestone judges the plan that an episode began with, so no --replan")
    if "#" in args.decomposer and (args.train != "actor" or args.shared):
        raise ValueError("an API decomposer needs --train actor")
    return args


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def main() -> None:
    # ---- 1. Arguments, checked before anything is loaded ----
    args = cli.parse(Args, __doc__)
    try:
        args = checked(args)
        for role in weights_of(args):
            made_by = f"deepspeed train_sft.py --role {role} (or `make demo`: all stages)"
            check_checkpoint(getattr(args, role), made_by)
            check_sampler(args, args.temperature, getattr(args, role), args.lora_rank)
        tasks = load_tasks(args.tasks)
        check_environment(args, tasks, int(os.environ.get("WORLD_SIZE", "1")))
        same_run(args, "train_rl.py", FREE)
        start = checkpoints.batches_done(args.out)
        is_first_rank = os.environ.get("RANK", "0") == "0"
        track = metrics.tracker(args.track if is_first_rank else None, args)
    except (OSError, ValueError) as error:
        sys.exit(f"train_rl.py: {error}")
    rank, world, device = deepspeed_engine.init_distributed(args.out)

    # ---- 2. Policies with an adapter each, and engines ----
    # ZeRO-1: ranks may hold different numbers of samples.
    learners = [load_learner(args, role, device) for role in weights_of(args)]
    checkpoints.load_resumable(args.out, learners, start)
    if rank == 0:
        announce(args, len(tasks), world, start)
        for why in dict.fromkeys(learner.policy.why_uncompiled() for learner in learners):
            print(f"layers run uncompiled: {why}" if why else "layers are compiled", flush=True)

    # ---- 3. Rollout, update, checkpoint; at the end the adapters ----
    asyncio.run(train(args, tasks, learners, start, track))

    leave()


def weights_of(args: Args) -> tuple[str, ...]:
    """The arguments that name the checkpoints to load, one per set of weights."""
    if args.shared or args.no_plan or "#" in args.decomposer:
        return ("actor",)
    return ROLES


def load_learner(args: Args, source: str, device: torch.device) -> Learner:
    """A checkpoint with a fresh adapter and its optimizer, or alone if no role of it is updated."""
    roles = ROLES if args.shared else (source,)
    learns = args.train == "both" or args.train in roles
    # A run that was killed before its first checkpoint draws the same adapter again.
    torch.manual_seed(seed_of(args.seed, source))
    policy = load_policy(
        getattr(args, source),
        device,
        default_dtype(device),
        lora=(args.lora_rank, args.lora_alpha) if learns else None,
        prompts=args.prompt,
        checkpointing=args.checkpointing,
    ).eval()
    if not policy.why_uncompiled():
        policy.compile()
    engine = None
    if learns:
        config = args.deepspeed_config
        engine = deepspeed_engine.make_engine(
            policy, config, args.lr, stage=1, bf16=False, clip=args.clip
        )
    return Learner(policy, roles, engine)


def announce(args: Args, tasks: int, world: int, start: int) -> None:
    Z = loss_constants(args, args.tasks_per_batch)
    resuming = f"; resuming at batch {start}" if start else ""
    print(
        f"{tasks} tasks, {args.tasks_per_batch} per batch on {world} ranks; "
        f"{args.K} plans x {args.M} episodes per task; loss constants: "
        f"actor {Z['actor']:g}, decomposer {Z['decomposer']:g}{resuming}",
        flush=True,
    )
    idle = world - args.tasks_per_batch
    if idle > 0:
        warning = f"warning: --tasks-per-batch {args.tasks_per_batch}: {idle} ranks play nothing"
        print(warning, file=sys.stderr)


async def train(args: Args, tasks: list[Task], learners: list[Learner], start: int, track) -> None:
    """The training loop: per batch a rollout, an update of each set of weights, a checkpoint.

    track(step, row) sends a row of metrics to a tracker.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = task_batches(tasks, args)
    async with AsyncExitStack() as stack:
        agents, env = await asyncio.gather(
            asyncio.to_thread(make_agents, sources(args, learners), args, args.prompt, stack),
            stack.enter_async_context(environment(args)),
        )
        samplers = agents.samplers()
        progress = tqdm(
            range(start, len(batches)),
            initial=start,
            total=len(batches),
            desc="rl",
            unit="batch",
            disable=rank != 0,
        )
        for number in progress:
            # 3a. Rollout (eqs. 1 and 2): each rank plays its share of the batch's tasks.
            batch = batches[number]
            rollout_start = time.monotonic()
            tokens_before = sum(sampler.tokens for sampler in samplers)
            for sampler in samplers:
                await sampler.sync()
            env.failures.clear()
            folder = args.out / "rollouts" / f"{number:06d}"
            await play_batch(env, agents, batch[rank::world], args, number, folder)
            dist.barrier()
            groups = load_groups(folder, batch, args)
            check_agreed("episodes", [(g.task.id, g.rewards().tolist()) for g in groups])
            seconds = {"seconds/rollout": time.monotonic() - rollout_start}
            tokens = deepspeed_engine.all_sum(
                sum(sampler.tokens for sampler in samplers) - tokens_before
            )[0]

            # 3b. Update (eqs. 5 to 11): each role from its own samples, both from the same batch.
            for sampler in samplers:
                await sampler.rest()
            rows = [{} for _ in range(args.passes)]
            for learner in trained(learners):
                update_start = time.monotonic()
                samples = samples_of_rank(args, learner, number, by_player(groups, batch, world))
                if samples:
                    passes = update(learner, samples, loss_constants(args, len(batch)), args)
                    rows = [row | more for row, more in zip(rows, passes)]
                seconds[f"seconds/update_{learner.name}"] = time.monotonic() - update_start

            for learner in learners:
                learner.policy.feature_cache.clear()  # hardly a screenshot comes again

            # 3c. One line of metrics per optimisation step; then the checkpoint, which makes the
            #     batch count.
            if rank == 0:
                shared = metrics.rollout_metrics(
                    groups, len(batch), args.plan_tokens, args.action_tokens
                )
                speed = {"tokens_per_second/rollout": tokens / seconds["seconds/rollout"]}
                for p, row in enumerate(rows):
                    place = {"step": number * args.passes + p, "batch": number, "pass": p}
                    rows[p] = place | shared | row | seconds | speed | metrics.memory()
                metrics.write(args.out, rows, track)
            checkpoints.end_if_stuck(learners, number, args.passes * len(batches))
            checkpoints.save_resumable(args.out, learners, number + 1, args.keep)

        # 3d. Before engines and browsers are shut down, which may fail: the adapters.
        if rank == 0:
            save_adapters(args.out, learners)


def save_adapters(out: Path, learners: list[Learner]) -> None:
    """OUT/<role>, which PEFT and vLLM load as it is."""
    for learner in trained(learners):
        for role in learner.roles:
            save_policy(learner.policy, out / role)
            print(f"{out / role}: the {role}'s adapter")


# ---- rollout ----


def sources(args: Args, learners: list[Learner]) -> dict[str, Policy | str]:
    """Role -> the policy that plays it, or the API model that makes the plans."""
    policies: dict[str, Policy | str] = {}
    for learner in learners:
        for role in learner.roles:
            policies[role] = learner.policy
    if "#" in args.decomposer and not (args.no_plan or args.shared):
        policies["decomposer"] = args.decomposer
    return policies


async def play_batch(
    env: Environment, agents: Agents, tasks: list[Task], args: Args, number: int, folder: Path
) -> None:
    """Plays K x M episodes of each task, all at once; what `folder` already holds is kept."""
    sampling = Sampling(
        plan_temperature=args.temperature,
        temperature=args.temperature,
        plan_tokens=args.plan_tokens,
        action_tokens=args.action_tokens,
        seed=seed_of(args.seed, number),
        replan=args.replan,
        milestones=args.milestone > 0,
    )
    episodes = len(tasks) * args.K * args.M
    hidden = dist.get_rank() != 0
    with EpisodeBar("rollout", episodes, env.failures, leave=False, disable=hidden) as bar:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                sizes, place = (args.K, args.M, args.T), folder / task.id
                group.create_task(rollout(env, agents, task, *sizes, sampling, place, bar.finished))


def task_batches(tasks: list[Task], args: Args) -> list[list[Task]]:
    """The run's batches: each epoch in a fresh order; an epoch's last batch may be smaller."""
    batches = []
    for epoch in range(args.epochs):
        order = list(tasks)
        random.Random(seed_of(args.seed, "order", epoch)).shuffle(order)
        for first in range(0, len(order), args.tasks_per_batch):
            batches.append(order[first : first + args.tasks_per_batch])
    return batches[: args.limit_batches]


def load_groups(folder: Path, batch: list[Task], args: Args) -> list[Group]:
    """The batch's groups in its tasks' order, without tasks whose start page never opened."""
    groups = [load_group(folder / task.id, task, args.K, args.M) for task in batch]
    return [group for group in groups if group is not None]


def by_player(groups: list[Group], batch: list[Task], world: int) -> list[list[Group]]:
    """Groups by the rank that played them."""
    player = {task.id: n % world for n, task in enumerate(batch)}
    played = [[] for _ in range(world)]
    for group in groups:
        played[player[group.task.id]].append(group)
    return played


# ---- samples ----


def actor_samples(groups: list[Group], args: Args) -> list[Sample]:
    """Every action of every episode, with its episode's advantage A^A_ij (eq. 5)."""
    samples = []
    for group in groups:
        R = group.rewards()  # [K, M]
        if args.milestone:
            R = R + args.milestone * group.progress()
        A = grpo.actor_advantages(R, args.normalize_std)  # [K, M]
        for i, episodes in enumerate(group.episodes):
            for j, episode in enumerate(episodes):
                for s in episode.steps:
                    weight = 1.0
                    if args.normalize_length:
                        weight = 1 / (len(episode.steps) * max(1, len(s.ids)))
                    samples.append(
                        Sample(s.prompt_ids, s.screenshot, s.ids, float(A[i, j]), s.logps, weight)
                    )
    return samples


def decomposer_samples(groups: list[Group], args: Args) -> list[Sample]:
    """Every plan, with its advantage A^D_i (eq. 9).

    A plan made in mid-episode (--replan) is trained with that episode's advantage A^A_ij, at
    weight 1/M, as the episode has in S_i.
    """
    samples = []

    def add(plan, image: bytes, advantage: Tensor, weight: float) -> None:
        if args.normalize_length:
            weight = weight / max(1, len(plan.ids))
        samples.append(
            Sample(plan.prompt_ids, image, plan.ids, float(advantage), plan.logps, weight)
        )

    for group in groups:
        R = group.rewards()  # [K, M]
        S = grpo.plan_scores(R)  # [K]
        for plan, advantage in zip(group.plans, grpo.decomposer_advantages(S, args.normalize_std)):
            add(plan, group.first, advantage, 1.0)
        A = grpo.actor_advantages(R, args.normalize_std)  # [K, M]
        for i, episodes in enumerate(group.episodes):
            for j, episode in enumerate(episodes):
                for s in episode.steps:
                    if s.plan:
                        add(s.plan, s.screenshot, A[i, j], 1 / args.M)
    return samples


SAMPLES = {"actor": actor_samples, "decomposer": decomposer_samples}


def useful(samples: list[Sample], beta: float) -> list[Sample]:
    """Samples that can have a gradient: those with an advantage, or all if a KL term counts.

    A prompt that did not fit has no reply (sampler.lost).
    """
    return [s for s in samples if s.response_ids and (s.advantage != 0 or beta)]


def updated_roles(args: Args, number: int) -> tuple[str, ...]:
    """The roles that batch `number` updates."""
    if args.alternate:
        return (ROLES[number // args.alternate % 2],)
    return ROLES if args.train == "both" else (args.train,)


def samples_of_rank(
    args: Args, learner: Learner, number: int, played: list[list[Group]]
) -> dict[str, list[Sample]]:
    """Role -> what this rank trains on in batch `number`, for the learner's updated roles.

    played: groups by the rank that played them; samples are dealt out anew, equal in tokens.
    """
    shares = {}
    for role in learner.roles:
        if role in updated_roles(args, number):
            by_rank = [useful(SAMPLES[role](groups, args), args.beta) for groups in played]
            shares[role] = balanced(by_rank)[dist.get_rank()]
    return shares


def loss_constants(args: Args, tasks: int) -> dict[str, float]:
    """Z: what each role's loss is divided by in a batch of so many tasks."""
    actor, decomposer = grpo.loss_constants(
        tasks, args.K, args.M, args.T, args.action_tokens, args.plan_tokens, args.normalize_length
    )
    return {"actor": actor, "decomposer": decomposer}


# ---- update ----


def update(
    learner: Learner, samples: dict[str, list[Sample]], Z: dict[str, float], args: Args
) -> list[dict]:
    """All optimisation passes of one set of weights over this rank's samples of its roles.

    Eq. 11: the roles' losses add up. Returns one dict of metrics over all ranks per pass.

    pi_old is the policy that the rollout used. Nothing moves before the first step, so the first
    pass's own forward gives its log-probs: ratios are exactly 1 there, at no extra forward.
    """
    policy, engine = learner.policy, learner.engine
    engine.train()
    parts = micro_batches(samples, args.micro_batch)
    old_logps: list[Tensor] = []
    rows = []
    for number in range(args.passes):
        sums = {role: metrics.TokenSums(policy.device, args.eps, args.eps_high) for role in samples}
        for n, (role, part) in enumerate(parts):
            logp, entropy = engine(part, args.temperature, True)  # [tokens], [tokens]
            if number == 0:
                old_logps.append(logp.detach())
            loss = objective(policy, part, logp, old_logps[n], Z[role], args)
            deepspeed_engine.backward(engine, loss)
            sums[role].add(part, logp.detach(), old_logps[n], entropy, loss.detach())
        if not parts:  # every rank joins the collective
            deepspeed_engine.backward(engine, deepspeed_engine.nothing(policy))
        stepped = checkpoints.step(learner, args.lr)
        row = {}
        for role in samples:
            for name, value in (sums[role].over_ranks() | stepped).items():
                row[f"{role}/{name}"] = value
        rows.append(row)
    engine.eval()
    return rows


def micro_batches(samples: dict[str, list[Sample]], size: int) -> list[tuple[str, list[Sample]]]:
    """(role, samples) of each backward pass."""
    parts = []
    for role, own in samples.items():
        for first in range(0, len(own), size):
            parts.append((role, own[first : first + size]))
    return parts


def objective(
    policy: Policy, part: list[Sample], logp: Tensor, logp_old: Tensor, constant: float, args: Args
) -> Tensor:
    """The loss (eq. 7 or 10) of a micro-batch's tokens. logp, logp_old [tokens]."""
    advantages, weights = [], []
    for s in part:
        advantages += [s.advantage] * len(s.response_ids)
        weights += [s.weight] * len(s.response_ids)
    correction, logp_ref = 1.0, None
    if args.tis:
        sampled = torch.tensor(sum((s.logps for s in part), []), device=logp.device)  # [tokens]
        correction = grpo.sampler_correction(logp_old, sampled, args.tis)
    if args.beta:
        with torch.no_grad(), policy.model.disable_adapter():  # the SFT model
            logp_ref = policy(part, args.temperature)
    return grpo.policy_loss(
        logp,
        logp_old,
        torch.tensor(advantages, device=logp.device),
        constant,
        eps=args.eps,
        beta=args.beta,
        logp_ref=logp_ref,
        eps_high=args.eps_high,
        correction=correction,
        weight=torch.tensor(weights, device=logp.device),
    )


if __name__ == "__main__":
    cli.run(main, ApiFailure, EngineFailure)
