"""sites.json and its leases: who shares a replica, when it is reset, what happens when it does
not work. No browser.
"""

import asyncio
import json
import os
import sys
from contextlib import ExitStack

import pytest
from shop import Shop

from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.webarena.replicas import Replicas, check_sites, deal, load_replicas

CHECKED = {"eval_types": ["program_html"], "program_html": []}
CHANGES = Task("t-1", ("shopping",), "__SHOPPING__", "Buy", CHECKED)
READS = Task(
    "t-2",
    ("shopping",),
    "__SHOPPING__",
    "Look",
    {"eval_types": ["string_match"], "reference_answers": {}},
)


def write(path, *replicas: dict, **shared: object):
    (path / "sites.json").write_text(json.dumps({"replicas": replicas, **shared}))
    return path / "sites.json"


def entry(shop, **more: object) -> dict:
    return {"urls": {"shopping": shop.url}, **more}


GOOD = {"urls": {"shopping": "http://h:1/"}}
BAD = [
    ([], 'non-empty list "replicas"'),
    ([3], "replica 0: expected an object"),
    ([{"url": 1}], "replica 0: expected an object with"),
    ([{"urls": {}}], "replica 0: urls: expected some of shopping"),
    ([{"urls": {"Home page": "http://h"}}], "urls: expected some"),
    ([{"urls": {"shopping": "javascript:alert(1)"}}], "urls.shopping: expected an http"),
    ([{"urls": {"shopping": "http://u:hunter2@h"}}], "urls.shopping: expected an http"),
    ([{"urls": {"shopping": "http://h/?x"}}], "urls.shopping: expected an http"),
    ([GOOD | {"accounts": {"shopping": ["a"]}}], r"accounts: expected \[user, password\]"),
    ([GOOD | {"accounts": {"map": ["a", "hunter2"]}}], "accounts: expected"),
    ([GOOD | {"accounts": 3}], "accounts: expected"),
    ([GOOD | {"headers": {"X": 3}}], "headers: expected an object of texts"),
    (
        [GOOD | {"headers": {"X": "a\r\nEvil: hunter2"}}],
        "headers: expected an object of texts, each one line",
    ),
    ([GOOD | {"header_login": {"map": {"X": "y"}}}], "header_login: expected"),
    ([GOOD | {"reset": "rm -rf /"}], "reset: expected a command as a list"),
    ([GOOD | {"reset": []}], "reset: expected"),
    ([GOOD | {"reset": {"status": "http://h"}}], "reset: expected url"),
    ([GOOD | {"reset": {"url": "x"}}], "reset: expected url"),
    ([GOOD, GOOD], "each site's URL once, or its rollouts meet: h:1 is there again"),
    (
        [{"urls": {"shopping": "http://localhost:1"}}, {"urls": {"map": "http://127.0.0.1:1"}}],
        "127.0.0.1:1 is there again",
    ),
]


@pytest.mark.parametrize("replicas, message", BAD)
def test_a_bad_sites_file_is_one_clear_line(tmp_path, replicas, message):
    with pytest.raises(ValueError, match=message) as error:
        load_replicas(write(tmp_path, *replicas))
    assert (
        str(error.value).startswith(str(tmp_path))
        and "\n" not in str(error.value)
        and "hunter2" not in str(error.value)
    )


