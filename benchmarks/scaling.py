"""How well does training scale over the GPUs of a host? N GPUs against one in the same call.

    python benchmarks/scaling.py                 # all GPUs and one: 7B shape, about 10 minutes
    python benchmarks/scaling.py --parts sft     # or in two calls: the other is --parts rl
    python benchmarks/scaling.py --tiny          # the pocket base model, on two processes of a CPU

Every GPU gets the same work whatever their number. RL: each rank plays tasks of its own (real pages, real Chromium,
vLLM where it is installed), all ranks then read all episodes and train on what train_rl.py would deal them, by its own
update. Fine-tuning: train_sft.py's own step under ZeRO-3. Made up, because random weights solve nothing: what the
browser does, and the advantages; tasks teach unevenly, from half to one and a half times the mean, so that samples
have to move to other ranks. One set of weights plays both roles, as with --shared. Prints, last, the efficiency of
each number: what a GPU of N does in percent of what one alone does; writes runs/benchmarks/scaling.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
from rollout import Wanderer, samples_of
from shape import BASE, DEVICE, ROOT, make_policy, report, write_shape
from transformers import Qwen2_5_VLConfig
from update import example, make_samples, synchronize

import train_rl
import train_sft
from jhima.browser.chromium import Browsers
from jhima.environment import Environment, load_tasks
from jhima.episodes import load_group
from jhima.pocket.arena import PocketArena
from jhima.pocket.teacher import MODEL, serve_teacher
from jhima.policy import Policy, Sample
from jhima.rollout import Agents, Sampling, rollout
from jhima.sampler import LocalSampler
from jhima.training.checkpoints import Learner
from jhima.training.deepspeed_engine import all_sum, init_distributed, make_engine
from jhima.training.packing import PackedPolicy
from jhima.training.ranks import balanced, tokens
from jhima.training.sft_dataset import make_batch
from jhima.training.watchdog import leave
from jhima.webarena.judge import Judge

PASSES, TEMPERATURE, CONSTANT = 2, 0.8, 1000.0
RATES = ("update, samples/s", "rollout, steps/s", "fine-tuning, tokens/s")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tiny", action="store_true", help="the pocket base model and 336x336 pages")
    add(
        "--gpus",
        type=int,
        default=max(2, torch.cuda.device_count()),
        help="GPUs, or processes of a CPU (default: all, or 2)",
    )
    add("--parts", nargs="+", choices=("sft", "rl"), default=["sft", "rl"], help="(default: both)")
    add("--tasks", type=int, default=1, help="tasks a GPU, all at once (default: %(default)s)")
    add("--K", type=int, default=3, help="plans a task (default: %(default)s)")
    add("--M", type=int, default=7, help="episodes a plan (default: %(default)s)")
    add("--T", type=int, default=15, help="steps an episode (default: %(default)s)")
    add(
        "--latency",
        type=float,
        default=1.0,
        help="seconds that every page takes (default: %(default)s)",
    )
    add("--plan-tokens", type=int, default=128, help="(default: %(default)s)")
    add("--action-tokens", type=int, default=64, help="(default: %(default)s)")
    add(
        "--update-samples",
        type=int,
        default=64,
        help="samples a GPU to update on; the rest is scaled (default: %(default)s)",
    )
    add(
        "--kv-gib",
        type=float,
        default=16,
        help="vLLM's memory for keys and values (default: %(default)s)",
    )
    add(
        "--sft-layers",
        type=int,
        default=14,
        help="decoder layers of the fine-tuned model: the 7B's 28 with their optimizer leave one "
        "GPU no memory (default: %(default)s)",
    )
    add("--sft-steps", type=int, default=6, help="(default: %(default)s)")
    add(
        "--worker", nargs=2, metavar=("PART", "FOLDER"), help=argparse.SUPPRESS
    )  # one rank, under torchrun
    return parser.parse_args()


def timed(work) -> float:
    """Seconds from when all ranks begin until all are done."""
    dist.barrier()
    synchronize()
    began = time.monotonic()
    work()
    synchronize()
    dist.barrier()
    return time.monotonic() - began


# ---- RL ----


def measure_rl(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    rank, world, device = init_distributed()
    policy = make_policy(args.tiny, folder, checkpointing="auto").eval()
    if device.type == "cuda":
        policy.compile()
    learner = Learner(
        policy, ("actor",), make_engine(policy, ROOT / "ds_config.json", 1e-5, stage=1, bf16=False)
    )
    tasks = [t for t in load_tasks("pocket") if t.eval["eval_types"] == ["url_match"]][
        : args.tasks * world
    ]
    place = folder / f"rollouts-{world}"
    seconds = asyncio.run(play(args, folder, policy, tasks[rank::world], place, rank))

    groups = [load_group(place / t.id, t, args.K, args.M) for t in tasks]
    steps = sum(len(e.steps) for g in groups for row in g.episodes for e in row)
    played = [
        uneven(
            [s for g in groups[r::world] for s in samples_of(g, random.Random(r))[0]],
            args.update_samples,
            r,
            world,
        )
        for r in range(world)
    ]
    shares = balanced(played)
    how = Namespace(
        micro_batch=1,
        passes=PASSES,
        temperature=TEMPERATURE,
        eps=0.2,
        eps_high=None,
        beta=0.0,
        tis=None,
        lr=1e-5,
    )
    train_rl.update(learner, {"actor": shares[rank][:2]}, {"actor": CONSTANT}, how)  # compiles
    update = timed(
        lambda: train_rl.update(learner, {"actor": shares[rank]}, {"actor": CONSTANT}, how)
    )
    samples, loads = sum(map(len, shares)), [sum(map(tokens, share)) for share in shares]
    moved = (
        1
        - sum(any(s is mine for mine in own) for own, share in zip(played, shares) for s in share)
        / samples
    )
    speed = PASSES * samples / update
    return {
        "rollout, steps/s": steps / seconds,
        "update, samples/s": speed,
        "GPU-seconds a task": world
        * (seconds / len(tasks) + PASSES * (steps / len(tasks) + args.K) / speed),
        "rollout, s": seconds,
        "update, s": update,
        "steps": steps,
        "samples": samples,
        "samples that moved": moved,
        "largest load over mean": max(loads) * world / sum(loads),
    }


async def play(
    args: argparse.Namespace, folder: Path, policy: Policy, tasks: list, place: Path, rank: int
) -> float:
    """Seconds until the last rank has played its tasks."""
    engine = None
    if find_spec("vllm"):
        from jhima.serving.vllm_sampler import VllmSampler, start_engine, stop_engine

        weights = {} if args.tiny else {"load_format": "dummy"}  # random there as here
        kv = int(args.kv_gib * 2**30) if DEVICE.type == "cuda" else 256 << 20
        engine = start_engine(folder, DEVICE, 32, kv, max_tokens=4096, **weights)
        sampler = VllmSampler(policy, engine)
    else:
        sampler = LocalSampler(policy)
    try:
        await sampler.sync()
        with serve_teacher() as url:
            async with (
                PocketArena(full=not args.tiny, latency=args.latency) as arena,
                Browsers(2) as browsers,
            ):
                env = Environment(
                    arena,
                    browsers,
                    Judge(url, MODEL, None),
                    concurrency=args.tasks * args.K * args.M,
                )
                agents = Agents(sampler, Wanderer(sampler), policy.prompts, policy.prompts)
                how = Sampling(TEMPERATURE, TEMPERATURE, args.plan_tokens, args.action_tokens, 0)
                await rollout(env, agents, tasks[0], 1, 2, 2, how, place / f"warm-up-{rank}")
                dist.barrier()
                began = time.monotonic()
                await asyncio.gather(
                    *(
                        rollout(env, agents, task, args.K, args.M, args.T, how, place / task.id)
                        for task in tasks
                    )
                )
                dist.barrier()
                return time.monotonic() - began
    finally:
        if engine:
            stop_engine(engine)


def uneven(samples: list[Sample], count: int, rank: int, world: int) -> list[Sample]:
    """About `count` of a rank's samples, from half of that on the first rank to one and a half times on the last."""
    wanted = max(1, round(count * (0.5 + rank / (world - 1)))) if world > 1 else count
    return samples[:: max(1, len(samples) // wanted)][:wanted]


# ---- fine-tuning ----


def measure_sft(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    rank, world, device = init_distributed()
    policy = make_policy(args.tiny, folder, rank=None)
    if device.type == "cuda":
        policy.base.gradient_checkpointing_enable()
    packed = PackedPolicy(policy)
    config = json.loads((ROOT / "ds_config.json").read_text("utf-8"))
    micro, accumulate = (
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
    )
    engine = make_engine(
        packed, ROOT / "ds_config.json", 1e-5, stage=3, bf16=device.type == "cuda"
    )
    packed.train()
    samples = make_samples(
        policy,
        micro * accumulate * world,
        *((30, 12, (336, 336)) if args.tiny else (1008, 64, (1280, 720))),
    )
    random.Random(0).shuffle(samples)
    batch = make_batch([example(s) for s in samples[rank::world]], policy.image_pad, micro, 30720)
    read = all_sum(batch.read)[0]

    def steps(count: int) -> None:
        for _ in range(count):
            train_sft.train_step(engine, packed, batch, 1e-5)

    steps(1)
    seconds = timed(lambda: steps(args.sft_steps)) / args.sft_steps
    row = {"fine-tuning, tokens/s": read / seconds, "fine-tuning, s a step": seconds}
    if device.type == "cuda":
        row["fine-tuning, peak GiB"] = all_sum(
            torch.cuda.max_memory_allocated() / 2**30, op=dist.ReduceOp.MAX
        )[0]
    return row


# ---- one GPU, then all ----


def prepare(args: argparse.Namespace, part: str, folder: Path) -> Path:
    """The folder of the part's model: weights are made on the GPU, or are the pocket base model's."""
    if args.tiny:
        for file in BASE.iterdir():
            (folder / file.name).symlink_to(file)
        return folder
    write_shape(folder)
    if part == "sft":
        config = Qwen2_5_VLConfig.from_pretrained(folder)
        config.text_config.num_hidden_layers = args.sft_layers
        config.text_config.layer_types = config.text_config.layer_types[: args.sft_layers]
        config.save_pretrained(folder)
    return folder


def launch(part: str, world: int, folder: Path) -> dict[str, float]:
    """What rank 0 of `world` ranks measured; nothing, after its own words, where it failed."""
    threads = os.environ.get(
        "OMP_NUM_THREADS", "8" if DEVICE.type == "cuda" else "1"
    )  # torchrun's default depends on `world`
    began = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(world),
            __file__,
            *sys.argv[1:],
            "--worker",
            part,
            str(folder),
        ],
        env=os.environ | {"OMP_NUM_THREADS": threads},
        check=False,
    )
    path = folder / f"{part}-{world}.json"
    row = json.loads(path.read_text("utf-8")) if path.exists() else {}
    print(f"{part} on {world}, {time.monotonic() - began:.0f} s: {row or 'failed'}", flush=True)
    return row


def main() -> None:
    args = parse_args()
    if args.worker:
        part, folder = args.worker[0], Path(args.worker[1])
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        row = {"rl": measure_rl, "sft": measure_sft}[part](args, folder)
        if dist.get_rank() == 0:
            (folder / f"{part}-{dist.get_world_size()}.json").write_text(json.dumps(row), "utf-8")
        leave()
        return
    one, many = {}, {}
    for part in args.parts:
        with tempfile.TemporaryDirectory() as scratch:
            folder = prepare(args, part, Path(scratch))
            one |= launch(part, 1, folder)
            many |= launch(part, args.gpus, folder)
    efficiency = {
        name: many[name] / args.gpus / one[name] for name in RATES if name in one and name in many
    }
    if "GPU-seconds a task" in one and "GPU-seconds a task" in many:
        efficiency["GPU-seconds a task"] = one["GPU-seconds a task"] / many["GPU-seconds a task"]
    report(
        "scaling",
        {
            "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
            "gpus": args.gpus,
            "settings": {k: v for k, v in vars(args).items() if k != "worker"},
            "one": one,
            "all": many,
            "efficiency": {name: round(value, 3) for name, value in efficiency.items()},
        },
    )
    print(f"\n{'':24}{'1':>10}{args.gpus:>10}  efficiency")
    for name, value in efficiency.items():
        print(f"{name:24}{one[name]:>10.2f}{many[name]:>10.2f}{value:>11.0%}")
    if len(efficiency) < sum({"sft": 1, "rl": 3}[part] for part in args.parts):
        sys.exit("scaling.py: not everything could be measured, see above")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
