"""The hierarchical rollout: K plans a task, M episodes a plan, all of them at once.

Each episode leases a world of its own and plays in a browser context of its own. Episodes are coroutines; they wait
for pages and for the samplers, never for each other. An environment failure (browser, site, login, judge, deadline)
is retried with a fresh world; an episode that keeps failing has no reward and leaves its group's mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from jhima.actions import OURS, Dialect, Turn, format_call
from jhima.browser.session import Observation, Session
from jhima.coordinates import smart_resize
from jhima.environment import Environment
from jhima.episodes import (
    Episode,
    Group,
    Plan,
    Step,
    Task,
    load_episode,
    load_plans,
    save_episode,
    save_plans,
)
from jhima.failures import EnvironmentFailure
from jhima.policy import Policy
from jhima.prompts import Prompts, load_prompts, read_plan
from jhima.sampler import ApiSampler, Completion, LocalSampler, Sampler, SamplerOptions
from jhima.webarena.evaluators import Verdict, score
from jhima.webarena.login import Guard
from jhima.webarena.milestones import judged, request


class Baseline(Protocol):
    """A system that plays in the actor's place (jhima/baselines/agents.py)."""

    def act(self, task: str, seed: Callable[..., int], retries: int) -> Act: ...


@dataclass(frozen=True)
class Replanned(Completion):
    """An actor's reply under a plan that the decomposer made anew just before it (--replan)."""

    plan: Plan


# An actor as the loop sees it: what it observes, its operations so far, and the session (which only an oracle looks
# into) -> its reply.
Act = Callable[[Observation, list[str], Session], Awaitable[Completion]]


def seed_of(*parts: object) -> int:
    """A seed from a run's seed and a place in it, so that a resumed run draws the same random numbers."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


# ---- one episode ----


async def play(
    env: Environment, task: Task, act: Act, T: int, dialect: Dialect = OURS
) -> tuple[list[Step], str, str, dict[str, str], Verdict, float]:
    """Plays and scores one episode; returns (steps, answer, final URL, the sites' URLs, verdict, seconds waited for
    replies).

    Raises EnvironmentFailure where something other than the agent is to blame.
    """
    async with env.start(task) as (lease, session):
        guard = Guard(session, lease)
        steps: list[Step] = []
        operations: list[str] = []
        answer, thinking = "", 0.0
        for _ in range(T):
            seen = await session.observe()
            asked = time.monotonic()
            reply = await act(seen, operations, session)
            thinking += time.monotonic() - asked
            viewport = (seen.width, seen.height)
            turn = dialect.parse(reply.text, viewport)
            note, answer, ended = await perform(session, turn, answer, dialect.answer_ends)
            env.repairs += await guard.repair()
            operations.append(describe(turn, viewport))
            steps.append(
                Step(
                    seen.png,
                    seen.width,
                    seen.height,
                    seen.url,
                    turn,
                    note,
                    reply.text,
                    reply.prompt_ids,
                    reply.ids,
                    reply.logps,
                    reply.plan if isinstance(reply, Replanned) else None,
                )
            )
            if ended:
                break
        await session.observe()  # let the last action's consequences arrive before they are judged
        verdict = await score(task, lease, session, answer, env.judge, env.published)
        return steps, answer, session.page.url, lease.urls, verdict, thinking


async def perform(
    session: Session, turn: Turn, answer: str, answer_ends: bool = True
) -> tuple[str, str, bool]:
    """Carries out a turn's actions in order; returns (notes, answer so far, whether the episode ends).

    A stop ends it, and so does an answer, for our actor answers once; where it does not, the last one counts. A turn
    without any action is a step that did nothing.
    """
    notes: list[str] = []
    for action in turn.actions:
        if action.kind == "answer":
            answer = action.text
        elif action.kind != "stop" and (note := await session.perform(action)):
            notes.append(note)
    ended = any(
        action.kind == "stop" or action.kind == "answer" and answer_ends for action in turn.actions
    )
    if ended and not answer:  # terminate(info=...) is an answer where none was given
        answer = next(
            (a.text for a in turn.actions if a.kind == "stop" and a.status == "success"), ""
        )
    return "; ".join(notes), answer, ended


def describe(turn: Turn, viewport: tuple[int, int]) -> str:
    """A turn's entry in the history h_t: its operation, or its calls where the model gave none."""
    calls = "; ".join(
        format_call(action, smart_resize(*viewport), viewport) for action in turn.actions
    )
    return turn.operation or calls or "(no valid action)"


