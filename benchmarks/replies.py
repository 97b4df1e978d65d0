"""Rollouts with the tiny model: replies by jhima.sampler against transformers' generate(), a request at a time.

    python benchmarks/replies.py [--actor runs/demo/actor]

The same episodes at once in real Chromium, by the oracle's plans; only the actor's sampler differs. Ours batches the
requests of all episodes; the other is transformers' image processor and generate(), as most agents call them. Both
sample greedily, so both play the same. Prints, last, the ratio of steps/s in this run; writes
runs/benchmarks/replies.json.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import torch
from shape import BASE, DEVICE, report
from update import stock_inputs, stock_processor

from jhima.browser.chromium import Browsers
from jhima.environment import Environment, load_tasks
from jhima.episodes import Plan
from jhima.pocket.arena import PocketArena
from jhima.pocket.tasks.generate import solutions
from jhima.policy import Policy, default_dtype, load_policy
from jhima.prompts import Prompt
from jhima.rollout import Agents, Sampling, actor_policy, episode
from jhima.sampler import Completion, LocalSampler


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
        expanded = torch.tensor([expanded], device=DEVICE)
        found = policy.model.generate(
            input_ids=expanded,
            attention_mask=torch.ones_like(expanded),
            mm_token_type_ids=(expanded == policy.image_pad).long(),
            **{name: value.to(DEVICE) for name, value in image.items()},
            max_new_tokens=max_tokens,
            do_sample=False,
            suppress_tokens=self.suppressed,
            eos_token_id=policy.im_end,
        )
        reply = found[0, expanded.shape[1] :].tolist()
        return Completion(
            ids, reply, [0.0] * len(reply), policy.text(reply), reply[-1] != policy.im_end
        )

    async def sample(
        self, prompt: Prompt, max_tokens: int, _temperature: float, _seed: int
    ) -> Completion:
        async with self.lock:
            return await asyncio.to_thread(self.generate, prompt, max_tokens)


async def measure(
    sampler: LocalSampler | Stock, args: argparse.Namespace
) -> tuple[float, list[list[list[int]]]]:
    """(steps a second, the ids of every episode's replies) of `episodes` tasks at once."""
    tasks, how = load_tasks("pocket")[: args.episodes], Sampling(temperature=0.0, action_tokens=48)
    agents = Agents(None, sampler, sampler.policy.prompts, sampler.policy.prompts)
    async with PocketArena() as arena, Browsers() as browsers:
        env = Environment(arena, browsers, concurrency=args.episodes)

        async def one(task):
            plan = Plan("", [subtask.title for subtask in solutions()[task.intent].plan])
            return await episode(
                env, task, 0, 0, lambda n: actor_policy(agents, task, plan, how, 0, 0, n), args.T
            )

        began = time.monotonic()
        done = await asyncio.gather(*map(one, tasks))
        seconds = time.monotonic() - began
    return sum(len(e.steps) for e in done) / seconds, [[s.ids for s in e.steps] for e in done]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--actor", type=Path, default=BASE, help="(default: the pocket base model)")
    parser.add_argument("--episodes", type=int, default=12, help="at once (default: %(default)s)")
    parser.add_argument("--T", type=int, default=10, help="steps an episode (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = load_policy(args.actor, DEVICE, default_dtype(DEVICE)).eval()
    speed, ids = {}, {}
    for name, kind in (("ours", LocalSampler), ("transformers", Stock)):
        speed[name], ids[name] = asyncio.run(measure(kind(policy), args))
    replies = [(a, b) for first, second in zip(*ids.values()) for a, b in zip(first, second)]
    result = {
        "steps": len(replies),
        "steps/s": {name: round(value, 2) for name, value in speed.items()},
        "replies that are the same": sum(a == b for a, b in replies),
        "ratio": round(speed["ours"] / speed["transformers"], 2),
    }
    report("replies", result)
    print(
        f"rollout, steps/s: {result['steps/s']['ours']} against {result['steps/s']['transformers']}, ratio {result['ratio']}"
    )


if __name__ == "__main__":
    main()
