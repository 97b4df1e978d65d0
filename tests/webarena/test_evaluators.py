"""Evaluators on answers and on real pages in Chromium."""

import time
from types import SimpleNamespace

import pytest
from stubs import Session, Site, html, score_answer, string

from jhima.episodes import Task
from jhima.failures import EnvironmentFailure
from jhima.webarena.evaluators import score


@pytest.mark.parametrize(
    "answers, answer, reward",
    [
        ({"exact_match": "Yes"}, " yes. ", 1),
        ({"exact_match": "Yes"}, "", 0),
        ({"exact_match": "Yes |OR| OK"}, "ok", 1),
        ({"must_include": ["15232 |OR| 15208"]}, "zip 15208", 1),
        ({"must_include": ["a", "b"]}, "a", 0),
        ({"must_exclude": ["Emerald"]}, "Teofila", 1),
        ({"must_exclude": ["Emerald"]}, "Teofila, Emerald", 0),
        ({"must_exclude": ["Emerald"]}, "", 0),
        ({"must_include": ["Teofila"], "must_exclude": ["Emerald"]}, "Teofila", 1),
        ({"required_values": [">= 3", "< 5"]}, "4", 1),
        ({"required_values": [">= 3", "< 5"]}, "5", 0),
        ({"fuzzy_match": ["a", "b"]}, "A, b.", 1),
        ({"fuzzy_match": "N/A"}, "n/a", 1),
        ({"fuzzy_match": ["a"]}, " ", 0),
    ],
)
def test_string_match_without_a_judge(answers, answer, reward):
    verdict = score_answer(string(**answers), answer)
    assert verdict.reward == reward == int(all(check.passed for check in verdict.checks))


def test_each_rule_is_recorded_with_its_reason():
    verdict = score_answer(
        string(must_include=["red", "blue"], must_exclude=["green"]), "Red, green"
    )
    assert [(check.what, check.passed) for check in verdict.checks] == [
        ("answer: must_include red", True),
        ("answer: must_include blue", False),
        ("answer: must_exclude green", False),
    ]
    assert {check.reason for check in verdict.checks} == {"found 'Red, green'"}


PAGE = """<title>t</title><h1>Fish &amp; <b>Chips</b></h1><input name=qty value=1><input name=empty>
<div class="status">\n Can<i>celed</i> </div>
<p hidden data-state="secret">hidden</p><script>document.querySelector('input').value = \
'5'</script>"""


STATUS = "document.querySelector('.status').outerText"
# locator, contents, whether each rule holds
ON_PAGE = [
    (
        "document.querySelector('[name=\"qty\"').value",
        {"exact_match": "5"},
        [True],
    ),  # unclosed, as upstream's
    ("document.querySelector('input').value;", {"required_values": ["> 4 |OR| < 0"]}, [True]),
    (STATUS, {"exact_match": "canceled"}, [True]),
    (STATUS, {"must_exclude": ["pending", "cancel"]}, [True, False]),
    (
        "[...document.querySelectorAll('h1, i')].map(e => e.outerText)",
        {"must_include": ["chips", "cele"]},
        [True] * 2,
    ),
    (
        "document.querySelector('.none').outerText",
        {"must_exclude": ["x"]},
        [False],
    ),  # absent: no rule holds
    ("document.querySelector('.none')", {"exact_match": "null"}, [False]),
    ("document.querySelector('input').checked", {"exact_match": "false"}, [True]),
    (
        "document.querySelector('[name=empty]').value",
        {"exact_match": "", "must_include": ["a"]},
        [True, False],
    ),
    # the whole page, as seen and as HTML
    (
        "",
        {"must_include": ["Fish & Chips", "Canceled", 'data-state="secret"', "5 pounds"]},
        [True, True, True, False],
    ),
    ("", {"must_exclude": ["Fish & Chips", "meat"]}, [False, True]),
]


@pytest.mark.parametrize("url", ["last", "__SHOPPING__/item"])
def test_program_html(world, url):
    world.pages["/item"] = PAGE
    verdict = world.score(
        html(*((url, locator, contents) for locator, contents, _ in ON_PAGE)), end="/item"
    )
    assert [check.passed for check in verdict.checks] == [
        hold for *_, holds in ON_PAGE for hold in holds
    ], verdict


