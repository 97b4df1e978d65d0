"""What a whole RL task costs: rollouts in real Chromium with vLLM, and the update that follows.

    python benchmarks/rollout.py                      # one GPU, 7B shape, 63 episodes at once: about 9 minutes
    python benchmarks/rollout.py --tiny --M 2 --T 3   # the pocket base model, on anything that runs vLLM
    python benchmarks/rollout.py --gpu-gib 80 --engines 2 --kv-gib 4 --tasks 1 --T 5 --latency 1    # fits 80 GB?

Ours: --tasks tasks of K plans x M episodes x T steps at once, by jhima.rollout and jhima.serving.vllm_sampler, then two passes
of the update over samples of one task. Against it, for the same work: a lock-step loop that plays one task's K x M
episodes in rounds (all screenshots, one batch of replies with vLLM's own image processing, all actions, a fixed sleep)
and a transformers + PEFT update. Real: pages, latency, screenshots, prompts, sampled ids, log-probs, gradients. Made
up, because random weights solve nothing: what the browser does (clicks and scrolls drawn at random, so that pages
change) and the rewards of the update (a coin a episode, so that no sample is skipped). Prints, last, GPU-seconds a
task; writes runs/benchmarks/rollout.json and, with matplotlib, rollout.png.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from PIL import Image
from shape import (
    BASE,
    DEVICE,
    OUT,
    Watch,
    make_policy,
    random_model,
    randomize,
    report,
    write_shape,
)
from tqdm import tqdm
from update import loss_of, seconds, stock_logp, stock_processor, stock_settings

from jhima import grpo
from jhima.actions import format_reply, parse
from jhima.browser.chromium import Browsers
from jhima.coordinates import smart_resize
from jhima.environment import Environment, load_tasks
from jhima.episodes import Group, Task
from jhima.pocket.arena import PocketArena
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.policy import Policy, Sample, free_memory
from jhima.rollout import Agents, Sampling, describe, perform, rollout
from jhima.sampler import Completion
from jhima.webarena.judge import Judge

if find_spec("vllm"):  # scaling.py uses parts of this file without it
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from jhima.serving.vllm_sampler import VllmSampler, start_engine, stop_engine

TEMPERATURE = 0.8


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="the pocket base model and 336x336 pages")
    add("--tasks", type=int, default=3, help="tasks at once (default: %(default)s)")
    add("--K", type=int, default=3, help="plans a task (default: %(default)s)")
    add("--M", type=int, default=7, help="episodes a plan (default: %(default)s)")
    add("--T", type=int, default=15, help="steps an episode (default: %(default)s)")
    add(
        "--latency",
        type=float,
        nargs="+",
        default=[0.0, 0.3, 1.0],
        help="seconds that every page takes, one measurement each; the last one's rollout is in a task's cost (default: 0 0.3 1)",
    )
    add(
        "--sleep",
        type=float,
        default=3.0,
        help="the lock-step loop's sleep after an action (default: %(default)s)",
    )
    add(
        "--rounds",
        type=int,
        default=2,
        help="rounds of the lock-step loop to measure (default: %(default)s)",
    )
    add("--plan-tokens", type=int, default=128, help="(default: %(default)s)")
    add("--action-tokens", type=int, default=64, help="(default: %(default)s)")
    add(
        "--update-samples",
        type=int,
        default=24,
        help="samples of a task to update on; the rest is scaled (default: %(default)s)",
    )
    add(
        "--kv-gib",
        type=float,
        default=16,
        help="vLLM's memory for keys and values (default: %(default)s)",
    )
    add("--browsers", type=int, default=2, help="Chromium processes (default: %(default)s)")
    add(
        "--engines",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: one a role, as for two different models (default: %(default)s)",
    )
    add(
        "--gpu-gib",
        type=float,
        help="play a GPU with so much memory: the rest is taken up at the start (default: all)",
    )
    return parser.parse_args()


def wander(seed: int, width: int, height: int) -> str:
    """A reply that does something to the page: random weights say nothing that can be acted on."""
    rng = random.Random(seed)
    x, y = rng.randrange(width), rng.randrange(height)
    call = (
        f"click(x={x}, y={y})"
        if rng.random() < 0.7
        else f"swipe(from_coord=[{x}, {y}], direction='up', amount=0.5)"
    )
    return format_reply(f"Look at place {x} {y}", [call])


class Wanderer:
    """The actor's sampler, whose sampled ids and log-probs are kept and whose text is made up.

    replied: when each reply came.
    """

    def __init__(self, sampler: VllmSampler) -> None:
        self.sampler = sampler
        self.replied: list[float] = []

    async def sample(self, prompt, max_tokens: int, temperature: float, seed: int) -> Completion:
        reply = await self.sampler.sample(prompt, max_tokens, temperature, seed)
        self.replied.append(time.monotonic())
        return replace(
            reply, text=wander(seed, *smart_resize(*Image.open(io.BytesIO(prompt.image)).size))
        )


# ---- the loop to compare with ----


async def lock_step(
    env: Environment, sampler: VllmSampler, task: Task, episodes: int, args: argparse.Namespace
) -> dict:
    """Seconds a round of `episodes` episodes, and its parts. Browsers work at once, unlike in most such loops."""
    policy, params = (
        sampler.policy,
        SamplingParams(
            temperature=TEMPERATURE,
            max_tokens=args.action_tokens,
            logprobs=0,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        ),
    )

    async def reply(number: int, prompt) -> None:
        picture = Image.open(io.BytesIO(prompt.image)).convert("RGB")
        request = {
            "prompt_token_ids": policy.prompt_ids(prompt),
            "multi_modal_data": {"image": picture.resize(smart_resize(*picture.size))},
        }
        async for _ in sampler.engine.generate(
            request,
            params,
            f"lock-step-{time.monotonic_ns()}-{number}",
            lora_request=sampler.adapter,
        ):
            pass

    parts = {"screenshots": 0.0, "replies": 0.0, "actions": 0.0, "sleep": 0.0}
    async with AsyncExitStack() as stack:
        sessions = [
            session
            for _, session in await asyncio.gather(
                *(stack.enter_async_context(env.start(task)) for _ in range(episodes))
            )
        ]
        operations: list[list[str]] = [[] for _ in sessions]
        for number in range(
            args.rounds + 1
        ):  # all show the same page in the first round, which does not count
            times = [time.monotonic()]
            seen = await asyncio.gather(*(session.observe() for session in sessions))
            times.append(time.monotonic())
            prompts = [
                policy.prompts.actor(task.intent, ["Look around"] * 3, h, s.png)
                for h, s in zip(operations, seen)
            ]
            await asyncio.gather(*(reply(i, prompt) for i, prompt in enumerate(prompts)))
            times.append(time.monotonic())
            viewport = (seen[0].width, seen[0].height)
            turns = [
                parse(
                    wander(1000 * number + i, *smart_resize(*viewport)),
                    smart_resize(*viewport),
                    viewport,
                )
                for i in range(len(sessions))
            ]
            await asyncio.gather(
                *(perform(session, turn, "") for session, turn in zip(sessions, turns))
            )
            for h, turn in zip(operations, turns):
                h.append(describe(turn, viewport))
            times.append(time.monotonic())
            await asyncio.sleep(args.sleep)
            times.append(time.monotonic())
            for name, begin, end in zip(parts, times, times[1:]):
                parts[name] += (end - begin) / args.rounds * (number > 0)
    return {name: round(value, 2) for name, value in parts.items()}


# ---- the update ----


def update(policy: Policy, samples: list[Sample], passes: int = 2) -> dict:
    """The update as train_rl.py makes it, without DeepSpeed; returns the mean |log-prob of trainer - of sampler|."""
    optimizer = torch.optim.AdamW(
        [p for p in policy.parameters() if p.requires_grad], lr=1e-5, weight_decay=0.0
    )
    old, gaps = [], []
    for number in range(passes):
        for at, s in enumerate(
            tqdm(samples, desc=f"update, pass {number + 1}", unit="sample", leave=False)
        ):
            logp = policy([s], TEMPERATURE)
            if number == 0:
                old.append(logp.detach())
                gaps.append((logp.detach() - torch.tensor(s.logps, device=logp.device)).abs())
            advantage = torch.full_like(logp, s.advantage)
            grpo.policy_loss(logp, old[at], advantage, 1000.0).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {
        "mean |log-prob difference|": round(float(torch.cat(gaps).mean()), 5),
        "max": round(float(torch.cat(gaps).max()), 4),
    }


@torch.no_grad()
@torch.compiler.set_stance("force_eager")
def logps(policy: Policy, samples: list[Sample]) -> torch.Tensor:
    """The policy's log-probs of all response tokens of all samples [n]."""
    return torch.cat([policy([s], TEMPERATURE) for s in samples])


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return round(float((a - b).abs().mean()), 5)


