"""The hierarchical rollout: K plans per task, M episodes per plan, all of them at once.

Each episode leases a world of its own and plays in a browser context of its own. Episodes are
coroutines; they wait for pages and for the samplers, never for each other. An environment failure
(browser, site, login, judge, deadline) is retried in a fresh world; an episode that keeps failing
has no reward and leaves its group's mean.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from jhima import episodes
from jhima.actions import OURS, Dialect, Turn, format_call
from jhima.browser.session import Observation, Session
from jhima.coordinates import smart_resize
from jhima.environment import Environment
from jhima.episodes import Episode, Group, Plan, Step, Task
from jhima.failures import EnvironmentFailure
from jhima.policy import Policy
from jhima.prompts import Prompts, load_prompts, read_plan
from jhima.sampler import Completion, LocalSampler, Sampler, SamplerOptions
from jhima.serving.api_sampler import ApiSampler
from jhima.webarena.evaluators import Verdict, score
from jhima.webarena.login import Guard
from jhima.webarena.milestones import judged, request

# An actor as the episode's loop sees it: what it observes, its operations so far, and the session
# (into which only an oracle looks) -> its reply.
Act = Callable[[Observation, list[str], Session], Awaitable[Completion]]


class Baseline(Protocol):
    """A system that plays in the actor's place (jhima/baselines/agents.py)."""

    def act(self, task: str, seed: Callable[..., int], retries: int) -> Act: ...


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn: the paper's temperature, token budgets, and the seed of this batch.

    replan: beyond the paper, a new plan every so many steps; 0 for never. milestones: a judge says
    which subtasks an episode completed. retries: how often an unreadable reply is drawn again, at
    temperature 1; for evaluation only.
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
    """The two policies as samplers with their prompts. No decomposer: the actor gets no subtasks.

    dialect: how replies are read. baseline: plays instead of the actor, if given.
    """

    decomposer: Sampler | None
    actor: Sampler | None
    decomposer_prompts: Prompts
    actor_prompts: Prompts
    dialect: Dialect = OURS
    baseline: Baseline | None = None

    def samplers(self) -> list[Sampler]:
        """Each sampler once: with shared weights one sampler plays both roles."""
        used = [sampler for sampler in (self.decomposer, self.actor) if sampler is not None]
        return list(dict.fromkeys(used))


def make_agents(
    sources: dict[str, Policy | str],
    options: SamplerOptions,
    prompt: Path | None,
    stack: AsyncExitStack,
) -> Agents:
    """The two roles as samplers with their prompts. `stack` ends vLLM's engines.

    sources: role -> its policy, or URL#MODEL for an API model. One policy may play both roles, and
    then has one sampler. prompt: a file of prompts for an API model.
    """
    policies = list(dict.fromkeys(s for s in sources.values() if isinstance(s, Policy)))
    of_policy = dict(zip(policies, samplers_for(policies, options, stack)))
    samplers: dict[str, Sampler] = {}
    prompts: dict[str, Prompts] = {}
    for role, source in sources.items():
        if isinstance(source, Policy):
            samplers[role], prompts[role] = of_policy[source], source.prompts
        else:
            samplers[role] = ApiSampler(*source.rsplit("#", 1))
            prompts[role] = load_prompts(None, prompt)
    return Agents(
        decomposer=samplers.get("decomposer"),
        actor=samplers["actor"],
        decomposer_prompts=prompts.get("decomposer", prompts["actor"]),
        actor_prompts=prompts["actor"],
    )


def samplers_for(
    policies: list[Policy], options: SamplerOptions, stack: AsyncExitStack
) -> list[Sampler]:
    """What samples from each policy: itself, or a vLLM engine of its checkpoint."""
    if options.sampler == "local" or not policies:
        return [LocalSampler(policy, options.sampler_batch) for policy in policies]
    from jhima.serving.vllm_sampler import with_engines  # not every machine has vLLM

    return with_engines(policies, options.kv_gib, stack)


