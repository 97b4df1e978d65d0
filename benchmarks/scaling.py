"""How well does training scale over the GPUs of a host? N GPUs against one in the same call.

    python benchmarks/scaling.py                 # all GPUs and one: 7B's shape, about 10 minutes
    python benchmarks/scaling.py --parts sft     # or in two calls: the other is --parts rl
    python benchmarks/scaling.py --tiny          # the pocket base model, on two processes of a CPU

Every GPU gets the same work, however many there are. RL: each rank plays tasks of its own (real
pages, real Chromium, vLLM where it is installed); then all ranks read all episodes and train on
what train_rl.py would deal them, by its own update. Fine-tuning: train_sft.py's own step under
ZeRO-3. Made up, because random weights solve nothing: what the browser does, and the advantages.
Tasks have unequal numbers of useful samples, from half to one and a half times the mean, so that
samples must move to other ranks. One set of weights plays both roles, as with --shared. Prints,
last, the efficiency of each number: what each of N GPUs does, in percent of what one alone does.
Writes runs/benchmarks/scaling.json.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch
import torch.distributed as dist
from transformers import Qwen2_5_VLConfig

import train_rl
import train_sft
from benchmarks import shape, update
from benchmarks.report import report
from benchmarks.rollout import Wanderer, samples_of
from benchmarks.shape import DEVICE
from jhima import cli
from jhima.browser.chromium import Browsers
from jhima.environment import Environment, load_tasks
from jhima.episodes import Group, Task, load_group
from jhima.pocket.arena import PocketArena
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.policy import Policy, Sample
from jhima.rollout import Agents, Sampling, rollout
from jhima.sampler import LocalSampler, Sampler
from jhima.training.checkpoints import Learner
from jhima.training.deepspeed_engine import all_sum, init_distributed, make_engine
from jhima.training.packing import PackedPolicy
from jhima.training.ranks import balanced, tokens
from jhima.training.sft_dataset import make_batch
from jhima.training.watchdog import leave
from jhima.webarena.judge import Judge

PASSES, TEMPERATURE, CONSTANT = 2, 0.8, 1000.0
CONFIG = ROOT / "ds_config.json"
COST = "GPU-seconds per task"
RATES = {  # what each part measures, in units per second
    "sft": ["fine-tuning, tokens/s"],
    "rl": ["update, samples/s", "rollout, steps/s"],
}


@dataclass
class Args:
    tiny: bool = False
    """the pocket base model and 336x336 pages"""
    gpus: int = max(2, torch.cuda.device_count())
    """GPUs, or processes of a CPU (all, or 2)"""
    parts: list[Literal["sft", "rl"]] = field(default_factory=lambda: ["sft", "rl"])
    """what to measure"""
    tasks: int = 1
    """tasks per GPU, all at once"""
    K: int = 3
    """plans per task"""
    M: int = 7
    """episodes per plan"""
    T: int = 15
    """steps per episode"""
    latency: float = 1.0
    """seconds that every page takes"""
    plan_tokens: int = 128
    """token budget of a plan"""
    action_tokens: int = 64
    """token budget of an action"""
    update_samples: int = 64
    """samples per GPU to update on; the rest is scaled"""
    kv_gib: float = 16.0
    """vLLM's memory for keys and values"""
    sft_layers: int = 14
    """decoder layers of the fine-tuned model: the 7B's 28 with their optimizer leave one GPU no
    memory"""
    sft_steps: int = 6
    """steps of fine-tuning to measure"""
    worker: tuple[str, Path] | None = None
    """for internal use: PART and FOLDER of one rank, under torchrun"""


def timed(work: Callable[[], object]) -> float:
    """Seconds from when all ranks begin until all are done."""
    dist.barrier()
    shape.synchronize()
    began = time.monotonic()
    work()
    shape.synchronize()
    dist.barrier()
    return time.monotonic() - began


# ---- RL ----