async def episode(
    env: Environment,
    task: Task,
    plan: int,
    number: int,
    actor: Callable[[int], Act],
    T: int,
    dialect: Dialect = OURS,
) -> Episode:
    """One episode with its retries. `actor(attempt)` gives the Act for an attempt: each draws anew."""
    failure: EnvironmentFailure | None = None
    failures: list[str] = []
    for attempt in range(env.attempts):
        began = time.monotonic()
        try:
            steps, answer, final_url, urls, verdict, thinking = await play(
                env, task, actor(attempt), T, dialect
            )
            # No verdict is no reward, but no reason to play again: evaluate.py --rescore asks the judge later.
            if verdict.failure:
                env.count(EnvironmentFailure(**verdict.failure))
            checks = [vars(check) for check in verdict.checks]
            return Episode(
                task.id,
                plan,
                number,
                steps,
                verdict.reward,
                verdict.failure,
                answer,
                final_url,
                checks,
                round(time.monotonic() - began, 2),
                attempt,
                failures,
                round(thinking, 2),
                urls=urls,
            )
        except EnvironmentFailure as error:
            failure = error
        except TimeoutError:
            failure = EnvironmentFailure(
                "deadline", f"the episode took longer than {env.episode_deadline:g} s"
            )
        env.count(failure)
        failures.append(failure.kind)
    return Episode(
        task.id,
        plan,
        number,
        [],
        None,
        {"kind": failure.kind, "detail": failure.detail},
        "",
        "",
        [],
        round(time.monotonic() - began, 2),
        env.attempts - 1,
        failures,
    )


# ---- the two levels ----


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn: the paper's temperature, a budget of tokens each, and the seed of this batch.

    Beyond the paper (its future work), off by default: `replan` makes a new plan every so many steps, `milestones` has
    a judge look which subtasks an episode completed.
    retries: how often a reply that cannot be read is drawn again, at temperature 1; evaluation only.
    """

    plan_temperature: float = 0.8
    temperature: float = 0.8
    plan_tokens: int = 512
    action_tokens: int = 256
    seed: int = 0
    replan: int = 0
    milestones: bool = False
    retries: int = 0


@dataclass
class Agents:
    """The two policies as samplers with their prompts. Without a decomposer the actor gets no subtasks.

    dialect: how replies are read. baseline: plays instead of the actor, if given (agents.py).
    """

    decomposer: object | None
    actor: object
    decomposer_prompts: Prompts
    actor_prompts: Prompts
    dialect: Dialect = OURS
    baseline: Baseline | None = None


def make_agents(
    sources: dict[str, Policy | str],
    options: SamplerOptions,
    prompt: Path | None,
    stack: AsyncExitStack,
) -> Agents:
    """The two roles as samplers with their prompts. `stack` ends vLLM's engines.

    sources: role -> its policy, or URL#MODEL for an API model. One policy may play both roles, and
    then has one sampler. Without a "decomposer" the actor gets no subtasks.
    """
    samplers: dict[int, Sampler] = {}
    roles: dict[str, Sampler] = {}
    prompts: dict[str, Prompts] = {}
    for role, source in sources.items():
        if isinstance(source, str):
            roles[role] = ApiSampler(*source.rsplit("#", 1))
            prompts[role] = load_prompts(None, prompt)
            continue
        if id(source) not in samplers:
            samplers[id(source)] = sampler_for(source, options, stack)
        roles[role], prompts[role] = samplers[id(source)], source.prompts
    return Agents(
        decomposer=roles.get("decomposer"),
        actor=roles["actor"],
        decomposer_prompts=prompts.get("decomposer", prompts["actor"]),
        actor_prompts=prompts["actor"],
    )


def sampler_for(policy: Policy, options: SamplerOptions, stack: AsyncExitStack) -> Sampler:
    """What samples from a policy: itself, or vLLM's engine of its checkpoint."""
    if options.sampler == "local":
        return LocalSampler(policy, options.sampler_batch)
    from jhima.serving.vllm_sampler import with_engine  # not every machine has vLLM

    return with_engine(policy, options.kv_gib, stack)


async def sample_plan(
    agents: Agents, task: Task, seen: bytes, operations: list[str], how: Sampling, *place: object
) -> Plan:
    """Eq. 1: a decomposition d ~ pi_D(. | x, o_0), or, later in an episode, of what is left to do. An empty reply
    leaves the task itself as the only subtask."""
    prompt = agents.decomposer_prompts.decomposer(task.intent, seen, operations)
    reply = await agents.decomposer.sample(
        prompt, how.plan_tokens, how.plan_temperature, seed_of(how.seed, task.id, "plan", *place)
    )
    return Plan(
        reply.text, read_plan(reply.text) or [task.intent], reply.prompt_ids, reply.ids, reply.logps
    )