def of_sampler(samples: list[Sample]) -> torch.Tensor:
    return torch.tensor([logp for s in samples for logp in s.logps], device=DEVICE)  # [n]


def fp32_logps(policy: Policy, samples: list[Sample]) -> torch.Tensor:
    """The log-probs [n] of the same weights computed in fp32. Where the trainer's and vLLM's are equally far from them, the
    difference of those two is rounding, and no smaller one can be asked for."""
    rounded = [p for p in policy.parameters() if p.dtype == torch.bfloat16]
    for p in rounded:
        p.data = p.data.float()
    exact = logps(policy, samples)
    for p in rounded:
        p.data = p.data.bfloat16()  # as it was: they came from there
    return exact


def samples_of(group, coin: random.Random) -> tuple[list[Sample], list[Sample]]:
    """The actor's and the decomposer's samples of a task under made-up rewards; those of equal luck are kept, too."""
    actor = [
        Sample(s.prompt_ids, s.screenshot, s.ids, coin.choice((-0.5, 0.5)), s.logps)
        for row in group.episodes
        for e in row
        for s in e.steps
    ]
    decomposer = [
        Sample(p.prompt_ids, group.first, p.ids, coin.choice((-0.5, 0.5)), p.logps)
        for p in group.plans
    ]
    return sorted(actor, key=lambda s: -len(s.prompt_ids)), decomposer


