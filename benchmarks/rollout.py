"""What a whole RL task costs: rollouts in real Chromium with vLLM, and the update that follows.

    python benchmarks/rollout.py                      # one GPU, 7B's shape, 63 episodes: ~9 minutes
    python benchmarks/rollout.py --tiny --M 2 --T 3   # the pocket base model, where vLLM runs
    python benchmarks/rollout.py --gpu-gib 80 --engines 2 --kv-gib 4 --tasks 1 --T 5 --latency 1
                                                      # does it fit in 80 GB?

Ours: --tasks tasks of K plans x M episodes x T steps, all at once, by jhima.rollout and
jhima.serving.vllm_sampler; then two passes of the update over samples of one task. Against it, for
the same work: a lock-step loop that plays one task's K x M episodes in rounds (all screenshots, one
batch of replies with vLLM's own image processing, all actions, a fixed sleep), and a
transformers + PEFT update. Real: pages, latency, screenshots, prompts, sampled ids, log-probs,
gradients. Made up, because random weights solve nothing: what the browser does (random clicks and
scrolls, so that pages change) and the rewards of the update (a coin per sample, so that none is
skipped). Prints, last, GPU-seconds per task; writes runs/benchmarks/rollout.json and, with
matplotlib, rollout.png.
"""

from __future__ import annotations

import asyncio
import io
import random
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from PIL import Image
from tqdm import tqdm

from benchmarks import shape
from benchmarks.report import OUT, report
from benchmarks.shape import DEVICE
from benchmarks.update import loss_of, seconds, stock_logp, stock_processor, stock_settings
from jhima import cli, grpo
from jhima.actions import format_reply, parse
from jhima.browser.chromium import Browsers
from jhima.browser.session import Session
from jhima.coordinates import smart_resize
from jhima.environment import Environment, load_tasks
from jhima.episodes import Group, Task
from jhima.models.gpu import free_memory
from jhima.pocket.arena import PocketArena
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.policy import Policy, Sample
from jhima.prompts import Prompt
from jhima.results.episode_bar import EpisodeBar
from jhima.rollout import Agents, Sampling, describe, perform, rollout
from jhima.sampler import Completion, Sampler
from jhima.webarena.judge import Judge

if find_spec("vllm"):  # scaling.py uses parts of this file without it
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from jhima.serving.vllm_sampler import VllmSampler, start_engine, stop_engine

TEMPERATURE = 0.8
GAPS = "mean |log-prob difference|"
COST = "GPU-seconds per task"


@dataclass
class Args:
    tiny: bool = False
    """the pocket base model and 336x336 pages"""
    tasks: int = 3
    """tasks at once"""
    K: int = 3
    """plans per task"""
    M: int = 7
    """episodes per plan"""
    T: int = 15
    """steps per episode"""
    latency: list[float] = field(default_factory=lambda: [0.0, 0.3, 1.0])
    """seconds that every page takes, one measurement each; the last one's rollout counts as the
    task's cost"""
    sleep: float = 3.0
    """seconds that the lock-step loop sleeps after an action"""
    rounds: int = 2
    """rounds of the lock-step loop to measure"""
    plan_tokens: int = 128
    """token budget of a plan"""
    action_tokens: int = 64
    """token budget of an action"""
    update_samples: int = 24
    """samples of a task to update on; the rest is scaled"""
    kv_gib: float = 16.0
    """vLLM's memory for keys and values"""
    browsers: int = 2
    """Chromium processes"""
    engines: Literal[1, 2] = 1
    """2: one per role, as for two different models"""
    gpu_gib: float | None = None
    """act as a GPU with this much memory: the rest is taken up at the start (None: use all)"""


# ---- made-up replies ----


def wander(seed: int, grid: tuple[int, int]) -> str:
    """A reply that does something to the page, because random weights say nothing to act on."""
    rng = random.Random(seed)
    x, y = rng.randrange(grid[0]), rng.randrange(grid[1])
    call = f"click(x={x}, y={y})"
    if rng.random() >= 0.7:
        call = f"swipe(from_coord=[{x}, {y}], direction='up', amount=0.5)"
    return format_reply(f"Look at place {x} {y}", [call])