def test_a_sites_file_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        load_replicas(tmp_path / "none.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        load_replicas(tmp_path / "x.json")


def test_accounts_are_webarenas_unless_given(tmp_path):
    path = write(
        tmp_path,
        GOOD | {"accounts": {"shopping": ["a", "b"]}},
        {"urls": {"shopping": "http://i", "map": "http://j"}},
        headers={"X": "y"},
        header_login={"shopping": {"Z": "w"}},
    )
    one, two = load_replicas(path)
    assert one.accounts == {"shopping": ("a", "b")} and two.accounts == {
        "shopping": ("emma.lopez@gmail.com", "Password.123")
    }
    assert (
        one.urls == {"shopping": "http://h:1"}
        and one.headers == {"X": "y", "Z": "w"}
        and one.by_header == {"shopping"}
    )
    assert "Password" not in repr(two) and "'b'" not in repr(one)


def test_what_the_sites_do_to_rewards_is_said_plainly(tmp_path):
    one = load_replicas(write(tmp_path, GOOD))
    two = load_replicas(write(tmp_path, GOOD, {"urls": {"shopping": "http://i"}}, reset=["true"]))
    warnings = check_sites(one, [CHANGES, READS], concurrency=4)
    assert len(warnings) == 2 and warnings[0].startswith(
        "1 replica for 1 tasks that change a site: their episodes play one after"
    )
    assert "may get 1 for doing nothing" in warnings[1]
    assert (
        check_sites(two, [CHANGES], concurrency=4) == check_sites(one, [READS], concurrency=4) == []
    )
    with pytest.raises(
        ValueError, match="t-3: expected a replica with shopping, wikipedia, found none"
    ):
        check_sites(one, [Task("t-3", ("shopping", "wikipedia"), "__SHOPPING__", "x", CHECKED)], 1)
    both = load_replicas(
        write(tmp_path, {"urls": {"shopping": "http://h:1", "reddit": "http://h:2"}})
    )
    with pytest.raises(
        ValueError, match="under different host names: both call their cookie PHPSESSID"
    ):
        check_sites(both, [Task("t-4", ("shopping", "reddit"), "__SHOPPING__", "x", CHECKED)], 1)
    with pytest.raises(ValueError, match="one replica per process, got 1 for 2"):
        Replicas(one, world=2)
    assert [Replicas(two, rank=rank, world=2).replicas for rank in (0, 1)] == [two[:1], two[1:]]


@pytest.fixture
def arena(tmp_path):
    """Runs `scenario(arena, shops)` on as many shops as wanted, each with its reset endpoint
    unless `reset` is given.
    """

    def run(count: int, scenario, patience: float = 5.0, **more: object):
        async def go():
            path = write(
                tmp_path,
                *({**entry(shop, reset={"url": shop.url + "/reset"}), **more} for shop in shops),
            )
            async with Replicas(
                load_replicas(path), pause=0.1, patience=patience, check=2
            ) as arena:
                return await asyncio.wait_for(scenario(arena, shops), 20)

        with ExitStack() as stack:
            shops = [stack.enter_context(Shop()) for _ in range(count)]
            return asyncio.run(go())

    return run


def test_who_changes_is_alone_and_who_reads_shares(arena):
    """Brute force over many leases: no two of a replica overlap if one of them changes it, and
    all get their turn.
    """

    async def scenario(arena, shops):
        inside: dict[str, list[str]] = {shop.url: [] for shop in shops}
        most = dict.fromkeys(("t-1", "t-2"), 0)

        async def rollout(number: int, task: Task):
            async with arena.lease(task) as lease:
                here = inside[lease.urls["shopping"]]
                here.append(task.id)
                assert task is READS and set(here) == {"t-2"} or here == ["t-1"]
                most[task.id] = max(
                    most[task.id], sum(names.count(task.id) for names in inside.values())
                )
                await asyncio.sleep(0.01 * (number % 5))
                if task is CHANGES and number % 3:
                    lease.changed.add("shopping")
                here.remove(task.id)

        await asyncio.gather(*(rollout(n, CHANGES if n % 4 == 1 else READS) for n in range(60)))
        assert most["t-1"] == 2 and most["t-2"] >= 3
        return arena.counts, [shop.resets for shop in shops]

    counts, resets = arena(2, scenario)
    assert (
        counts["changed"] == 10 and counts["resets"] == sum(resets) == 12
    )  # once at first, and once a change
    assert counts["failed checks"] == 0


def test_a_change_is_reset_before_the_next_lease_whatever_ended_the_last(arena):
    async def scenario(arena, shops):
        async def change(task: Task, fail: bool):
            async with arena.lease(task) as lease:
                assert shops[0].orders == ["first"]
                shops[0].orders.append("mine")
                lease.changed.add("shopping")
                if fail:
                    raise RuntimeError

        await change(CHANGES, False)
        with pytest.raises(RuntimeError):
            await change(READS, True)  # a reader that changed something after all
        held = asyncio.create_task(change(CHANGES, False))
        await asyncio.sleep(0)
        held.cancel()  # while it waits for its lease
        await asyncio.wait([held])
        async with arena.lease(READS):
            assert shops[0].orders == ["first"]
        return shops[0].resets

    assert arena(1, scenario) == 3


def test_a_command_resets_and_runs_without_a_shell(arena, tmp_path):
    script = (
        "import sys, urllib.request; open(sys.argv[1], 'a').write('x'); "
        "sys.exit(len(open(sys.argv[1]).read()) < 3)"
    )
    log = tmp_path / "log; touch injected"

    async def scenario(arena, shops):
        async with arena.lease(CHANGES):
            pass
        return arena.counts

    counts = arena(1, scenario, reset=[sys.executable, "-c", script, str(log), "$(touch injected)"])
    assert (
        log.read_text() == "xxx"
        and counts["failed resets"] == 2
        and not list(tmp_path.rglob("injected"))
    )


def test_an_endpoint_that_resets_in_its_own_time_is_asked_until_it_is_ready(arena):
    async def scenario(arena, shops):
        async with arena.lease(CHANGES):
            return [path for _, path in shops[0].seen]

    with Shop() as control:
        control.content = "Ready for duty"
        seen = arena(
            1,
            scenario,
            reset={
                "url": control.url + "/reset",
                "status": control.url + "/",
                "ready": "Ready for",
            },
        )
        assert [path for _, path in control.seen] == ["/reset", "/"] and seen == [
            "/"
        ] * 2  # after the reset, before the lease


def test_a_reset_that_hangs_is_ended_with_the_arena(arena, tmp_path):
    async def scenario(arena, shops):
        with pytest.raises(
            EnvironmentFailure,
            match="site: no replica for t-1 in 0.5 s: 1 of 1 are being reset or do not work",
        ):
            async with arena.lease(CHANGES):
                pass

    pid = tmp_path / "pid"
    script = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    arena(1, scenario, patience=0.5, reset=[sys.executable, "-c", script, str(pid)])
    with pytest.raises(OSError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("sick", [{"status": 500}, {"status": 429}, {"content": "It works!"}])
def test_a_replica_that_does_not_work_is_left_alone_and_taken_back(arena, capsys, sick):
    async def scenario(arena, shops):
        vars(shops[0]).update(sick)
        for _ in range(3):
            async with arena.lease(READS) as lease:
                assert lease.urls["shopping"] == shops[1].url  # rollouts go on where it works
        while not arena.counts["failed checks"]:
            await asyncio.sleep(0.02)
        vars(shops[0]).update({"status": 200, "content": "One Stop Market"})
        await asyncio.sleep(0.4)
        async with arena.lease(CHANGES) as one, arena.lease(CHANGES) as two:
            return {one.urls["shopping"], two.urls["shopping"]} == {
                shop.url for shop in shops
            }, arena.counts

    back, counts = arena(2, scenario)
    assert back and counts["failed checks"]
    assert "is not healthy: shopping: " in capsys.readouterr().err


def test_no_replica_at_all_is_no_sample(arena):
    async def scenario(arena, shops):
        shops[0].status = 503
        with pytest.raises(EnvironmentFailure, match="site: no replica for t-2 in 0.6 s"):
            async with arena.lease(READS):
                pass
        shops[0].status = 200
        async with arena.lease(READS):  # the queue is as it was
            pass

    arena(1, scenario, patience=0.6, reset=None)


def test_a_long_queue_is_no_failure(arena):
    """Eight episodes of one task on one replica wait for their turn, however long that
    takes.
    """

    async def scenario(arena, shops):
        async def rollout():
            async with arena.lease(CHANGES) as lease:
                resets.append(shops[0].resets)
                await asyncio.sleep(0.15)
                lease.changed.add("shopping")

        resets = []
        await asyncio.gather(*(rollout() for _ in range(8)))
        return resets

    assert arena(1, scenario, patience=0.4) == list(range(1, 9))  # one before each lease


def test_a_site_of_ones_own_says_all_of_it_in_sites_json(tmp_path):
    form = {"path": "/in", "user": "#name", "inside": "/me"}
    notes = {"login": form, "account": ["kim", "pw"], "hosts": ["http://t:1"], "changes": False}
    path = write(
        tmp_path, {"urls": {"notes": "http://h"}}, sites={"notes": notes}, viewport=[800, 600]
    )
    (replica,) = load_replicas(path)
    lease = replica.lease(Task("t-1", ("notes",), "__NOTES__/", "Look", CHECKED))
    assert lease.forms["notes"].user == "#name" and lease.accounts == {"notes": ("kim", "pw")}
    assert lease.hosts == ("http://t:1",) and lease.viewport == (800, 600)
    assert not replica.changed_by(Task("t-1", ("notes",), "__NOTES__/", "Look", CHECKED))
    for wrong, message in [
        ({"login": {"path": "/in"}, "account": ["a", "b"]}, 'login: expected "inside" or'),
        ({"login": form}, "account: expected .user, password. for its login form"),
        ({"hosts": "http://t"}, "hosts: expected a list of http"),
        ({"color": 1}, "sites.notes: expected an object with some of url, login"),
    ]:
        with pytest.raises(ValueError, match=message):
            load_replicas(write(tmp_path, {"sites": {"notes": wrong | {"url": "http://h"}}}))


def test_replicas_are_dealt_so_that_each_process_has_each_site(tmp_path):
    names = ({"shopping", "reddit"}, {"shopping"}, {"reddit"})
    entries = [{"urls": {site: f"http://h{n}{site}" for site in s}} for n, s in enumerate(names)]
    replicas = load_replicas(write(tmp_path, *entries))
    hands = [set().union(*(r.sites for r in hand)) for hand in deal(replicas, 2)]
    assert hands == [{"shopping", "reddit"}] * 2
    with pytest.raises(ValueError, match="no way to deal .* shopping 2, reddit 1"):
        deal(replicas[:2], 2)


def test_only_what_was_changed_is_reset_and_the_command_is_told(arena, tmp_path):
    log = tmp_path / "log"
    script = "import os, sys; open(sys.argv[1], 'a').write(os.environ['CHANGED_SITES'] + ';')"

    async def scenario(arena, shops):
        async with arena.lease(CHANGES) as lease:
            lease.changed.add("shopping")
        async with arena.lease(CHANGES):
            return shops[0].resets

    command = [sys.executable, "-c", script, str(log)]
    with Shop() as other:
        sites = {"map": {"url": other.url, "health": "", "reset": {"url": other.url + "/reset"}}}
        arena(1, scenario, reset=command, sites=sites)
        assert log.read_text() == "shopping;shopping;" and other.resets == 1


def test_a_redirect_to_another_host_is_told_and_not_followed(arena, capsys):
    with Shop() as elsewhere:

        async def scenario(arena, shops):
            url = elsewhere.url + "/"
            shops[0].answer = lambda *_: (302, {"Location": url}, "")
            shops[0].server.answer = shops[0].answer
            with pytest.raises(EnvironmentFailure):
                async with arena.lease(READS):
                    pass
            return elsewhere.seen

        assert arena(1, scenario, patience=0.6, reset=None) == []
    assert "give it the address in sites.json as its base URL" in capsys.readouterr().err
