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
"""
from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from jhima import grpo
from jhima.engine import all_sum, backward, init_distributed, make_engine, nothing, step
from jhima.episodes import Group, load_group
from jhima.policy import Policy, Sample, check_checkpoint, default_dtype, load_policy, save_policy
from jhima.rollout import Agents, Environment, Sampling, rollout, seed_of
from jhima.runs import add_site_arguments, check_environment, environment, same_run
from jhima.sampler import LocalSampler
from jhima.tasks import NAMES, Task, load_tasks

ROLES = ("decomposer", "actor")
# What a run may be resumed with other values of: nothing that changes what it computes.
FREE = {"local_rank", "sites", "concurrency", "browsers", "keep", "judge_url", "epochs", "limit_batches", "micro_batch"}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--decomposer", default="checkpoints/decomposer", help="SFT checkpoint (default: %(default)s)")
    add("--actor", default="checkpoints/actor", help="SFT checkpoint (default: %(default)s)")
    add("--tasks", default="pocket", help=f"a WebArena task file, or: {', '.join(NAMES)} (default: %(default)s)")
    add("--out", type=Path, default=Path("runs/rl"), help="run directory (default: %(default)s)")
    add("--K", type=int, default=3, help="plans a task (default: %(default)s)")
    add("--M", type=int, default=7, help="episodes a plan (default: %(default)s)")
    add("--T", type=int, default=15, help="steps an episode, at most (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="of both policies (default: %(default)s)")
    add("--tasks-per-batch", type=int, default=8, help="tasks in a rollout batch (default: %(default)s)")
    add("--passes", type=int, default=2, help="optimisation steps a rollout batch (default: %(default)s)")
    add("--epochs", type=int, default=1, help="times through the tasks (default: %(default)s)")
    add("--limit-batches", type=int, help="stop after N rollout batches")
    add("--lr", type=float, default=1e-5, help="learning rate of both roles (default: %(default)s)")
    add("--eps", type=float, default=0.2, help="clipping, epsilon_A = epsilon_D (default: %(default)s)")
    add("--beta", type=float, default=0.0, help="KL weight against the SFT model (default: %(default)s)")
    add("--normalize-std", action="store_true", help="divide advantages by their group's standard deviation")
    add("--clip", type=float, default=1.0, help="gradient norm to clip at (default: %(default)s)")
    add("--lora-rank", type=int, default=32, help="(default: %(default)s)")
    add("--lora-alpha", type=int, default=64, help="(default: %(default)s)")
    add("--train", choices=("both", *ROLES), default="both", help="roles to update (default: %(default)s)")
    add("--plan-tokens", type=int, default=512, help="token budget of a plan (default: %(default)s)")
    add("--action-tokens", type=int, default=256, help="token budget of an action (default: %(default)s)")
    add("--micro-batch", type=int, default=1, help="samples a backward pass (default: %(default)s)")
    add("--concurrency", type=int, default=32, help="browser contexts at once, a rank (default: %(default)s)")
    add("--browsers", type=int, default=1, help="Chromium processes, a rank (default: %(default)s)")
    add("--full", action="store_true", help="the pocket arena at 1280x720 with longer, shuffled lists")
    add("--judge-url", help="OpenAI-compatible endpoint for fuzzy_match (default: OpenAI's; pocket: its own)")
    add("--judge-model", default="gpt-5.2-codex", help="(default: %(default)s)")
    add_site_arguments(add)
    add("--deepspeed-config", type=Path, default=Path("ds_config.json"), help="(default: %(default)s)")
    add("--prompt", type=Path, help="JSON file of prompts over the checkpoints' own")
    add("--keep", type=int, default=2, help="checkpoints to keep (default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    # ---- 1. Arguments, checked before anything is loaded ----
    args = parse_args()
    try:
        for role in ROLES:
            check_checkpoint(getattr(args, role), f"deepspeed train_sft.py --role {role} (or `make demo`, which runs every stage)")
        tasks = load_tasks(args.tasks)
        for name in ("K", "M", "T", "tasks_per_batch", "passes", "epochs", "micro_batch"):
            if getattr(args, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, got {getattr(args, name)}")
        check_environment(args, tasks, int(os.environ.get("WORLD_SIZE", "1")))
        same_run(args, "train_rl.py", FREE)
    except ValueError as error:
        sys.exit(f"train_rl.py: {error}")
    rank, world, device = init_distributed()

    # ---- 2. Two policies with an adapter each, two engines (ZeRO-1: ranks may hold different numbers of samples) ----
    policies = {role: load_policy(getattr(args, role), device, default_dtype(device), (args.lora_rank, args.lora_alpha),
                                  prompts=args.prompt) for role in ROLES}
    engines = {role: make_engine(policies[role], args.deepspeed_config, args.lr, stage=1, bf16=False, clip=args.clip)
               for role in ROLES if args.train in ("both", role)}
    start = resume(args.out, engines)
    if rank == 0:
        Z_A, Z_D = constants(args, args.tasks_per_batch)
        print(f"{len(tasks)} tasks, {args.tasks_per_batch} a batch on {world} ranks; {args.K} plans x {args.M} episodes a task; "
              f"loss constants: actor {Z_A:g}, decomposer {Z_D:g}" + (f"; resuming at batch {start}" if start else ""), flush=True)

    # ---- 3. Rollout, update, checkpoint ----
    asyncio.run(train(args, tasks, policies, engines, start, rank, world))

    # ---- 4. The adapters: PEFT and vLLM load them as they are ----
    if rank == 0:
        for role in engines:
            save_policy(policies[role], args.out / role)
        print(f"{args.out}: adapters in {', '.join(f'{args.out / role}' for role in engines)}")
    dist.barrier()
    dist.destroy_process_group()


async def train(args: argparse.Namespace, tasks: list[Task], policies: dict[str, Policy], engines: dict, start: int,
                rank: int, world: int) -> None:
    samplers = {role: LocalSampler(policies[role]) for role in ROLES}
    agents = Agents(samplers["decomposer"], samplers["actor"], *(policies[role].prompts for role in ROLES))
    batches = task_batches(tasks, args)
    async with environment(args) as env:
        for number in tqdm(range(start, len(batches)), initial=start, total=len(batches), desc="rl", unit="batch",
                           disable=rank != 0):
            # 3a. Rollout (eqs. 1 and 2): each rank plays its share of the batch's tasks.
            began = time.monotonic()
            folder = args.out / "rollouts" / f"{number:06d}"
            how = Sampling(args.temperature, args.temperature, args.plan_tokens, args.action_tokens,
                           seed_of(args.seed, number))
            env.failures.clear()
            await play_batch(env, agents, batches[number][rank::world], args, how, folder, rank)
            dist.barrier()
            groups = [g for t in batches[number] if (g := load_group(folder / t.id, t, args.K, args.M))]
            rollout_seconds = time.monotonic() - began

            # 3b. Update (eqs. 5 to 11): each role from its own samples, both from the same batch.
            began = time.monotonic()
            shared = rollout_metrics(groups, len(batches[number]))
            Z = dict(zip(("actor", "decomposer"), constants(args, len(batches[number]))))
            samples = {"actor": actor_samples(groups, args.normalize_std),
                       "decomposer": decomposer_samples(groups, args.normalize_std)}
            per_pass = [{} for _ in range(args.passes)]
            for role, engine in engines.items():
                share = balanced(useful(samples[role], args.beta), world)[rank]
                for row, metrics in zip(per_pass, update(engine, policies[role], share, Z[role], args)):
                    row |= {f"{role}/{k}": v for k, v in metrics.items()}
            update_seconds = time.monotonic() - began

            # 3c. One line of metrics an optimisation step, then the checkpoint that makes the batch count.
            failures = all_sum(*(env.failures.get(kind, 0) for kind in ("browser", "site", "login", "judge", "deadline")))
            if rank == 0:
                log(args.out, [{"batch": number, "pass": p, **shared, "environment_failures": sum(failures),
                                "seconds/rollout": rollout_seconds, "seconds/update": update_seconds, **row}
                               for p, row in enumerate(per_pass)])
            save_resumable(args.out, engines, policies, number + 1, args.keep)


# ---- rollout ----

async def play_batch(env: Environment, agents: Agents, tasks: list[Task], args: argparse.Namespace, how: Sampling,
                     folder: Path, rank: int) -> None:
    """Plays K x M episodes of each task, all at once; what `folder` already holds is not played again."""
    won, played = 0, 0
    with tqdm(total=len(tasks) * args.K * args.M, desc="rollout", unit="episode", leave=False, disable=rank != 0) as bar:
        def finished(e) -> None:
            nonlocal won, played
            won, played = won + (e.reward or 0), played + (e.reward is not None)
            bar.update()
            bar.set_postfix(success=f"{won}/{played}", failures=sum(env.failures.values()))

        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(rollout(env, agents, task, args.K, args.M, args.T, how, folder / task.id, finished))


def task_batches(tasks: list[Task], args: argparse.Namespace) -> list[list[Task]]:
    """The run's batches of tasks: each epoch in a fresh order; the last batch of an epoch may be smaller."""
    batches = []
    for epoch in range(args.epochs):
        order = list(tasks)
        random.Random(seed_of(args.seed, "order", epoch)).shuffle(order)
        batches += [order[at:at + args.tasks_per_batch] for at in range(0, len(order), args.tasks_per_batch)]
    return batches[:args.limit_batches]