def measure_rl(args: Args, folder: Path) -> dict[str, float]:
    rank, world, device = init_distributed()
    policy = shape.make_policy(args.tiny, folder, checkpointing="auto").eval()
    if device.type == "cuda":
        policy.compile()
    engine = make_engine(policy, CONFIG, 1e-5, stage=1, bf16=False)
    learner = Learner(policy, ("actor",), engine)
    tasks = [task for task in load_tasks("pocket") if task.eval["eval_types"] == ["url_match"]]
    tasks = tasks[: args.tasks * world]
    rollouts = folder / f"rollouts-{world}"
    rollout_seconds = asyncio.run(play(args, folder, policy, tasks[rank::world], rollouts))

    groups = [load_group(rollouts / task.id, task, args.K, args.M) for task in tasks]
    steps = sum(map(count_steps, groups))
    played = [samples_of_rank(args, groups[r::world], r, world) for r in range(world)]
    shares = balanced(played)
    options = train_rl.Args(passes=PASSES, temperature=TEMPERATURE, lr=1e-5)
    Z = {"actor": CONSTANT}
    own = shares[rank]
    train_rl.update(learner, {"actor": own[:2]}, Z, options)  # compiles
    update_seconds = timed(lambda: train_rl.update(learner, {"actor": own}, Z, options))
    samples, loads = sum(map(len, shares)), [sum(map(tokens, share)) for share in shares]
    stayed = sum(len(ids_of(own) & ids_of(share)) for own, share in zip(played, shares))
    speed = PASSES * samples / update_seconds
    per_task = rollout_seconds / len(tasks) + PASSES * (steps / len(tasks) + args.K) / speed
    return {
        "rollout, steps/s": steps / rollout_seconds,
        "update, samples/s": speed,
        COST: world * per_task,
        "rollout, s": rollout_seconds,
        "update, s": update_seconds,
        "steps": steps,
        "samples": samples,
        "samples that moved": 1 - stayed / samples,
        "largest load over mean": max(loads) * world / sum(loads),
    }


def count_steps(group: Group) -> int:
    count = 0
    for episodes in group.episodes:
        count += sum(len(episode.steps) for episode in episodes)
    return count