# ---- the measurement ----


async def measure(args: argparse.Namespace, folder: Path, watch: Watch) -> dict:
    result: dict = {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
        "settings": dict(vars(args)),
    }
    seen, held = result.setdefault("phases", {}), 0.0
    if args.gpu_gib:
        held = torch.cuda.mem_get_info()[1] / 2**30 - args.gpu_gib
        ballast = torch.empty(int(held * 2**30), dtype=torch.uint8, device=DEVICE)  # noqa: F841  held until the end

    def note(name: str, phase) -> None:
        seen[name] = {
            "seconds": round(phase.seconds, 2),
            "peak GiB of the GPU": round(max(0.0, phase.peak - held), 1),
            "GPU idle": None if phase.busy is None else round(1 - phase.busy, 3),
        }
        print(f"{name}: {seen[name]}", flush=True)

    # 1. Two trainers, and one engine with both adapters or one a trainer.
    with watch.phase() as phase:
        if args.tiny:
            policies = [make_policy(True, folder) for _ in range(2)]
        else:
            write_shape(folder)
            model = random_model(folder)
            model.save_pretrained(folder)
            policies = [make_policy(False, folder, m) for m in (model, random_model(folder))]
        for number, policy in enumerate(policies):
            randomize(policy, 10 + number)
            policy.checkpointing = "auto"
            if DEVICE.type == "cuda":
                policy.compile()
            policy.eval()
    note("start: models", phase)
    actor, decomposer = policies
    kv_bytes = int(args.kv_gib * 2**30) if DEVICE.type == "cuda" else 256 << 20
    with ExitStack() as stack:
        with watch.phase() as phase:
            engines = [
                start_engine(
                    folder,
                    DEVICE,
                    32,
                    kv_bytes,
                    max_tokens=4096,
                    max_loras=3 - args.engines,
                    limit_mm_per_prompt={"image": 1, "video": 0},
                    skip_mm_profiling=True,
                )
                for _ in range(args.engines)
            ]
        for engine in engines:
            stack.callback(stop_engine, engine)
        note("start: vLLM", phase)
        act, plan = VllmSampler(actor, engines[0]), VllmSampler(decomposer, engines[-1])
        with watch.phase() as phase:
            await act.sync()
            await plan.sync()
        note("sync of two adapters", phase)
        await play(args, result, note, watch, act, plan)
    return result