# ---- samples ----

def actor_samples(groups: list[Group], normalize_std: bool) -> list[Sample]:
    """Every action of every episode, with its episode's advantage A^A_ij (eq. 5)."""
    return [Sample(s.prompt_ids, s.screenshot, s.ids, float(A), s.logps)
            for g in groups for row, advantages in zip(g.episodes, grpo.actor_advantages(g.rewards(), normalize_std))
            for e, A in zip(row, advantages) for s in e.steps]


def decomposer_samples(groups: list[Group], normalize_std: bool) -> list[Sample]:
    """Every plan, with its advantage A^D_i (eq. 9)."""
    return [Sample(plan.prompt_ids, g.first, plan.ids, float(A), plan.logps)
            for g in groups
            for plan, A in zip(g.plans, grpo.decomposer_advantages(grpo.plan_scores(g.rewards()), normalize_std))]


def useful(samples: list[Sample], beta: float) -> list[Sample]:
    """Samples that can have a gradient: those with an advantage, and all of them where a KL term counts."""
    return [s for s in samples if s.advantage != 0 or beta]


def balanced(samples: list[Sample], world: int) -> list[list[Sample]]:
    """Samples dealt to ranks by tokens, longest first to the least loaded; each rank's lie in order of length."""
    shares, load = [[] for _ in range(world)], [0] * world
    for s in sorted(samples, key=lambda s: len(s.prompt_ids) + len(s.response_ids), reverse=True):
        least = load.index(min(load))
        shares[least].append(s)
        load[least] += len(s.prompt_ids) + len(s.response_ids)
    return shares


