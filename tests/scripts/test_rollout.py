"""What the environment breaks is retried, and leaves its group's mean if it breaks again: never a
zero, never a hang.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import replace

import pytest
import torch
from stubs import TASK, Deaf

from jhima import grpo
from jhima.actions import Action, Turn, format_reply
from jhima.browser.chromium import Browsers
from jhima.environment import Environment
from jhima.episodes import load_episode, load_group
from jhima.pocket.arena import PocketArena
from jhima.pocket.play.oracle import idle
from jhima.pocket.pretraining.model import PROMPTS
from jhima.rollout import Agents, Sampling, episode, perform, rollout
from jhima.sampler import Completion

DEADLINE = 60.0  # for a whole episode with its retry: each wait inside has a few seconds


def play(faults: list, attempts: int = 2, episode_deadline: float = 30.0):
    """One episode whose attempt n suffers faults[n] (or none) at its first step; returns (episode,
    failures, seconds).
    """

    async def go():
        arena, browsers = PocketArena(deadline=5), Browsers(operation=3, navigation=4)
        async with arena, browsers:
            env = Environment(arena, browsers, attempts=attempts, episode_deadline=episode_deadline)

            def actor(attempt: int):
                async def act(seen, operations, session):
                    if attempt < len(faults) and faults[attempt]:
                        await faults[attempt](arena, session)
                    return await idle(seen, operations, session)

                return act

            began = time.monotonic()
            done = await asyncio.wait_for(episode(env, TASK, 0, 0, actor, T=3), DEADLINE)
            return done, env.failures, time.monotonic() - began

    return asyncio.run(go())


async def kill_browser(_arena, session) -> None:
    console = await session.context.browser.new_browser_cdp_session()
    processes = (await console.send("SystemInfo.getProcessInfo"))["processInfo"]
    os.kill(next(p["id"] for p in processes if p["type"] == "browser"), signal.SIGKILL)


async def stop_site(arena, session) -> None:
    """The server keeps its connections and says nothing any more; the agent then opens a page."""
    os.kill(arena._server.pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(8, os.kill, arena._server.pid, signal.SIGCONT)
    await session.perform(Action("click", 60, 70))


async def kill_site(arena, session) -> None:
    arena._server.kill()
    await arena._server.wait()
    await session.perform(Action("click", 60, 70))


async def endless(_arena, _session) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize(
    "fault, kinds",
    [
        (kill_browser, {"browser", "deadline"}),
        (stop_site, {"deadline", "site"}),
        (kill_site, {"site", "deadline"}),
    ],
)
def test_a_fault_is_retried_in_a_fresh_world(fault, kinds):
    done, failures, seconds = play([fault])
    assert (
        done.reward == 0 and done.failure is None and done.retries == 1
    )  # the idle agent's own, honest zero
    assert set(failures) <= kinds and sum(failures.values()) == 1 and seconds < DEADLINE


@pytest.mark.parametrize("fault", [kill_browser, kill_site])
def test_a_fault_that_comes_again_gives_no_reward(fault):
    done, failures, _ = play([fault, fault])
    assert (
        done.reward is None
        and done.failure["kind"] in failures
        and sum(failures.values()) == 2
        and done.steps == []
    )


def test_an_episode_has_a_deadline():
    done, failures, seconds = play([endless], attempts=1, episode_deadline=4)
    assert (
        done.reward is None
        and done.failure["kind"] == "deadline"
        and failures == {"deadline": 1}
        and seconds < 15
    )


class Scripted:
    """A sampler that always says the same thing, and counts how often it was asked."""

    def __init__(self, reply: str) -> None:
        self.reply, self.asked = reply, 0

    async def sample(self, prompt, max_tokens, temperature, seed) -> Completion:
        self.asked += 1
        return Completion([1], [2, 3], [-1.0, -1.0], self.reply, False)


def test_a_lost_episode_leaves_its_groups_mean(tmp_path, monkeypatch):
    """Through the real loop: episode 1 of plan 0 always loses its site; the group's rewards hold a
    NaN there.
    """
    import jhima.rollout

    real = jhima.rollout.play

    async def sometimes_broken(env, task, act, *how):
        if getattr(act, "lost", False):
            raise jhima.rollout.EnvironmentFailure("site", "gone")
        return await real(env, task, act, *how)

    def marked(agents, task, plan, how, i, j, attempt):
        act = real_policy(agents, task, plan, how, i, j, attempt)
        act.lost = (i, j) == (0, 1)
        return act

    real_policy = jhima.rollout.actor_policy
    monkeypatch.setattr(jhima.rollout, "play", sometimes_broken)
    monkeypatch.setattr(jhima.rollout, "actor_policy", marked)
    stop = format_reply("Finish", ["terminate(status='success')"])
    agents = Agents(Scripted("1. Open Zoo\n2. Finish"), Scripted(stop), PROMPTS, PROMPTS)

    async def go():
        async with PocketArena() as arena, Browsers() as browsers:
            return await rollout(
                Environment(arena, browsers), agents, TASK, 2, 3, 2, Sampling(), tmp_path / "map-0"
            )

    group = asyncio.run(go())
    R = group.rewards()
    assert R[0].isnan().tolist() == [False, True, False] and not R[1].isnan().any()
    assert (
        torch.equal(grpo.actor_advantages(R), torch.zeros(2, 3))
        and group.episodes[0][1].retries == 1
    )
    assert group.plans[0].subtasks == ["Open Zoo", "Finish"]
    again = load_group(tmp_path / "map-0", TASK, 2, 3)
    assert (
        again.episodes == group.episodes
        and again.plans == group.plans
        and again.first == group.first
    )
    asked = agents.actor.asked
    asyncio.run(go())  # all is there: nothing is played
    assert agents.actor.asked == asked


def test_the_screenshot_after_the_last_action_is_kept(tmp_path):
    """An episode that used up its steps: what its last action did is on disk, and read back."""
    click = format_reply("Open the first link", ["click(x=60, y=70)"])
    agents = Agents(Scripted("1. Open Zoo"), Scripted(click), PROMPTS, PROMPTS)

    async def go():
        async with PocketArena() as arena, Browsers() as browsers:
            env = Environment(arena, browsers)
            return await rollout(env, agents, TASK, 1, 1, 1, Sampling(), tmp_path / "map-0")

    [[done]] = asyncio.run(go()).episodes
    [step] = done.steps
    assert done.last.startswith(b"\x89PNG") and done.last != step.screenshot
    assert load_episode(tmp_path / "map-0", 0, 0) == done
    path = tmp_path / "map-0" / "p0_e0" / "episode.json"
    content = json.loads(path.read_text())
    assert content.pop("last") == "last.png"
    path.write_text(json.dumps(content))  # as an earlier version wrote it
    assert load_episode(tmp_path / "map-0", 0, 0) == replace(done, last=b"")


@pytest.mark.parametrize(
    "actions, answer, ended",
    [
        ([Action("answer", text="42")], "42", True),
        ([Action("answer", text="42"), Action("stop", status="success")], "42", True),
        ([Action("stop", status="success", text="42")], "42", True),
        ([Action("stop", status="failure", text="no way")], "no way", True),
        ([Action("answer", text="1"), Action("answer", text="2")], "2", True),
        ([Action("click", 1, 1)], "", False),
        ([], "", False),
    ],
)
def test_what_ends_an_episode_and_what_its_answer_is(actions, answer, ended):
    assert asyncio.run(perform(Deaf(), Turn(tuple(actions)), ""))[1:] == (answer, ended)
