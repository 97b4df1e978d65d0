"""RL batches of the pocket arena in this process, in one environment; faults to inject."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import torch
from playwright.async_api import Error as PlaywrightError

import jhima.rollout
import jhima.training.ranks
import train_rl
from jhima import cli
from jhima.browser.session import Session
from jhima.environment import Environment
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.sampler import LocalSampler
from jhima.training.deepspeed_engine import init_distributed

TASK = Task(
    "map-0",
    ("map",),
    "__MAP__",
    "Show me the page of the Zoo.",
    {
        "eval_types": ["url_match"],
        "reference_answers": None,
        "reference_url": "__MAP__/place/Zoo",
        "program_html": [],
    },
)


def arguments(monkeypatch, checkpoint, out, *flags: object):
    """train_rl.py's arguments for small batches of one model in both roles."""
    small = "--K 2 --M 3 --T 2 --plan-tokens 6 --action-tokens 6 --micro-batch 8 --lora-rank 4"
    base = (
        f"{small} --lora-alpha 8 --lr 1e-3 --decomposer {checkpoint} --actor {checkpoint}".split()
    )
    monkeypatch.setattr(sys, "argv", ["train_rl.py", *base, "--out", str(out), *map(str, flags)])
    args = train_rl.checked(cli.parse(train_rl.Args, None))
    out.mkdir(parents=True)
    return args


async def train(monkeypatch, env: Environment, args, tasks: list[Task]) -> tuple[list, list[dict]]:
    """The script's own stages 2 and 3 in `env`; returns (learners, rows of metrics)."""

    @asynccontextmanager
    async def shared(_args):
        yield env

    monkeypatch.setattr(train_rl, "environment", shared)
    init_distributed()
    learners = [
        train_rl.load_learner(args, role, torch.device("cpu")) for role in train_rl.weights_of(args)
    ]
    await train_rl.train(args, tasks, learners, 0, lambda step, row: None)
    lines = (args.out / "metrics.jsonl").read_text().splitlines()
    return learners, [json.loads(line) for line in lines]


def reward_some(monkeypatch) -> None:
    """Episodes of an untrained model are played, but get fixed rewards.

    2 of 3 succeed under plan 0, 1 of 3 under plan 1.
    """
    real = jhima.rollout.episode

    async def episode(env, task, plan, number, *rest):
        done = await real(env, task, plan, number, *rest)
        return replace(done, reward=int(number + plan < 2)) if done.reward is not None else done

    monkeypatch.setattr(jhima.rollout, "episode", episode)


def run_script(flags: list[str], port: int | None = None) -> None:
    """train_rl.py's main() with these rewards, in a process of its own."""
    os.environ.pop("MASTER_PORT", None)  # the parent's
    if port:
        os.environ["MASTER_PORT"] = str(port)
    sys.argv = ["train_rl.py", *flags]
    with pytest.MonkeyPatch.context() as patch:
        reward_some(patch)
        train_rl.main()


def run_not_finite(flags: list[str], log: str) -> None:
    """The same where no gradient is finite; what it prints goes to `log`."""
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    objective = train_rl.objective
    train_rl.objective = lambda *inputs: objective(*inputs) * float("nan")
    run_script(flags)


def run_rank(flags: list[str], rank: int, world: int, port: int, log: str) -> None:
    """The same as one of `world` ranks; what it prints goes to `log`."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
    }
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    jhima.training.ranks.PATIENCE = 1.0
    run_script(flags, port)


def inject(monkeypatch, rng: random.Random, period: int) -> dict[str, int]:
    """About every `period`-th observation, reply of a model and score goes wrong.

    Returns how many of each did.
    """
    done = dict.fromkeys(("browser", "stall", "500", "reply", "judge"), 0)
    left = dict.fromkeys(("look", "reply", "judge"), period)
    observe, sample, score = Session.observe, LocalSampler.sample, jhima.rollout.score

    def due(what: str) -> bool:
        left[what] -= 1
        if left[what] <= 0:
            left[what] = rng.randint(period // 2, period * 3 // 2)
            return True
        return False

    async def faulty_observe(session):
        if due("look"):
            kind = rng.choice(("browser", "stall", "500"))
            done[kind] += 1
            # Another episode's fault may have killed the browser already.
            with suppress(PlaywrightError):
                if kind == "browser":
                    console = await session.context.browser.new_browser_cdp_session()
                    processes = (await console.send("SystemInfo.getProcessInfo"))["processInfo"]
                    browser = next(p["id"] for p in processes if p["type"] == "browser")
                    os.kill(browser, signal.SIGKILL)
                else:
                    await session.context.route("**/*", never if kind == "stall" else broken)
                    await session.goto(session.page.url)
        return await observe(session)

    async def never(_route):
        await asyncio.sleep(3600)

    async def broken(route):
        await route.fulfill(status=500, body="out of order")

    async def faulty_sample(sampler, *request):
        reply = await sample(sampler, *request)
        if due("reply"):
            done["reply"] += 1
            garbage = "".join(
                chr(rng.choice((0, 60, 62, 0xD800, 0x202E, 0x1F600, 97))) for _ in range(50)
            )
            return replace(reply, text=f"<action>\n{garbage}")
        return reply

    async def faulty_score(*arguments, **more):
        if due("judge"):
            done["judge"] += 1
            raise EnvironmentFailure("judge", "injected")
        return await score(*arguments, **more)

    monkeypatch.setattr(Session, "observe", faulty_observe)
    monkeypatch.setattr(LocalSampler, "sample", faulty_sample)
    monkeypatch.setattr(jhima.rollout, "score", faulty_score)
    return done
