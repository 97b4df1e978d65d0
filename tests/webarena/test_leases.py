"""Rollouts on stub sites in Chromium: own orders, verified logins and their repair, and sites
that break in mid-run.

Every fault here comes with an agent that does its task right: its reward is 1, or there is none,
but never 0.
"""

import argparse
import asyncio
import json
from contextlib import ExitStack, nullcontext, suppress

import pytest
from shop import Shop
from stubs import Session, lease_of

from jhima.actions import Action, format_reply
from jhima.browser.chromium import UNSAFE
from jhima.environment import check_environment, environment
from jhima.episodes import Task
from jhima.failures import EnvironmentFailure, within
from jhima.rollout import episode
from jhima.sampler import Completion
from jhima.webarena.login import Guard

STOP = Completion([1], [2], [-1.0], format_reply("Finish", ["terminate(status='success')"]), False)
WAIT = Completion([1], [2], [-1.0], format_reply("Wait", ["wait(seconds=0.01)"]), False)


def order_of(item: str) -> dict:
    return {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "func:shopping_get_latest_order_url()",
                "locator": "document.querySelector('.order-details-items').outerText",
                "required_contents": {"exact_match": item},
            }
        ],
    }


def buys(item: str) -> Task:
    return Task(f"t-{item}", ("shopping",), "__SHOPPING__", f"Buy {item}", order_of(item))