class Wanderer:
    """An actor's sampler that keeps the sampled ids and log-probs, and makes up the text."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.reply_times: list[float] = []

    async def sample(
        self, prompt: Prompt, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        reply = await self.sampler.sample(prompt, max_tokens, temperature, seed)
        self.reply_times.append(time.monotonic())
        size = Image.open(io.BytesIO(prompt.image)).size
        return replace(reply, text=wander(seed, smart_resize(*size)))


# ---- the loop to compare with ----


async def lock_step(
    env: Environment, sampler: VllmSampler, task: Task, episodes: int, args: Args
) -> dict[str, float]:
    """Seconds per round of `episodes` episodes, in parts.

    Browsers work at the same time, unlike in most such loops.
    """
    policy = sampler.policy
    parts = dict.fromkeys(("screenshots", "replies", "actions", "sleep"), 0.0)
    async with AsyncExitStack() as stack:
        starts = [stack.enter_async_context(env.start(task)) for _ in range(episodes)]
        sessions: list[Session] = [session for _, session in await asyncio.gather(*starts)]
        histories: list[list[str]] = [[] for _ in sessions]
        # All show the same page in the first round, which does not count.
        for number in range(args.rounds + 1):
            times = [time.monotonic()]
            observations = await asyncio.gather(*[session.observe() for session in sessions])
            times.append(time.monotonic())
            replies = []
            for i, observation in enumerate(observations):
                prompt = policy.prompts.actor(
                    task.intent, ["Look around"] * 3, histories[i], observation.png
                )
                replies.append(stock_reply(sampler, prompt, i, args.action_tokens))
            await asyncio.gather(*replies)
            times.append(time.monotonic())
            viewport = (observations[0].width, observations[0].height)
            grid = smart_resize(*viewport)
            actions = []
            for i, session in enumerate(sessions):
                turn = parse(wander(1000 * number + i, grid), grid, viewport)
                actions.append(perform(session, turn, ""))
                histories[i].append(describe(turn, viewport))
            await asyncio.gather(*actions)
            times.append(time.monotonic())
            await asyncio.sleep(args.sleep)
            times.append(time.monotonic())
            if number > 0:
                for name, began, ended in zip(parts, times, times[1:]):
                    parts[name] += (ended - began) / args.rounds
    return {name: round(value, 2) for name, value in parts.items()}


async def stock_reply(sampler: VllmSampler, prompt: Prompt, number: int, max_tokens: int) -> None:
    """A reply with vLLM's own image processing."""
    parameters = SamplingParams(
        temperature=TEMPERATURE,
        max_tokens=max_tokens,
        logprobs=0,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    picture = Image.open(io.BytesIO(prompt.image)).convert("RGB")
    request = {
        "prompt_token_ids": sampler.policy.prompt_ids(prompt),
        "multi_modal_data": {"image": picture.resize(smart_resize(*picture.size))},
    }
    name = f"lock-step-{time.monotonic_ns()}-{number}"
    async for _ in sampler.engine.generate(request, parameters, name, lora_request=sampler.adapter):
        pass


# ---- the update ----


def update(policy: Policy, samples: list[Sample], passes: int = 2) -> dict[str, float]:
    """The update as train_rl.py makes it, without DeepSpeed.

    Returns the mean and the maximum of |log-prob of trainer - of sampler|.
    """
    trainable = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-5, weight_decay=0.0)
    old_logps, gaps = [], []
    for number in range(passes):
        title = f"update, pass {number + 1}"
        for n, s in enumerate(tqdm(samples, desc=title, unit="sample", leave=False)):
            logp = policy([s], TEMPERATURE)
            if number == 0:
                old_logps.append(logp.detach())
                gaps.append((logp.detach() - torch.tensor(s.logps, device=logp.device)).abs())
            advantage = torch.full_like(logp, s.advantage)
            grpo.policy_loss(logp, old_logps[n], advantage, 1000.0).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    gap = torch.cat(gaps)
    return {GAPS: round(float(gap.mean()), 5), "max": round(float(gap.max()), 4)}


@torch.no_grad()
@torch.compiler.set_stance("force_eager")
def logps(policy: Policy, samples: list[Sample]) -> torch.Tensor:
    """The policy's log-probs of all response tokens of all samples [n]."""
    return torch.cat([policy([s], TEMPERATURE) for s in samples])


def of_sampler(samples: list[Sample]) -> torch.Tensor:
    return torch.cat([torch.tensor(s.logps, device=DEVICE) for s in samples])  # [n]


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return round(float((a - b).abs().mean()), 5)


def fp32_logps(policy: Policy, samples: list[Sample]) -> torch.Tensor:
    """The log-probs [n] of the same weights computed in fp32.

    Where the trainer's and vLLM's are equally far from them, the difference of those two is
    rounding, and cannot be made smaller.
    """
    rounded = [p for p in policy.parameters() if p.dtype == torch.bfloat16]
    for p in rounded:
        p.data = p.data.float()
    exact = logps(policy, samples)
    for p in rounded:
        p.data = p.data.bfloat16()  # exact: they were bf16 before
    return exact