def test_the_agents_page_is_read_before_others_are_opened(world):
    """A page that changes once it is visited again shows which came first."""
    visits = []
    world.pages["/cart"] = lambda _body: visits.append(1) or f"<p>visit {len(visits)}</p>"
    read = "document.querySelector('p').innerText"
    entry = html(
        ("__SHOPPING__/cart", read, {"exact_match": "visit 2"}),
        ("__SHOPPING__/cart", read, {"must_include": ["2"]}),
        ("last", read, {"exact_match": "visit 1"}),
    )
    entry |= {"eval_types": ["program_html", "url_match"], "reference_url": "__SHOPPING__/cart"}
    verdict = world.score(entry, end="/cart")
    assert verdict.reward == 1, verdict
    assert [check.kind for check in verdict.checks] == ["url_match"] + ["program_html"] * 3
    assert len(visits) == 2  # neighbours with one URL share a visit


def test_prep_actions_open_what_a_locator_looks_into(world):
    world.pages["/rule"] = (
        """<button onclick="this.nextSibling.innerHTML = '<b>20</b>'">more</button><p></p>"""
    )
    target = {
        "url": "last",
        "locator": "document.querySelector('b').innerText",
        "required_contents": {"exact_match": "20"},
    }
    closed = {"eval_types": ["program_html"], "program_html": [target]}
    opened = {
        "eval_types": ["program_html"],
        "program_html": [
            target
            | {
                "prep_actions": [
                    "document.querySelector('.none').click()",
                    "document.querySelector('button').click()",
                ]
            }
        ],
    }
    assert (
        world.score(closed, end="/rule").reward == 0
        and world.score(opened, end="/rule").reward == 1
    )


def test_the_published_rules_are_upstreams(world):
    include = string(must_include=["1"])
    assert (
        score_answer(include, "11").reward == 0
        and score_answer(include, "11", published=True).reward == 1
    )
    exclude = string(must_exclude=["Emerald"])
    assert score_answer(exclude, "Teofila", published=True).reward == 1  # a bug is no rule


def test_a_site_that_hiccups_is_asked_once_more(world):
    replies = iter([(503, "sorry"), "<p>a mug</p>"])
    world.pages["/item"] = lambda _body: next(replies)
    assert world.score(html(("__SHOPPING__/item", "", {"must_include": ["mug"]}))).reward == 1


def test_late_scripts_are_waited_for(world):
    world.pages |= {
        "/slow": "<p>..</p><script>fetch('/data').then(r => r.text()).then(t => "
        "setTimeout(() => document.querySelector('p').innerText = t, 50))</script>",
        "/data": lambda _body: time.sleep(0.3) or "loaded",
    }
    entry = html(
        ("__SHOPPING__/slow", "document.querySelector('p').innerText", {"exact_match": "loaded"})
    )
    assert world.score(entry).reward == 1


def test_a_broken_site_is_no_zero(world):
    for status in (500, 503, 429):
        world.pages["/broken"] = (status, "sorry")
        with pytest.raises(EnvironmentFailure, match=f"site: .*HTTP {status}"):
            world.score(html(("__SHOPPING__/broken", "", {"must_include": ["x"]})))
    with Site() as gone:
        pass
    with pytest.raises(EnvironmentFailure, match="site: .*ERR_CONNECTION_REFUSED"):
        world.score(html((gone.url, "", {"must_include": ["x"]})))
    assert (
        world.score(html(("__SHOPPING__/none", "", {"must_include": ["x"]}))).reward == 0
    )  # 404: not there


def test_a_page_that_never_loads_or_never_answers_is_no_zero(world):
    world.pages |= {
        "/hang": lambda _body: time.sleep(5) or "late",
        "/spin": "<button>x</button><script>setTimeout(() => { for (;;); }, 100)</script>",
    }
    for path, doing in [("/hang", "opening"), ("/spin", "opening|settling|reading")]:
        began = time.monotonic()
        with pytest.raises(EnvironmentFailure, match=f"deadline: ({doing})"):
            world.score(html((f"__SHOPPING__{path}", "", {"must_include": ["x"]})), operation=2)
        assert time.monotonic() - began < 20


def test_a_killed_page_is_no_zero(loop, browser):
    async def closed():
        context = await browser.new_context()
        session = Session(context, await context.new_page())
        await context.close()
        await score(
            Task("t-1", ("map",), "__MAP__", "x", html(("last", "", {"must_include": ["x"]}))),
            SimpleNamespace(urls={}),
            session,
            "",
            None,
        )

    with pytest.raises(EnvironmentFailure, match="browser: .*closed"):
        loop.run_until_complete(closed())