def actor_policy(agents: Agents, task: Task, plan: Plan | None, how: Sampling, *place: int) -> Act:
    """Eq. 2: a_t ~ pi_A(. | x, o_t, h_t, d). `place` (plan, episode, attempt) seeds its draws."""
    if agents.baseline:
        return agents.baseline.act(
            task.intent, lambda *t: seed_of(how.seed, task.id, *place, *t), how.retries
        )

    async def act(seen: Observation, operations: list[str], _session: Session) -> Completion:
        nonlocal plan
        t = len(operations)
        replanned = bool(how.replan and plan and t and t % how.replan == 0)
        if replanned:
            plan = await sample_plan(agents, task, seen.png, operations, how, *place, t)
        prompt = agents.actor_prompts.actor(
            task.intent, plan.subtasks if plan else None, operations, seen.png
        )
        reply = await agents.actor.sample(
            prompt, how.action_tokens, how.temperature, seed_of(how.seed, task.id, *place, t)
        )
        for again in range(how.retries):
            if agents.dialect.parse(reply.text, (seen.width, seen.height)).error is None:
                break
            reply = await agents.actor.sample(
                prompt, how.action_tokens, 1.0, seed_of(how.seed, task.id, *place, t, again)
            )
        return Replanned(**vars(reply), plan=plan) if replanned else reply

    return act


async def first_observation(env: Environment, task: Task) -> tuple[bytes, list[str]]:
    """o_0, the start page's screenshot, and the kinds of failures before it. Raises the last EnvironmentFailure when
    every attempt fails."""
    failures: list[str] = []
    for attempt in range(env.attempts):
        try:
            async with env.start(task) as (_, session):
                return (await session.observe()).png, failures
        except (EnvironmentFailure, TimeoutError) as error:
            failure = (
                error
                if isinstance(error, EnvironmentFailure)
                else EnvironmentFailure("deadline", "start page")
            )
            env.count(failure)
            failures.append(failure.kind)
            if attempt == env.attempts - 1:
                raise failure from None


async def with_milestones(env: Environment, task: Task, plan: Plan, e: Episode) -> Episode:
    """The episode with the judge's word on each subtask; without one, and the failure counted, where it has none."""
    try:
        completed, _ = await judged(
            env.judge, request(task.intent, plan.subtasks, e), len(plan.subtasks)
        )
        return replace(e, milestones=completed)
    except EnvironmentFailure as failure:
        env.count(failure)
        return replace(e, failures=[*e.failures, failure.kind])


async def rollout(
    env: Environment,
    agents: Agents,
    task: Task,
    K: int,
    M: int,
    T: int,
    how: Sampling,
    folder: Path,
    finished: Callable[[Episode], None] = lambda e: None,
) -> Group | None:
    """One task's group: K plans, then K x M episodes at once, each saved as it ends.

    What `folder` already holds is read, not played. `finished` is told of every episode (a progress bar). Returns
    None where the task's start page could not be reached at all: the batch goes on without it.
    """
    saved = load_plans(folder)
    if saved is None:
        try:
            first, failures = await first_observation(env, task)
        except EnvironmentFailure:
            return None
        plans = [Plan("", [])] * K
        if agents.decomposer:
            plans = await asyncio.gather(
                *(sample_plan(agents, task, first, [], how, i) for i in range(K))
            )
        save_plans(folder, task, first, plans, failures)
    else:
        first, plans, failures = saved

    async def one(i: int, j: int) -> Episode:
        done = load_episode(folder, i, j)
        if done is None:
            plan = plans[i] if agents.decomposer else None
            done = await episode(
                env,
                task,
                i,
                j,
                lambda attempt: actor_policy(agents, task, plan, how, i, j, attempt),
                T,
                agents.dialect,
            )
            if how.milestones and done.reward is not None:
                done = await with_milestones(env, task, plan, done)
            save_episode(folder, done)
        finished(done)
        return done

    async with asyncio.TaskGroup() as group:
        jobs = [[group.create_task(one(i, j)) for j in range(M)] for i in range(K)]
    return Group(task, first, plans, [[job.result() for job in row] for row in jobs], failures)