def samples_of(group: Group, coin: random.Random) -> tuple[list[Sample], list[Sample]]:
    """The actor's samples of a task, the longest prompt first, and the decomposer's, all with
    made-up advantages."""
    actor, decomposer = [], []
    for episodes in group.episodes:
        for episode in episodes:
            for s in episode.steps:
                advantage = coin.choice((-0.5, 0.5))
                actor.append(Sample(s.prompt_ids, s.screenshot, s.ids, advantage, s.logps))
    for p in group.plans:
        advantage = coin.choice((-0.5, 0.5))
        decomposer.append(Sample(p.prompt_ids, group.first, p.ids, advantage, p.logps))
    actor.sort(key=lambda s: -len(s.prompt_ids))
    return actor, decomposer


# ---- the measurement ----


class Measurement:
    """What is measured, and where its numbers go. act, plan: the samplers of the two roles."""

    act: VllmSampler
    plan: VllmSampler

    def __init__(self, args: Args) -> None:
        self.args, self.watch = args, shape.Watch()
        self.phases: dict[str, dict] = {}
        self.result: dict = {"device": shape.DEVICE_NAME, "settings": asdict(args)}
        self.result |= {"phases": self.phases, "rollout": {}, GAPS: {}}
        self.held = 0.0  # GiB that --gpu-gib takes away
        if args.gpu_gib:
            self.held = torch.cuda.mem_get_info()[1] / 2**30 - args.gpu_gib
            size = int(self.held * 2**30)
            self.ballast = torch.empty(size, dtype=torch.uint8, device=DEVICE)

    @contextmanager
    def phase(self, name: str):
        """Measures what happens inside it, and prints it under this name."""
        with self.watch.phase() as phase:
            yield phase
        row = {
            "seconds": round(phase.seconds, 2),
            "peak GiB of the GPU": round(max(0.0, phase.peak - self.held), 1),
            "GPU idle": None,
        }
        if phase.busy is not None:
            row["GPU idle"] = round(1 - phase.busy, 3)
        self.phases[name] = row
        print(f"{name}: {row}", flush=True)


async def measure(m: Measurement, folder: Path) -> None:
    # 1. Two trainers, and one engine with both adapters or one per trainer.
    args = m.args
    with m.phase("start: models"):
        actor, decomposer = two_policies(args, folder)
    kv_bytes = int(args.kv_gib * 2**30) if DEVICE.type == "cuda" else 256 << 20
    options = {
        "max_tokens": 4096,
        "max_loras": 3 - args.engines,
        "limit_mm_per_prompt": {"image": 1, "video": 0},  # for the lock-step loop
        "skip_mm_profiling": True,
    }
    with ExitStack() as stack:
        engines = []
        with m.phase("start: vLLM"):
            for _ in range(args.engines):
                engines.append(start_engine(folder, DEVICE, 32, kv_bytes, **options))
                stack.callback(stop_engine, engines[-1])
        m.act, m.plan = VllmSampler(actor, engines[0]), VllmSampler(decomposer, engines[-1])
        with m.phase("sync of two adapters"):
            await m.act.sync()
            await m.plan.sync()
        await measure_task(m)


def two_policies(args: Args, folder: Path) -> list[Policy]:
    if args.tiny:
        policies = [shape.make_policy(True, folder) for _ in range(2)]
    else:
        shape.write_shape(folder)
        model = shape.random_model(folder)
        model.save_pretrained(folder)
        policies = [shape.make_policy(False, folder, model)]
        policies.append(shape.make_policy(False, folder, shape.random_model(folder)))
    for number, policy in enumerate(policies):
        shape.randomize(policy, 10 + number)
        policy.checkpointing = "auto"
        if DEVICE.type == "cuda":
            policy.compile()
        policy.eval()
    return policies


