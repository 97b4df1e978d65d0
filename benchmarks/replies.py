"""Rollouts with the tiny model: our sampler against one transformers generate() per request.

    python benchmarks/replies.py [--actor runs/demo/actor]

The same episodes at once in real Chromium, by the oracle's plans; only the actor's sampler differs.
jhima.sampler batches the requests of all episodes; the other is transformers' image processor and
generate(), as most agents call them. Both sample greedily, so both play the same. Prints, last, the
ratio of steps/s in this run; writes runs/benchmarks/replies.json.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.report import report
from benchmarks.shape import BASE, DEVICE
from benchmarks.update import stock_inputs, stock_processor
from jhima import cli
from jhima.browser.chromium import Browsers
from jhima.environment import Environment, load_tasks
from jhima.episodes import Episode, Plan, Task
from jhima.pocket.arena import PocketArena
from jhima.pocket.tasks.generate import solutions
from jhima.policy import Policy, default_dtype, load_policy
from jhima.prompts import Prompt
from jhima.rollout import Act, Agents, Sampling, actor_policy, episode
from jhima.sampler import Completion, LocalSampler


@dataclass
class Args:
    actor: Path = BASE
    """checkpoint that plays"""
    episodes: int = 12
    """at once"""
    T: int = 10
    """steps per episode"""


class Stock:
    """transformers' own way from a prompt to a reply, in one thread, like a model behind a lock."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.lock = policy, asyncio.Lock()
        self.processor = stock_processor()
        self.suppressed = policy.forbidden.nonzero()[:, 0].tolist()

    @torch.no_grad()
    def generate(self, prompt: Prompt, max_tokens: int) -> Completion:
        policy, ids = self.policy, self.policy.prompt_ids(prompt)
        image, expanded = stock_inputs(self.processor, policy.image_pad, prompt.image, ids)
        input_ids = torch.tensor([expanded], device=DEVICE)
        output = policy.model.generate(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            mm_token_type_ids=(input_ids == policy.image_pad).long(),
            pixel_values=image["pixel_values"].to(DEVICE),
            image_grid_thw=image["image_grid_thw"].to(DEVICE),
            max_new_tokens=max_tokens,
            do_sample=False,
            suppress_tokens=self.suppressed,
            eos_token_id=policy.im_end,
        )
        reply = output[0, len(expanded) :].tolist()
        logps = [0.0] * len(reply)
        return Completion(ids, reply, logps, policy.text(reply), reply[-1] != policy.im_end)

    async def sample(
        self, prompt: Prompt, max_tokens: int, _temperature: float, _seed: int
    ) -> Completion:
        async with self.lock:
            return await asyncio.to_thread(self.generate, prompt, max_tokens)


async def measure(sampler: LocalSampler | Stock, args: Args) -> tuple[float, list[Episode]]:
    """(steps per second, the episodes), played at once."""
    tasks = load_tasks("pocket")[: args.episodes]
    sampling = Sampling(temperature=0.0, action_tokens=48)
    prompts = sampler.policy.prompts
    agents = Agents(None, sampler, decomposer_prompts=prompts, actor_prompts=prompts)
    async with PocketArena() as arena, Browsers() as browsers:
        env = Environment(arena, browsers, concurrency=args.episodes)

        async def play(task: Task) -> Episode:
            plan = Plan("", [subtask.title for subtask in solutions()[task.intent].plan])

            def actor(attempt: int) -> Act:
                return actor_policy(agents, task, plan, sampling, 0, 0, attempt)

            return await episode(env, task, 0, 0, actor, args.T)

        began = time.monotonic()
        episodes = await asyncio.gather(*map(play, tasks))
        seconds = time.monotonic() - began
    return sum(len(played.steps) for played in episodes) / seconds, episodes


def main() -> None:
    args = cli.parse(Args, __doc__)
    torch.set_num_threads(1)
    policy = load_policy(args.actor, DEVICE, default_dtype(DEVICE)).eval()
    our_speed, our_episodes = asyncio.run(measure(LocalSampler(policy), args))
    stock_speed, stock_episodes = asyncio.run(measure(Stock(policy), args))
    pairs = []
    for ours, stock in zip(our_episodes, stock_episodes):
        pairs += zip(ours.steps, stock.steps)
    speeds = {"ours": round(our_speed, 2), "transformers": round(stock_speed, 2)}
    ratio = round(our_speed / stock_speed, 2)
    result = {
        "steps": len(pairs),
        "steps/s": speeds,
        "replies that are the same": sum(ours.ids == stock.ids for ours, stock in pairs),
        "ratio": ratio,
    }
    report("replies", result)
    print(f"rollout, steps/s: {speeds['ours']} against {speeds['transformers']}, ratio {ratio}")


if __name__ == "__main__":
    main()