def constants(args: argparse.Namespace, tasks: int) -> tuple[float, float]:
    return grpo.loss_constants(tasks, args.K, args.M, args.T, args.action_tokens, args.plan_tokens)


# ---- update ----

def update(engine, policy: Policy, samples: list[Sample], constant: float, args: argparse.Namespace) -> list[dict]:
    """All optimisation passes of one role over this rank's samples; returns a dict of global metrics a pass.

    pi_old is the policy that the rollout used. Nothing moves before the first step, so the first pass's own forward
    gives its log-probs: ratios are exactly 1 there, and no forward is spent on them.
    """
    engine.train()
    parts = [samples[at:at + args.micro_batch] for at in range(0, len(samples), args.micro_batch)]
    old: list[Tensor] = []
    rows = []
    for number in range(args.passes):
        sums = dict.fromkeys(("loss", "tokens", "clipped", "kl", "gap", "entropy"), 0.0)
        for at, part in enumerate(parts):
            logp, entropy = engine(part, args.temperature, True)                        # [n], [n]
            if number == 0:
                old.append(logp.detach())
            advantage = torch.tensor([s.advantage for s in part for _ in s.response_ids], device=logp.device)   # [n]
            reference = reference_logp(policy, part, args.temperature) if args.beta else None
            loss = grpo.policy_loss(logp, old[at], advantage, constant, args.eps, args.beta, reference)
            backward(engine, loss)
            with torch.no_grad():
                ratio = grpo.token_ratio(logp, old[at])
                sampled = torch.tensor([p for s in part for p in s.logps], device=logp.device)
                beyond = ((ratio < 1 - args.eps) & (advantage < 0)) | ((ratio > 1 + args.eps) & (advantage > 0))
                for name, value in (("loss", loss), ("tokens", logp.numel()), ("clipped", beyond.sum()), ("entropy", entropy.sum()),
                                    ("kl", grpo.k3(logp, old[at]).sum()), ("gap", (old[at] - sampled).abs().sum())):
                    sums[name] += float(value)
        if not parts:
            backward(engine, nothing(policy))
        norm = step(engine, args.lr)
        total = dict(zip(sums, all_sum(*sums.values())))
        n = max(1.0, total["tokens"])
        rows.append({"loss": total["loss"], "grad_norm": norm, "tokens": int(total["tokens"]), "clip_share": total["clipped"] / n,
                     "approx_kl": total["kl"] / n, "entropy": total["entropy"] / n, "sampler_gap": total["gap"] / n})
    engine.eval()
    return rows