def samples_of_rank(args: Args, groups: list[Group], rank: int, world: int) -> list[Sample]:
    """About --update-samples of a rank's samples: from half of that on the first rank to one and a
    half times on the last."""
    samples = []
    for group in groups:
        samples += samples_of(group, random.Random(rank))[0]
    count = args.update_samples
    if world > 1:
        count = max(1, round(count * (0.5 + rank / (world - 1))))
    return samples[:: max(1, len(samples) // count)][:count]


def ids_of(samples: list[Sample]) -> set[int]:
    """The objects' identities: samples of equal content are different samples."""
    return {id(sample) for sample in samples}


async def play(
    args: Args, folder: Path, policy: Policy, tasks: list[Task], rollouts: Path
) -> float:
    """Seconds until the last rank has played its tasks."""
    sampling = Sampling(TEMPERATURE, TEMPERATURE, args.plan_tokens, args.action_tokens, seed=0)
    async with AsyncExitStack() as stack:
        sampler = make_sampler(args, folder, policy, stack)
        await sampler.sync()
        judge = Judge(stack.enter_context(serve_teacher()), MODEL, None)
        arena = PocketArena(full=not args.tiny, latency=args.latency)
        await stack.enter_async_context(arena)
        browsers = await stack.enter_async_context(Browsers(2))
        env = Environment(arena, browsers, judge, concurrency=args.tasks * args.K * args.M)
        agents = Agents(sampler, Wanderer(sampler), policy.prompts, policy.prompts)
        warm_up = rollouts / f"warm-up-{dist.get_rank()}"
        await rollout(env, agents, tasks[0], 1, 2, 2, sampling, warm_up)
        dist.barrier()
        began = time.monotonic()
        sizes = {"K": args.K, "M": args.M, "T": args.T, "sampling": sampling}
        groups = [rollout(env, agents, task, folder=rollouts / task.id, **sizes) for task in tasks]
        await asyncio.gather(*groups)
        dist.barrier()
        return time.monotonic() - began


def make_sampler(args: Args, folder: Path, policy: Policy, stack: AsyncExitStack) -> Sampler:
    """vLLM's where it is installed; `stack` ends its engine."""
    if not find_spec("vllm"):
        return LocalSampler(policy)
    from jhima.serving.vllm_sampler import VllmSampler, start_engine, stop_engine

    weights = {} if args.tiny else {"load_format": "dummy"}  # random there as here
    kv_bytes = int(args.kv_gib * 2**30) if DEVICE.type == "cuda" else 256 << 20
    engine = start_engine(folder, DEVICE, 32, kv_bytes, max_tokens=4096, **weights)
    stack.callback(stop_engine, engine)
    return VllmSampler(policy, engine)


# ---- fine-tuning ----


def measure_sft(args: Args, folder: Path) -> dict[str, float]:
    rank, world, device = init_distributed()
    gpu = device.type == "cuda"
    policy = shape.make_policy(args.tiny, folder, rank=None)
    if gpu:
        policy.base.gradient_checkpointing_enable()
    packed = PackedPolicy(policy)
    config = json.loads(CONFIG.read_text("utf-8"))
    micro = config["train_micro_batch_size_per_gpu"]
    accumulate = config["gradient_accumulation_steps"]
    engine = make_engine(packed, CONFIG, 1e-5, stage=3, bf16=gpu)
    packed.train()
    samples = update.make_samples(policy, micro * accumulate * world, args.tiny)
    random.Random(0).shuffle(samples)
    examples = [update.example(s) for s in samples[rank::world]]
    batch = make_batch(examples, policy.image_pad, micro, 30720)
    read = all_sum(batch.read)[0]

    def steps(count: int) -> None:
        for _ in range(count):
            train_sft.train_step(engine, packed, batch, 1e-5)

    steps(1)
    seconds = timed(lambda: steps(args.sft_steps)) / args.sft_steps
    row = {"fine-tuning, tokens/s": read / seconds, "fine-tuning, s per step": seconds}
    if gpu:
        peak = torch.cuda.max_memory_allocated() / 2**30
        row["fine-tuning, peak GiB"] = all_sum(peak, op=dist.ReduceOp.MAX)[0]
    return row


# ---- one GPU, then all ----


def prepare(args: Args, part: str, folder: Path) -> None:
    """Fills the folder of the part's model: the pocket base model, or a shape without weights."""
    if args.tiny:
        for file in shape.BASE.iterdir():
            (folder / file.name).symlink_to(file)
        return
    shape.write_shape(folder)
    if part == "sft":
        config = Qwen2_5_VLConfig.from_pretrained(folder)
        config.text_config.num_hidden_layers = args.sft_layers
        config.text_config.layer_types = config.text_config.layer_types[: args.sft_layers]
        config.save_pretrained(folder)


def launch(part: str, world: int, folder: Path) -> dict[str, float]:
    """What rank 0 of `world` ranks measured; empty if they failed, which they have explained."""
    # torchrun's default number of threads depends on `world`.
    threads = os.environ.get("OMP_NUM_THREADS", "8" if DEVICE.type == "cuda" else "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", str(world), __file__, *sys.argv[1:]]
    began = time.monotonic()
    subprocess.run(
        [*command, "--worker", part, str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": threads},
        check=False,
    )
    path = folder / f"{part}-{world}.json"
    row = json.loads(path.read_text("utf-8")) if path.exists() else {}
    print(f"{part} on {world}, {time.monotonic() - began:.0f} s: {row or 'failed'}", flush=True)
    return row


def work(args: Args) -> None:
    """One rank's part, under torchrun."""
    part, folder = args.worker
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    row = measure_sft(args, folder) if part == "sft" else measure_rl(args, folder)
    if dist.get_rank() == 0:
        (folder / f"{part}-{dist.get_world_size()}.json").write_text(json.dumps(row), "utf-8")
    leave()


def main() -> None:
    args = cli.parse(Args, __doc__)
    if args.worker:
        return work(args)
    one, many, efficiency = {}, {}, {}
    complete = True
    for part in args.parts:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            prepare(args, part, folder)
            one |= launch(part, 1, folder)
            many |= launch(part, args.gpus, folder)
        names = RATES[part]
        if not all(name in one and name in many for name in names):
            complete = False
            continue
        for name in names:
            efficiency[name] = many[name] / args.gpus / one[name]
        if part == "rl":
            efficiency[COST] = one[COST] / many[COST]
    settings = asdict(args)
    del settings["worker"]
    result = {
        "device": shape.DEVICE_NAME,
        "gpus": args.gpus,
        "settings": settings,
        "one": one,
        "all": many,
        "efficiency": {name: round(value, 3) for name, value in efficiency.items()},
    }
    report("scaling", result)
    print(f"\n{'':24}{'1':>10}{args.gpus:>10}  efficiency")
    for name, value in efficiency.items():
        print(f"{name:24}{one[name]:>10.2f}{many[name]:>10.2f}{value:>11.0%}")
    if not complete:
        sys.exit("scaling.py: not everything could be measured, see above")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