ENDS_AT = Task(
    "t-url",
    ("shopping",),
    "__SHOPPING__",
    "Show my account",
    {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/account", "url_note": "EXACT"},
)


@pytest.fixture
def play(tmp_path, loop, chromium, monkeypatch):
    """Plays `jobs`, (task, acts) pairs, all at once on `count` shops: acts(attempt) is the list
    of what the agent does, a step each. Returns the episodes; `play.shops` and `play.env` are
    what they played on.
    """

    def run(count: int, *jobs: tuple, shops: list[Shop] | None = None, **more: object):
        with ExitStack() as stack:
            play.shops = [
                stack.enter_context(shop) for shop in shops or [Shop() for _ in range(count)]
            ]
            sites = tmp_path / "sites.json"
            sites.write_text(
                json.dumps(
                    {
                        "replicas": [
                            {
                                "urls": {
                                    "shopping": shop.url,
                                    "shopping_admin": shop.url + "/admin",
                                },
                                "reset": {"url": shop.url + "/reset"},
                                "health": {"shopping_admin": ""},
                            }
                            | more
                            for shop in play.shops
                        ]
                    }
                )
            )
            args = argparse.Namespace(
                sites=sites,
                tasks="t.json",
                full=False,
                judge_url=None,
                judge_model="j",
                browsers=1,
                concurrency=8,
                published_rules=False,
                out=tmp_path,
            )
            check_environment(args, [task for task, _ in jobs])

            async def go():
                async with environment(args) as env:
                    play.env, env.arena.pause = env, 0.1
                    return await asyncio.gather(
                        *(
                            episode(
                                env, task, 0, n, lambda attempt, acts=acts: actor(acts(attempt)), 6
                            )
                            for n, (task, acts) in enumerate(jobs)
                        )
                    )

            return loop.run_until_complete(go())

    monkeypatch.setattr("jhima.environment.Browsers", lambda _count: nullcontext(chromium))

    def actor(acts: list):
        async def act(_seen, operations, session):
            step = len(operations)
            if step >= len(acts):
                return STOP
            await acts[step](session)
            return WAIT

        return act

    play.run = run
    return play


def click(selector: str, text: str = ""):
    async def do(session):
        async def clicked():
            if text:
                await session.page.fill("#item", text)
            await session.page.click(selector)

        await within(session.operation, clicked(), "a click")

    return do


def do(function):
    async def act(_session):
        function()

    return act


def test_two_rollouts_that_place_an_order_are_each_scored_on_their_own(play):
    mug, plate, idle = (buys(item) for item in ("mug", "plate", "none"))
    done = play.run(
        2,
        (mug, lambda _: [click("#buy", "mug")]),
        (plate, lambda _: [click("#buy", "plate")]),
        (mug, lambda _: [click("#buy", "cup")]),
        (idle, lambda _: []),
    )
    assert [e.reward for e in done] == [1, 1, 0, 0], done
    assert (
        play.env.failures == {} and play.env.arena.counts["changed"] == 3
    )  # the idle one changed nothing
    assert done[0].checks[0]["reason"] == "found 'mug'"


def test_an_episode_is_scored_once_however_many_steps_it_has(play):
    """BrowserGym scores after every step, on the agent's own page, and ends the episode where
    that is 1.
    """
    places = []

    async def where(session):
        places.append(session.page.url)

    (done,) = play.run(
        1,
        (
            buys("mug"),
            lambda _: [
                click("#buy", "mug"),
                where,
                lambda session: session.page.goto(play.shops[0].url + "/account"),
                where,
            ],
        ),
    )
    assert done.reward == 1 and len(done.steps) == 5, done
    assert [path for _, path in play.shops[0].seen].count("/rest/V1/orders") == 1
    assert (
        places[0].endswith("/order_id/2/")
        and places[1].endswith("/account")
        and done.final_url == places[1]
    )


def test_reads_by_post_are_no_change_and_readers_share(play):
    look = Task(
        "t-look",
        ("shopping",),
        "__SHOPPING__",
        "Look",
        {"eval_types": ["string_match"], "reference_answers": {"must_include": ["x"]}},
    )
    done = play.run(1, *[(look, lambda _: [click("#look")])] * 3)
    assert [e.reward for e in done] == [0] * 3 and play.env.arena.counts["changed"] == 0
    assert ("POST", "/graphql") in play.shops[0].seen


def test_a_session_that_the_site_ends_is_opened_again(play, capsys):
    forget = do(lambda: play.shops[0].sessions.clear())
    (done,) = play.run(1, (ENDS_AT, lambda _: [forget, click("#account")]))
    assert done.reward == 1 and done.retries == 0 and play.env.repairs == 1, done
    assert done.final_url.endswith("/account")
    assert (
        "environment: logins repaired 1, resets 1" in capsys.readouterr().err
    )  # the counts are printed


def test_a_form_lost_to_a_session_that_ended_is_played_again(play):
    forget = do(lambda: play.shops[0].sessions.clear())
    (done,) = play.run(
        1,
        (
            buys("mug"),
            lambda attempt: [click("#buy", "mug")] if attempt else [forget, click("#buy", "mug")],
        ),
    )
    assert done.reward == 1 and done.retries == 1 and play.env.failures == {"login": 1}, done


def test_a_session_that_ends_before_scoring_is_opened_for_scoring(play):
    forget = do(lambda: play.shops[0].sessions.clear())
    (done,) = play.run(1, (buys("mug"), lambda _: [click("#buy", "mug"), forget]))
    assert done.reward == 1 and done.retries == 0, done


def test_an_agent_that_signs_out_is_not_signed_in_again(play):
    (done,) = play.run(
        1,
        (
            ENDS_AT,
            lambda _: [
                click("#out"),
                lambda session: session.page.goto(play.shops[0].url + "/account"),
            ],
        ),
    )
    assert (
        done.reward == 0
        and done.final_url.endswith("/customer/account/login/")
        and play.env.repairs == 0
    )


@pytest.mark.parametrize("status", [500, 429])
def test_a_site_that_breaks_in_mid_run_is_no_zero(play, status):
    async def breaks(_session):
        play.shops[0].status = status
        asyncio.get_running_loop().call_later(1, setattr, play.shops[0], "status", 200)

    (done,) = play.run(
        1,
        (ENDS_AT, lambda attempt: [click("#account")] if attempt else [breaks, click("#account")]),
    )
    assert done.reward == 1 and done.retries == 1 and play.env.failures == {"site": 1}, done


def test_a_dead_replica_is_left_for_another(play, capsys):
    def die(attempt: int) -> list:
        async def kill(session):
            shop = next(s for s in play.shops if str(s.server.server_port) in session.page.url)
            await asyncio.to_thread(shop.__exit__)
            with suppress(EnvironmentFailure):
                await session.goto(shop.url)
            raise EnvironmentFailure("site", "dead")

        return [click("#account")] if attempt else [kill]

    (done,) = play.run(2, (ENDS_AT, die))
    assert done.reward == 1 and done.retries == 1 and play.env.failures == {"site": 1}, done
    # Whether the dead one is asked again before the end, and so told of as not healthy, is a
    # matter of timing.
    assert "environment: site 1" in capsys.readouterr().err


def test_posts_that_reddit_rations_are_no_zero(world, loop, browser):
    """Postmill says so on a page with status 200."""
    world.pages["/"] = (
        "<ul class=form-error-list><li>You cannot post more. Wait a while before trying again.</ul>"
    )

    async def scenario():
        context = await browser.new_context()
        session = Session(context, await context.new_page())
        guard = Guard(session, lease_of(world))
        await session.page.goto(world.url)
        try:
            await guard.repair()
        finally:
            await context.close()

    with pytest.raises(EnvironmentFailure, match="site: reddit rations posts"):
        loop.run_until_complete(scenario())


# ---- logging in ----


def test_a_login_that_is_not_seen_to_work_is_no_sample(play):
    (done,) = play.run(
        1, (ENDS_AT, lambda _: [click("#account")]), accounts={"shopping": ["nobody", "wrong"]}
    )
    assert done.reward is None and done.failure["kind"] == "login", done
    assert "to nobody" in done.failure["detail"] and "wrong" not in done.failure["detail"]


def test_a_site_that_logs_in_by_header_needs_no_form(play):
    header = {"shopping": {"X-Login": "emma"}}
    (done,) = play.run(
        1,
        (ENDS_AT, lambda _: [click("#account")]),
        shops=[Shop(header="emma")],
        header_login=header,
    )
    assert done.reward == 1 and ("GET", "/customer/account/login/") not in play.shops[0].seen, done
    (done,) = play.run(
        1,
        (ENDS_AT, lambda _: [click("#account")]),
        shops=[Shop(header="emma")],
        header_login={"shopping": {"X-Login": "eve"}},
    )
    assert done.reward is None and done.failure["kind"] == "login"


def test_localhost_and_127_0_0_1_are_one_host(play):
    async def by_the_other_name(session):
        await within(
            5,
            session.page.goto(play.shops[0].url.replace("127.0.0.1", "localhost") + "/account"),
            "opening",
        )

    (done,) = play.run(1, (ENDS_AT, lambda _: [by_the_other_name]))
    assert (
        done.reward == 1 and done.final_url.startswith("http://localhost") and play.env.repairs == 0
    ), done


def test_ports_that_chromium_calls_unsafe_work(play):
    for port in map(int, UNSAFE.split(",")):
        if port > 5000:
            shop = Shop(port=port)
            with suppress(OSError):
                with shop:
                    pass
                break
    (done,) = play.run(1, (ENDS_AT, lambda _: [click("#account")]), shops=[Shop(port=port)])
    assert done.reward == 1 and f":{port}/" in done.final_url, done


def test_a_task_that_starts_on_two_pages_has_the_second_behind_the_first(play):
    task = Task(
        "t-tabs",
        ("shopping",),
        "__SHOPPING__/account |AND| __SHOPPING__/wishlist/",
        "x",
        {
            "eval_types": ["url_match"],
            "reference_url": "__SHOPPING__/wishlist/",
            "url_note": "EXACT",
        },
    )

    async def look_behind(session):
        assert session.page.url.endswith("/account")
        assert await session.perform(
            Action("back")
        ) == "" and "no page to go back" in await session.perform(Action("back"))

    (done,) = play.run(1, (task, lambda _: [look_behind]))
    assert done.reward == 1, done


def test_one_login_serves_all_episodes_and_is_renewed_once(play):
    def renewals(attempt):
        return [do(lambda: play.shops[0].sessions.clear()), click("#account")]

    done = play.run(1, *[(ENDS_AT, lambda _: [click("#account")])] * 8)
    logins = ("POST", "/customer/account/login/")
    assert [e.reward for e in done] == [1] * 8 and play.shops[0].seen.count(logins) == 1, done
    (done,) = play.run(1, (ENDS_AT, renewals))
    assert done.reward == 1 and play.shops[0].seen.count(logins) == 2, done


def test_what_a_page_could_not_fetch_is_named_in_the_closing_line(play, capsys):
    async def fetches(session):
        await session.page.evaluate("fetch('http://tiles.example:8080/1.png').catch(() => 0)")

    (done,) = play.run(1, (ENDS_AT, lambda _: [fetches, click("#account")]))
    blocked = "requests blocked to tiles.example:8080 (sites.json: hosts) 1"
    assert done.reward == 1 and blocked in capsys.readouterr().err, done


def test_a_grids_filter_which_posts_a_bookmark_is_no_change(play):
    async def filters(session):
        await session.page.evaluate("fetch('/admin/mui/bookmark/save/', {method: 'POST'})")

    (done,) = play.run(1, (ENDS_AT, lambda _: [filters, click("#account")]))
    assert done.reward == 1 and play.env.arena.counts["changed"] == 0, done