async def compare_loops(m: Measurement, latency: float, seed: int) -> tuple[dict, list[Group]]:
    """The numbers of both loops on pages that take `latency` seconds, and our loop's groups."""
    args, act, plan = m.args, m.act, m.plan
    tasks = load_tasks("pocket")
    tasks = [task for task in tasks if task.eval["eval_types"] == ["url_match"]][: args.tasks]
    sampling = Sampling(TEMPERATURE, TEMPERATURE, args.plan_tokens, args.action_tokens, seed)
    per_task = args.K * args.M
    episodes = args.tasks * per_task
    wanderer = Wanderer(act)
    agents = Agents(plan, wanderer, plan.policy.prompts, act.policy.prompts)
    async with AsyncExitStack() as stack:
        url = stack.enter_context(serve_teacher())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        arena = PocketArena(full=not args.tiny, latency=latency)
        await stack.enter_async_context(arena)
        browsers = await stack.enter_async_context(Browsers(args.browsers))
        env = Environment(arena, browsers, Judge(url, MODEL, None), concurrency=episodes)
        # One short task, so that nothing below is the first of its kind.
        with m.phase(f"warm-up, {latency:g} s latency"):
            await rollout(env, agents, tasks[0], 1, 2, 2, sampling, folder / "warm-up")
        with m.phase(f"lock-step, {latency:g} s latency"):
            parts = await lock_step(env, act, tasks[0], per_task, args)
        cached, tokens, loop = len(act.policy.feature_cache), act.tokens, time.thread_time()
        wanderer.reply_times = []
        bar = stack.enter_context(EpisodeBar("episodes", episodes, leave=False))
        with m.phase(f"rollout, {latency:g} s latency") as phase:
            rollouts = []
            for task in tasks:
                sizes = {"K": args.K, "M": args.M, "T": args.T, "sampling": sampling}
                sizes |= {"folder": folder / task.id, "finished": bar.finished}
                rollouts.append(rollout(env, agents, task, **sizes))
            groups = [group for group in await asyncio.gather(*rollouts) if group]
        loop = time.thread_time() - loop
    played, prompt_tokens = [], []
    for group in groups:
        for row in group.episodes:
            played += row
    for episode in played:
        prompt_tokens += [len(step.prompt_ids) for step in episode.steps]
    steps, thinking = len(prompt_tokens), sum(episode.thinking for episode in played)
    acting = sum(episode.seconds for episode in played) - thinking
    ours, locked = steps / phase.seconds, per_task / sum(parts.values())
    times = sorted(wanderer.reply_times)
    first, last = len(times) // 5, len(times) * 4 // 5
    row = {
        "lock-step, s per round": parts,
        "episodes": episodes,
        "steps": steps,
        "failures": dict(env.failures),
        "distinct screenshots": len(act.policy.feature_cache) - cached,
        "sampled tokens/s": round((act.tokens - tokens) / phase.seconds),
        "prompt tokens, mean": round(sum(prompt_tokens) / steps),
        "s per step: reply": round(thinking / steps, 2),
        "page": round(acting / steps, 2),
        "event loop busy": round(loop / phase.seconds, 2),
        "steps/s, middle three fifths": round((last - first) / (times[last] - times[first]), 2),
        "steps/s": round(ours, 2),
        "lock-step steps/s": round(locked, 2),
        "ratio": round(ours / locked, 2),
    }
    print(row, flush=True)
    return row, groups