async def compare(
    args: argparse.Namespace,
    latency: float,
    seed: int,
    note,
    watch: Watch,
    act: VllmSampler,
    plan: VllmSampler,
) -> tuple[dict, list[Group]]:
    """The numbers of both loops on pages that take `latency` seconds, and the groups that ours played."""
    tasks = [t for t in load_tasks("pocket") if t.eval["eval_types"] == ["url_match"]][: args.tasks]
    how = Sampling(TEMPERATURE, TEMPERATURE, args.plan_tokens, args.action_tokens, seed)
    episodes, wanderer, at = args.K * args.M, Wanderer(act), f", {latency:g} s latency"
    agents = Agents(plan, wanderer, plan.policy.prompts, act.policy.prompts)
    with serve_teacher() as url, tempfile.TemporaryDirectory() as place:
        async with (
            PocketArena(full=not args.tiny, latency=latency) as arena,
            Browsers(args.browsers) as browsers,
        ):
            env = Environment(
                arena, browsers, Judge(url, MODEL, None), concurrency=args.tasks * episodes
            )
            with (
                watch.phase() as phase
            ):  # one short task, so that nothing below is the first of its kind
                await rollout(env, agents, tasks[0], 1, 2, 2, how, Path(place) / "warm-up")
            note("warm-up" + at, phase)
            with watch.phase() as phase:
                parts = await lock_step(env, act, tasks[0], episodes, args)
            note("lock-step" + at, phase)
            cached, tokens, loop = len(act.policy.feature_cache), act.tokens, time.thread_time()
            wanderer.replied = []
            with (
                watch.phase() as phase,
                tqdm(
                    total=args.tasks * episodes, desc="episodes", unit="episode", leave=False
                ) as bar,
            ):
                groups = await asyncio.gather(
                    *(
                        rollout(
                            env,
                            agents,
                            task,
                            args.K,
                            args.M,
                            args.T,
                            how,
                            Path(place) / task.id,
                            lambda _: bar.update(),
                        )
                        for task in tasks
                    )
                )
            loop = time.thread_time() - loop
            note("rollout" + at, phase)
    groups = [g for g in groups if g]
    played = [e for g in groups for row in g.episodes for e in row]
    steps, thinking, locked = (
        sum(len(e.steps) for e in played),
        sum(e.thinking for e in played),
        episodes / sum(parts.values()),
    )
    replied = sorted(wanderer.replied)
    first, last = len(replied) // 5, len(replied) * 4 // 5
    found = {
        "lock-step, s a round": parts,
        "episodes": args.tasks * episodes,
        "steps": steps,
        "failures": dict(env.failures),
        "distinct screenshots": len(act.policy.feature_cache) - cached,
        "sampled tokens/s": round((act.tokens - tokens) / phase.seconds),
        "prompt tokens, mean": round(
            sum(len(s.prompt_ids) for e in played for s in e.steps) / steps
        ),
        "s a step: reply": round(thinking / steps, 2),
        "page": round((sum(e.seconds for e in played) - thinking) / steps, 2),
        "event loop busy": round(loop / phase.seconds, 2),
        "steps/s, middle three fifths": round((last - first) / (replied[last] - replied[first]), 2),
        "steps/s": round(steps / phase.seconds, 2),
        "lock-step steps/s": round(locked, 2),
        "ratio": round(steps / phase.seconds / locked, 2),
    }
    print(found, flush=True)
    return found, groups