def seed_of(*parts: object) -> int:
    """A seed from the run's seed and a place in the run: a resumed run draws the same numbers."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


# ---- the two policies ----


async def sample_plan(
    agents: Agents,
    task: Task,
    screenshot: bytes,
    operations: list[str],
    sampling: Sampling,
    *draw: object,
) -> Plan:
    """Eq. 1: a plan d ~ pi_D(. | x, o_0); with operations, of what is left to do in mid-episode.

    An empty reply leaves the task itself as the only subtask. `draw` says which plan it is, and
    seeds it.
    """
    prompt = agents.decomposer_prompts.decomposer(task.intent, screenshot, operations)
    seed = seed_of(sampling.seed, task.id, "plan", *draw)
    reply = await agents.decomposer.sample(
        prompt, sampling.plan_tokens, sampling.plan_temperature, seed
    )
    subtasks = read_plan(reply.text) or [task.intent]
    return Plan(reply.text, subtasks, reply.prompt_ids, reply.ids, reply.logps)


def actor_policy(
    agents: Agents, task: Task, plan: Plan | None, sampling: Sampling, *draw: int
) -> Act:
    """Eq. 2: a_t ~ pi_A(. | x, o_t, h_t, d). `draw` (plan, episode, attempt) seeds its replies."""

    def seed(*t: int) -> int:
        return seed_of(sampling.seed, task.id, *draw, *t)

    if agents.baseline:
        return agents.baseline.act(task.intent, seed, sampling.retries)

    async def reply_under(
        plan: Plan | None, observation: Observation, operations: list[str]
    ) -> Completion:
        t = len(operations)
        subtasks = plan.subtasks if plan else None
        prompt = agents.actor_prompts.actor(task.intent, subtasks, operations, observation.png)
        tokens = sampling.action_tokens
        reply = await agents.actor.sample(prompt, tokens, sampling.temperature, seed(t))
        for retry in range(sampling.retries):
            viewport = (observation.width, observation.height)
            if agents.dialect.parse(reply.text, viewport).error is None:
                break
            reply = await agents.actor.sample(prompt, tokens, 1.0, seed(t, retry))
        return reply

    if plan and sampling.replan:
        return replanning(reply_under, agents, task, plan, sampling, *draw)

    async def act(observation: Observation, operations: list[str], _session: Session) -> Completion:
        return await reply_under(plan, observation, operations)

    return act


# ---- one episode ----


@dataclass
class Played:
    """What one attempt at an episode gave. thinking: seconds that it waited for replies."""

    steps: list[Step] = field(default_factory=list)
    answer: str = ""
    final_url: str = ""
    urls: dict[str, str] = field(default_factory=dict)  # where its sites were
    last: bytes = b""  # o_T
    verdict: Verdict | None = None
    thinking: float = 0.0


async def play(env: Environment, task: Task, act: Act, T: int, dialect: Dialect = OURS) -> Played:
    """Plays and scores one episode of at most T steps.

    Raises EnvironmentFailure where something other than the agent is to blame.
    """
    async with env.start(task) as (lease, session):
        guard = Guard(session, lease)
        operations: list[str] = []  # h_t
        played = Played(urls=lease.urls)
        for _ in range(T):
            observation = await session.observe()
            reply_start = time.monotonic()
            reply = await act(observation, operations, session)
            played.thinking += time.monotonic() - reply_start
            viewport = (observation.width, observation.height)
            turn = dialect.parse(reply.text, viewport)
            note, played.answer, ended = await perform(
                session, turn, played.answer, dialect.answer_ends
            )
            env.repairs += await guard.repair()
            operations.append(describe(turn, viewport))
            played.steps.append(step_of(observation, turn, note, reply))
            if ended:
                break
        played.last = (await session.observe()).png  # once the last action has taken effect
        played.verdict = await score(task, lease, session, played.answer, env.judge, env.published)
        played.final_url = session.page.url
        return played


def step_of(observation: Observation, turn: Turn, note: str, reply: Completion) -> Step:
    return Step(
        screenshot=observation.png,
        width=observation.width,
        height=observation.height,
        url=observation.url,
        turn=turn,
        note=note,
        reply=reply.text,
        prompt_ids=reply.prompt_ids,
        ids=reply.ids,
        logps=reply.logps,
        plan=reply.new_plan,
    )


async def perform(
    session: Session, turn: Turn, answer: str, answer_ends: bool = True
) -> tuple[str, str, bool]:
    """Carries out a turn's actions in order: (notes, answer so far, whether the episode ends).

    A stop ends it. So does an answer with `answer_ends`; without, the last answer counts. A turn
    without any action is a step that did nothing.
    """
    notes: list[str] = []
    ended = False
    for action in turn.actions:
        if action.kind == "stop":
            ended = True
        elif action.kind == "answer":
            answer = action.text
            ended = ended or answer_ends
        else:
            notes.append(await session.perform(action))
    if ended and not answer:  # terminate(info=...) is an answer where none was given
        for action in turn.actions:
            if action.kind == "stop":  # whatever its status, as in ScaleCUA's harness
                answer = action.text
                break
    return "; ".join(note for note in notes if note), answer, ended


def describe(turn: Turn, viewport: tuple[int, int]) -> str:
    """A turn's entry in the history h_t: its operation, or its calls if the model gave none."""
    grid = smart_resize(*viewport)
    calls = "; ".join(format_call(action, grid, viewport) for action in turn.actions)
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
    """Episode `number` under plan `plan`, with its retries.

    actor(attempt) gives the Act for an attempt; each attempt draws anew.
    """
    failures: list[EnvironmentFailure] = []
    for attempt in range(env.attempts):
        start = time.monotonic()
        played = Played()
        try:
            played = await play(env, task, actor(attempt), T, dialect)
            break
        except EnvironmentFailure as error:
            failures.append(error)
        except TimeoutError:
            message = f"the episode took longer than {env.episode_deadline:g} s"
            failures.append(EnvironmentFailure("deadline", message))
        env.count(failures[-1])
    if played.verdict is None:
        checks, reward = (), None
        failure = {"kind": failures[-1].kind, "detail": failures[-1].detail}
    else:
        checks, reward = played.verdict.checks, played.verdict.reward
        failure = played.verdict.failure
        if failure:
            # No verdict means no reward, but is no reason to play again: evaluate.py --rescore
            # asks the judge later.
            env.count(EnvironmentFailure(**failure))
    return Episode(
        task_id=task.id,
        plan=plan,
        episode=number,
        steps=played.steps,
        reward=reward,
        failure=failure,
        answer=played.answer,
        final_url=played.final_url,
        checks=[vars(check) for check in checks],
        seconds=round(time.monotonic() - start, 2),
        retries=attempt,
        failures=[failure.kind for failure in failures],
        thinking=round(played.thinking, 2),
        urls=played.urls,
        last=played.last,
    )