async def measure_task(m: Measurement) -> None:
    args, act, plan, gaps = m.args, m.act, m.plan, m.result[GAPS]
    actor, decomposer = act.policy, plan.policy
    # 2. Both loops. Each has another seed, so that vLLM does not meet the same prompts again.
    for seed, latency in enumerate(args.latency):
        row, groups = await compare_loops(m, latency, seed)
        m.result["rollout"][f"{latency:g} s"] = row

    # 3. Log-probs: the trainer's against vLLM's, and against those without the adapter.
    actor_samples, decomposer_samples = samples_of(groups[0], random.Random(0))
    actor_samples = actor_samples[:: max(1, len(actor_samples) // args.update_samples)]
    few = actor_samples[:: max(1, len(actor_samples) // 16)]
    with actor.model.disable_adapter():
        gaps["without the adapter"] = difference(logps(actor, few), of_sampler(few))

    # 4. The update, for which the engines make room where memory is short: the stock path on two
    #    samples, ours on more.
    with m.phase("rest"):
        await act.rest()
        await plan.rest()
    processor = stock_processor()
    actor.train()
    decomposer.train()

    def stock_update() -> None:
        for s in few[:2]:
            loss_of(stock_logp(actor, processor, s), [s]).backward()

    with stock_settings(actor), torch.compiler.set_stance("force_eager"):
        with m.phase("stock update"):
            stock_seconds = seconds(stock_update, repeat=2) / 2
    actor.zero_grad(set_to_none=True)
    with m.phase("compile"):
        for policy, s in ((actor, actor_samples[0]), (decomposer, decomposer_samples[0])):
            loss_of(policy([s], TEMPERATURE), [s]).backward()
            policy.zero_grad(set_to_none=True)
    with m.phase("update") as phase:
        gaps["with it"] = update(actor, actor_samples)
        gaps["decomposer"] = update(decomposer, decomposer_samples)
    update_seconds = phase.seconds / (len(actor_samples) + len(decomposer_samples))  # two passes
    m.result["update, s per sample and pass"] = round(update_seconds / 2, 4)

    # 5. The adapter's next version: vLLM uses it, and not the previous one's keys and values.
    shape.randomize(actor, 20)
    with m.phase("next sync") as sync:
        await act.sync()
        await plan.sync()
    gaps |= await next_version_gaps(act, few[:8], args.action_tokens)

    # 6. GPU-seconds per task of K x M episodes of T steps, before and after.
    steps, samples = args.T * args.K * args.M, args.T * args.K * args.M + args.K
    locked, ours = steps / row["lock-step steps/s"], steps / row["steps/s"]
    last = f"{latency:g} s latency"
    before = rollout_seconds(locked, m.phases[f"lock-step, {last}"]["GPU idle"])
    before |= {"sync": sync.seconds, "update": 2 * stock_seconds * samples}
    after = rollout_seconds(ours, m.phases[f"rollout, {last}"]["GPU idle"])
    after |= {"sync": sync.seconds / 8, "update": update_seconds * samples}  # 8 tasks share a sync
    m.result[COST] = {
        "before": {name: round(value, 1) for name, value in before.items()},
        "after": {name: round(value, 1) for name, value in after.items()},
        "total before": round(sum(before.values()), 1),
        "total after": round(sum(after.values()), 1),
    }
    m.result["stock update, s per sample"] = round(stock_seconds, 3)


def rollout_seconds(total: float, idle: float | None) -> dict[str, float]:
    idle = idle or 0.0
    return {"rollout, GPU busy": total * (1 - idle), "rollout, GPU idle": total * idle}


async def next_version_gaps(
    act: VllmSampler, samples: list[Sample], max_tokens: int
) -> dict[str, float]:
    """The sampler's log-probs under a new adapter against the trainer's, and both against fp32."""
    actor = act.policy
    prompts, replies = [], []
    for number, s in enumerate(samples):
        prompts.append(actor.prompts.actor("Another task", ["Look around"], [], s.image))
        replies.append(act.sample(prompts[-1], max_tokens, TEMPERATURE, number))
    fresh = []
    for prompt, reply in zip(prompts, await asyncio.gather(*replies)):
        fresh.append(Sample(reply.prompt_ids, prompt.image, reply.ids, 0.0, reply.logps))
    actor.eval()
    trainer, sampler = logps(actor, fresh), of_sampler(fresh)
    gaps = {"next version": difference(trainer, sampler)}
    if DEVICE.type == "cuda" and free_memory() > 24 << 30:
        exact = fp32_logps(actor, fresh)
        gaps["next version, trainer - fp32"] = difference(trainer, exact)
        gaps["next version, vLLM - fp32"] = difference(sampler, exact)
    return gaps


def draw(cost: dict[str, dict], path: Path) -> None:
    """Two bars: where the GPU-seconds of a task go, before and after."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    colors = dict(zip(cost["after"], ("#2b6cb0", "#bcd4ee", "#dd6b20", "#2f855a")))
    for row, when in enumerate(("after", "before")):
        left = 0.0
        for name, value in cost[when].items():
            label = name if row == 0 else None
            axes.barh(row, value, left=left, color=colors[name], label=label)
            left += value
        axes.text(left, row, f" {left:.0f} s", va="center")
    axes.set_yticks([0, 1], ["this repository", "lock-step loop,\ntransformers + PEFT"])
    axes.set_xlabel(COST)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.25))
    fig.savefig(path, dpi=150)


def main() -> None:
    args = cli.parse(Args, __doc__)
    if not find_spec("vllm"):
        sys.exit("rollout.py: vLLM is not installed here; requirements.txt names it")
    memory_files = Path("/dev/shm")  # for 16 GB of random weights, written and read once
    roomy = memory_files.is_dir() and shutil.disk_usage(memory_files).free > 24 << 30
    m = Measurement(args)
    with tempfile.TemporaryDirectory(
        dir=memory_files if roomy and not args.tiny else None
    ) as scratch:
        asyncio.run(measure(m, shape.BASE if args.tiny else Path(scratch)))
    m.watch.close()
    report("rollout", m.result)
    try:
        draw(m.result[COST], OUT / "rollout.png")
    except ImportError:
        print("no matplotlib: no figure")
    for latency, row in m.result["rollout"].items():
        print(
            f"rollout at {latency} latency, steps/s: {row['steps/s']} against "
            f"{row['lock-step steps/s']}, ratio {row['ratio']}"
        )
    cost = m.result[COST]
    print(f"{COST}: {cost['total after']} against {cost['total before']}")


if __name__ == "__main__":
    main()