async def play(
    args: argparse.Namespace, result: dict, note, watch: Watch, act: VllmSampler, plan: VllmSampler
) -> None:
    actor, decomposer = act.policy, plan.policy
    result["rollout"] = {}
    # 2. Both loops. Another seed each, so that vLLM does not meet the prompts of the last one again.
    for seed, latency in enumerate(args.latency):
        found, groups = await compare(args, latency, seed, note, watch, act, plan)
        result["rollout"][f"{latency:g} s"] = found
    work, locked = args.T * args.K * args.M, found["lock-step steps/s"]
    rollout_seconds = work / found["steps/s"]

    # 3. Log-probs: the trainer's against vLLM's, and against those of the model without its adapter.
    actor_samples, decomposer_samples = samples_of(groups[0], random.Random(0))
    actor_samples = actor_samples[:: max(1, len(actor_samples) // args.update_samples)]
    few = actor_samples[:: max(1, len(actor_samples) // 16)]
    with actor.model.disable_adapter():
        result["mean |log-prob difference|"] = {
            "without the adapter": difference(logps(actor, few), of_sampler(few))
        }

    # 4. The update, for which the engines make room where it is short: the stock path on a few samples, ours on more.
    with watch.phase() as phase:
        await act.rest()
        await plan.rest()
    note("rest", phase)
    processor = stock_processor()
    actor.train(), decomposer.train()
    with stock_settings(actor), torch.compiler.set_stance("force_eager"):
        with watch.phase() as phase:
            stock = (
                seconds(
                    lambda: [
                        loss_of(stock_logp(actor, processor, s), [s]).backward() for s in few[:2]
                    ],
                    2,
                )
                / 2
            )
    note("stock update", phase)
    actor.zero_grad(set_to_none=True)
    with watch.phase() as phase:
        for policy, s in ((actor, actor_samples[0]), (decomposer, decomposer_samples[0])):
            loss_of(policy([s], TEMPERATURE), [s]).backward()
            policy.zero_grad(set_to_none=True)
    note("compile", phase)
    with watch.phase() as phase:
        began = time.monotonic()
        result["mean |log-prob difference|"]["with it"] = update(actor, actor_samples)
        result["mean |log-prob difference|"]["decomposer"] = update(decomposer, decomposer_samples)
        result["update, s a sample and pass"] = round(
            (time.monotonic() - began) / 2 / (len(actor_samples) + len(decomposer_samples)), 4
        )
    note("update", phase)
    update_seconds = (
        phase.seconds * (work + args.K) / (len(actor_samples) + len(decomposer_samples))
    )

    # 5. The next version of the adapter: served, and not the last one's keys and values.
    randomize(actor, 20)
    with watch.phase() as phase:
        await act.sync()
        await plan.sync()
    note("next sync", phase)
    prompts = [actor.prompts.actor("Another task", ["Look around"], [], s.image) for s in few[:8]]
    replies = await asyncio.gather(
        *(act.sample(p, args.action_tokens, TEMPERATURE, i) for i, p in enumerate(prompts))
    )
    actor.eval()
    fresh = [Sample(r.prompt_ids, p.image, r.ids, 0.0, r.logps) for r, p in zip(replies, prompts)]
    trainer, sampler = logps(actor, fresh), of_sampler(fresh)
    gaps = result["mean |log-prob difference|"]
    gaps["next version"] = difference(trainer, sampler)
    if DEVICE.type == "cuda" and free_memory() > 24 << 30:
        exact = fp32_logps(actor, fresh)
        gaps["next version, trainer - fp32"], gaps["next version, vLLM - fp32"] = (
            difference(trainer, exact),
            difference(sampler, exact),
        )

    # 6. GPU-seconds a task of K x M episodes of T steps, before and after.
    idle = {
        name: result["phases"][f"{name}, {latency:g} s latency"]["GPU idle"] or 0.0
        for name in ("lock-step", "rollout")
    }
    before = {
        "rollout, GPU busy": work / locked * (1 - idle["lock-step"]),
        "rollout, GPU idle": work / locked * idle["lock-step"],
        "sync": phase.seconds,
        "update": 2 * stock * (work + args.K),
    }
    after = {
        "rollout, GPU busy": rollout_seconds * (1 - idle["rollout"]),
        "rollout, GPU idle": rollout_seconds * idle["rollout"],
        "sync": phase.seconds / 8,
        "update": update_seconds,
    }  # 8 tasks share a sync
    result["GPU-seconds a task"] = {
        "before": {k: round(v, 1) for k, v in before.items()},
        "after": {k: round(v, 1) for k, v in after.items()},
        "total before": round(sum(before.values()), 1),
        "total after": round(sum(after.values()), 1),
    }
    result["stock update, s a sample"] = round(stock, 3)


def figure(result: dict, path: Path) -> None:
    """Two bars: where the GPU-seconds of a task go, before and after."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    split = result["GPU-seconds a task"]
    fig, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    colors = dict(zip(split["after"], ("#2b6cb0", "#bcd4ee", "#dd6b20", "#2f855a")))
    for row, when in enumerate(("after", "before")):
        left = 0.0
        for name, value in split[when].items():
            axes.barh(row, value, left=left, color=colors[name], label=name if row == 0 else None)
            left += value
        axes.text(left, row, f" {left:.0f} s", va="center")
    axes.set_yticks([0, 1], ["this repository", "lock-step loop,\ntransformers + PEFT"])
    axes.set_xlabel("GPU-seconds a task")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.25))
    fig.savefig(path, dpi=150)


def main() -> None:
    args = parse_args()
    if not find_spec("vllm"):
        sys.exit("rollout.py: vLLM is not installed here; requirements.txt names it")
    fast = Path("/dev/shm")  # 16 GB of random weights, written and read once
    roomy = fast.is_dir() and shutil.disk_usage(fast).free > 24 << 30
    watch = Watch()
    with tempfile.TemporaryDirectory(dir=fast if roomy and not args.tiny else None) as scratch:
        result = asyncio.run(measure(args, BASE if args.tiny else Path(scratch), watch))
    watch.close()
    report("rollout", result)
    try:
        figure(result, OUT / "rollout.png")
    except ImportError:
        print("no matplotlib: no figure")
    for latency, found in result["rollout"].items():
        print(
            f"rollout at {latency} latency, steps/s: {found['steps/s']} against {found['lock-step steps/s']}, ratio {found['ratio']}"
        )
    print(
        f"GPU-seconds a task: {result['GPU-seconds a task']['total after']} against {result['GPU-seconds a task']['total before']}"
    )


if __name__ == "__main__":
    main()