# ---- the two levels ----


async def rollout(
    env: Environment,
    agents: Agents,
    task: Task,
    K: int,
    M: int,
    T: int,
    sampling: Sampling,
    folder: Path,
    finished: Callable[[Episode], None] = lambda episode: None,
) -> Group | None:
    """One task's group: K plans, then K x M episodes at once, each saved as it ends.

    What `folder` already holds is read, not played. `finished` is called with every episode (for a
    progress bar). Returns None if there is no start page or no plan to begin with: the batch goes
    on without it.
    """
    saved = episodes.load_plans(folder)
    if saved is None:
        plans = [Plan("", [])] * K
        try:
            first, failures = await first_observation(env, task)
            if agents.decomposer:
                draws = [sample_plan(agents, task, first, [], sampling, i) for i in range(K)]
                plans = await asyncio.gather(*draws)
        except EnvironmentFailure:
            return None
        saved = first, plans, failures
        episodes.save_plans(folder, task, *saved)
    first, plans, failures = saved

    async def play_one(i: int, j: int) -> Episode:
        """Episode j under plan i: read if it was saved, else played, judged and saved."""
        done = episodes.load_episode(folder, i, j)
        if done is None:
            plan = plans[i] if agents.decomposer else None

            def actor(attempt: int) -> Act:
                return actor_policy(agents, task, plan, sampling, i, j, attempt)

            done = await episode(env, task, i, j, actor, T, agents.dialect)
            if sampling.milestones and done.reward is not None:
                done = await with_milestones(env, task, plan, done)
            episodes.save_episode(folder, done)
        finished(done)
        return done

    rows = []
    async with asyncio.TaskGroup() as group:
        for i in range(K):
            rows.append([group.create_task(play_one(i, j)) for j in range(M)])
    results = []
    for row in rows:
        results.append([done.result() for done in row])
    return Group(task, first, plans, results, failures)


async def first_observation(env: Environment, task: Task) -> tuple[bytes, list[str]]:
    """o_0, the start page's screenshot, and the kinds of failures before it was seen.

    Raises the last EnvironmentFailure if every attempt fails.
    """
    failures: list[EnvironmentFailure] = []
    for _ in range(env.attempts):
        try:
            async with env.start(task) as (_lease, session):
                observation = await session.observe()
                return observation.png, [failure.kind for failure in failures]
        except EnvironmentFailure as error:
            failures.append(error)
        except TimeoutError:
            failures.append(EnvironmentFailure("deadline", "start page"))
        env.count(failures[-1])
    raise failures[-1]


# ---- beyond the paper: its future work ----


def replanning(
    reply_under: Callable[[Plan, Observation, list[str]], Awaitable[Completion]],
    agents: Agents,
    task: Task,
    plan: Plan,
    sampling: Sampling,
    *draw: int,
) -> Act:
    """An actor that gets a new plan every `sampling.replan` steps (--replan)."""
    current = plan

    async def act(observation: Observation, operations: list[str], _session: Session) -> Completion:
        nonlocal current
        t = len(operations)
        if t == 0 or t % sampling.replan:
            return await reply_under(current, observation, operations)
        png = observation.png
        current = await sample_plan(agents, task, png, operations, sampling, *draw, t)
        reply = await reply_under(current, observation, operations)
        return replace(reply, new_plan=current)

    return act


async def with_milestones(env: Environment, task: Task, plan: Plan, e: Episode) -> Episode:
    """The episode with the judge's verdict on each subtask (--milestone).

    Without a verdict it stays as it is, and the failure is counted.
    """
    question = request(task.intent, plan.subtasks, e)
    try:
        completed, _ = await judged(env.judge, question, len(plan.subtasks))
    except EnvironmentFailure as failure:
        env.count(failure)
        return replace(e, failures=[*e.failures, failure.kind])
    return replace(e, milestones=completed)