@torch.no_grad()
def reference_logp(policy: Policy, part: list[Sample], temperature: float) -> Tensor:
    """Log-probs under the SFT model: the same weights without the adapter."""
    with policy.model.disable_adapter():
        return policy(part, temperature)


# ---- metrics ----

def rollout_metrics(groups: list[Group], asked: int) -> dict:
    """What the batch's rewards say; the glossary is in the README."""
    if not groups:
        return {"tasks": 0, "tasks_lost": asked}
    R = torch.stack([g.rewards() for g in groups])                                      # [B, K, M]
    S = grpo.plan_scores(R)                                                             # [B, K]
    steps = [s for g in groups for row in g.episodes for e in row for s in e.steps]
    episodes = [e for g in groups for row in g.episodes for e in row]
    known = ~R.isnan()
    return {
        "tasks": len(groups), "tasks_lost": asked - len(groups), "reward": float(R.nanmean()),
        "episodes": len(episodes), "episodes_lost": int((~known).sum()),
        "plan_spread": float((S.nan_to_num(-1.0).amax(-1) - S.nan_to_num(2.0).amin(-1)).clamp(min=0).mean()),
        "actor/all_0": share((R == 1).any(-1).logical_not() & known.any(-1)),
        "actor/all_1": share((R == 0).any(-1).logical_not() & known.any(-1)),
        "decomposer/no_signal": share(grpo.decomposer_advantages(S).abs().amax(-1) == 0),
        "steps": len(steps) / max(1, int(known.sum())),
        "parse_failures": sum(s.turn.error is not None for s in steps) / max(1, len(steps)),
        "retries": sum(e.retries for e in episodes),
    }


def share(flags: Tensor) -> float:
    return float(flags.float().mean())


def log(out: Path, rows: list[dict]) -> None:
    with (out / "metrics.jsonl").open("a") as metrics:
        metrics.writelines(json.dumps(row) + "\n" for row in rows)


# ---- checkpoints ----

def save_resumable(out: Path, engines: dict, policies: dict[str, Policy], done: int, keep: int) -> None:
    """Optimizers and adapters after `done` batches. state.json, replaced last and at once, makes a checkpoint count."""
    place = out / "checkpoints" / f"{done:06d}"
    for role, engine in engines.items():
        engine.save_checkpoint(place / role, tag="engine", exclude_frozen_parameters=True)
    if dist.get_rank() == 0:
        for role in engines:
            save_policy(policies[role], place / role / "adapter")
        part = out / "state.part"
        part.write_text(json.dumps({"batches": done}), "utf-8")
        part.replace(out / "state.json")
        for old in sorted((out / "checkpoints").iterdir())[:-keep]:
            shutil.rmtree(old)
    dist.barrier()


def resume(out: Path, engines: dict) -> int:
    """Loads the last checkpoint into the engines; returns the number of batches done. Lines of metrics of a batch that
    did not get as far as its checkpoint are dropped: it is updated again."""
    if not (out / "state.json").exists():
        return 0
    done = json.loads((out / "state.json").read_text("utf-8"))["batches"]
    for role, engine in engines.items():
        engine.load_checkpoint(out / "checkpoints" / f"{done:06d}" / role, tag="engine", load_module_strict=False)
    if dist.get_rank() == 0 and (out / "metrics.jsonl").exists():
        lines = [line for line in (out / "metrics.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
        (out / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["batch"] < done))
    return done


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1" if not torch.cuda.is_available() else "8")))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("train_rl.py: stopped; run the same command to go on")
    except ExceptionGroup as group:                  # of the rollout's coroutines: show the first cause, not the tree
        raise group.exceptions[0] from None
