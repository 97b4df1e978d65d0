"""Functions that task files name as `func:...`, against stubs of the REST API and the pages that
they read.
"""

import asyncio
import json
import time

import pytest
from stubs import Site, html, lease_of

from jhima.failures import EnvironmentFailure
from jhima.webarena.task_functions import HELPERS, call_helper, parse_call

ORDERS = (
    "/rest/V1/orders?searchCriteria[sortOrders][0][field]=created_at"
    "&searchCriteria[sortOrders][0][direction]=DESC&searchCriteria[pageSize]=1"
)
TOKEN = "/rest/default/V1/integration/admin/token"
LATEST_ORDER = html(
    (
        "func:shopping_get_latest_order_url()",
        "document.querySelector('.item').innerText",
        {"exact_match": "B07"},
    )
)


def test_shop_helpers_read_the_episodes_own_world(world):
    account = {"username": "admin", "password": "secret"}
    world.pages |= {
        TOKEN: lambda body: (200, '"tok"') if json.loads(body) == account else (401, "no"),
        ORDERS: (200, {"items": [{"increment_id": "000000007", "entity_id": 191}]}),
        "/sales/order/view/order_id/191/": "<p class=item>B07</p>",
        "/rest/V1/products/B 07": (
            200,
            {"custom_attributes": [{"attribute_code": "url_key", "value": "mug"}]},
        ),
        "/mug.html": "<p>a mug</p>",
        "/rest/V1/products/B 07/reviews": (
            200,
            [
                {"nickname": "old"},
                {
                    "nickname": "Emma",
                    "title": "Nice",
                    "detail": "It holds tea",
                    "ratings": [{"percent": 80}],
                },
            ],
        ),
    }
    assert world.score(LATEST_ORDER).reward == 1
    asked = next(headers for path, headers, _ in world.seen if path.startswith("/rest/V1/orders"))
    assert asked["X-World"] == "w1" and asked["Authorization"] == "Bearer tok"

    review = "func:shopping_get_sku_latest_review_"
    verdict = world.score(
        html(
            ("last", review + "author('B 07')", {"exact_match": "Emma"}),
            ("last", review + "title('B 07')", {"exact_match": "Nice"}),
            ("last", review + "text('B 07')", {"must_include": ["tea"]}),
            ("last", review + "rating('B 07')", {"exact_match": "80"}),
            ("func:shopping_get_sku_product_page_url('B 07')", "", {"must_include": ["mug"]}),
            ("last", review + "author('none')", {"must_exclude": ["x"]}),  # last targets come first
            ("func:shopping_get_sku_product_page_url('none')", "", {"must_include": ["x"]}),
        )
    )
    assert [check.passed for check in verdict.checks] == [True] * 4 + [False, True, False]
    world.pages[ORDERS] = (200, {"items": []})
    assert world.score(LATEST_ORDER).checks[0].reason == "no page to open: ''"


@pytest.mark.parametrize(
    "token, orders, kind",
    [
        ((401, "no"), "", "login"),
        ((500, "no"), "", "site"),
        ('"tok"', (503, "no"), "site"),
        ('"tok"', "<html>", "site"),
        ('"tok"', (200, {}), "site"),
        ('"tok"', (200, {"items": [{"entity_id": None}]}), "site"),
        ('"tok"', lambda _body: time.sleep(4) or "{}", "deadline"),
    ],
)
def test_a_broken_rest_api_is_no_zero(token, orders, kind):
    with Site({TOKEN: token, ORDERS: orders}) as site, pytest.raises(EnvironmentFailure) as failure:
        asyncio.run(
            call_helper("func:shopping_get_latest_order_url()", lease_of(site), None, "", seconds=2)
        )
    assert failure.value.kind == kind


def test_reddit_post_of_the_last_url(world):
    world.pages |= {
        "/f/nyc/71/is-a-car/-/comment/3?sort=new": "<p>comment</p>",
        "/f/nyc/71/": "<p>the post</p>",
        "/f/nyc": "<p>the forum</p>",
    }
    entry = html(
        (
            "func:reddit_get_post_url('__last_url__')",
            "document.querySelector('p').innerText",
            {"exact_match": "the post"},
        )
    )
    assert world.score(entry, end="/f/nyc/71/is-a-car/-/comment/3?sort=new").reward == 1
    assert world.score(entry, end="/f/nyc").checks[0].reason == "found 'the forum'"


def test_gitlab_role_is_of_the_members_own_row(world):
    rows = [
        ("by", "<span>Owner</span><span>x"),
        ("vinta2", "<span>Guest</span>"),
        ("vinta", "<b><span>Reporter"),
    ]
    world.pages["/p/-/project_members"] = "<table>" + "".join(
        f"<tr><td data-label=Account>A person <span>@{name}</span></td><td class=col-max-role>"
        f"{role}</td></tr>"
        for name, role in rows
    )
    members = [
        ("vinta", "Reporter", True),
        ("by", "Owner", True),
        ("vinta", "Guest", False),
        ("vint", "Guest", False),
    ]
    helper = "func:gitlab_get_project_memeber_role(__page__, '{}')"
    verdict = world.score(
        html(
            *(
                ("__GITLAB__/p/-/project_members", helper.format(name), {"must_include": [role]})
                for name, role, _ in members
            )
        )
    )
    assert [check.passed for check in verdict.checks] == [holds for *_, holds in members]


def test_helpers_that_read_an_order(world):
    world.pages["/order"] = """<table id=my-orders-table><thead><tr><td class="col sku">SKU</thead>
        <tbody><tr><td class="col name"><strong class="product name product-item-name">Mug</strong>
            <dl><dt>Size<dd> Large<dt>Color<dd>Red</dl><td class="col sku">B07<td class="col \
price">$4
            <td class="col qty">Ordered<b>12</b><td class="col subtotal">$48</tbody>
        <tbody><tr><td class="col name">Plate<td class="col sku">B08<td class="col qty">Ordered \
1</tbody></table>"""
    order = "func:shopping_get_order_product_"
    verdict = world.score(
        html(
            ("last", order + "name_list(__page__)", {"exact_match": "mug |or| plate"}),
            ("last", order + "quantity(__page__, 'none |OR| B07')", {"required_values": ["== 12"]}),
            ("last", order + "quantity(__page__, 'none')", {"exact_match": "0"}),
            ("last", order + "option(__page__, 'B07', 'Color')", {"exact_match": "Red"}),
            ("last", order + "option(__page__, 'B08', 'Color')", {"must_exclude": ["x"]}),
            (
                "last",
                "func:shopping_get_all_product_order(__page__)",
                {
                    "exact_match": json.dumps(
                        [
                            {
                                "name": "Mug",
                                "options": {"Size": "Large", "Color": "Red"},
                                "sku": "B07",
                                "price": "$4",
                                "qty": "12",
                                "subtotal": "$48",
                            },
                            {
                                "name": "Plate",
                                "options": {},
                                "sku": "B08",
                                "price": "",
                                "qty": "1",
                                "subtotal": "",
                            },
                        ]
                    )
                },
            ),
        ),
        end="/order",
    )
    assert [check.passed for check in verdict.checks] == [True] * 4 + [False, True], verdict
    assert verdict.checks[0].reason == "found 'Mug |OR| Plate'"


def test_helpers_that_read_a_product(world):
    world.pages[
        "/mug.html"
    ] = """<div class=product-info-price><div class=price-box><span class=price>$1,299.50</span>\
</div>
        </div><a id=tab-label-reviews-title>Reviews <span>12</span></a><div class=rating-result \
title="80%"></div>
        <table id=productDetails_detailBullets_sections1><tr><td>Brand Name<td>Acme<tr><td>\
Weight<td>1 lb</table>"""
    product = "func:shopping_get_"
    verdict = world.score(
        html(
            ("last", product + "product_price(__page__)", {"required_values": ["== 1299.5"]}),
            ("last", product + "num_reviews(__page__)", {"exact_match": "12"}),
            ("last", product + "rating_as_percentage(__page__)", {"exact_match": "80"}),
            (
                "last",
                product + "product_attributes(__page__, 'Manufacturer |OR| brand name')",
                {"exact_match": "Acme"},
            ),
            (
                "last",
                "func:get_query_text(__page__, 'tr:nth-child(2)')",
                {"must_include": ["Weight"]},
            ),
            ("last", "func:get_query_text_lowercase(__page__, 'tr')", {"must_include": ["acme"]}),
            ("last", "func:get_query_text(__page__, '((')", {"must_exclude": ["x"]}),
        ),
        end="/mug.html",
    )
    assert [check.passed for check in verdict.checks] == [True] * 6 + [False], verdict


def test_helpers_that_read_comments(world):
    def comment(name: str, time_: str, content: str, below: str = "") -> str:
        return (
            f"<article class=comment><header><a class=fg-inherit>{name}</a><time "
            f"datetime={time_}></time></header>"
            f"<div class=comment__content>{content}</div><span class=vote__net-score>3</span>"
            f"{below}</article>"
        )

    world.pages["/f/a/1/"] = (
        "<div id=main><a class=fg-inherit>author</a><span class=vote__net-score>-2</span>"
        + comment(
            "bob",
            "2023-05-01T00:00:00",
            "first",
            comment(
                "me", "2023-07-01T00:00:00", "newest", comment("me", "2023-06-01T00:00:00", "older")
            ),
        )
        + comment("eve", "2023-08-01T00:00:00", "other")
        + "</div>"
    )
    newest, parent = "func:reddit_get_latest_comment_", "func:reddit_get_parent_comment_"
    of_newest = "_of_latest_comment_by_username(__page__, '{}')"
    verdict = world.score(
        html(
            *(
                ("last", helper.format(name), {"exact_match": text})
                for helper, name, text in [
                    (newest + "content_by_username(__page__, '{}')", "me", "newest"),
                    (parent + "username" + of_newest, "me", "bob"),
                    (parent + "username" + of_newest, "eve", "author"),
                    (
                        newest + "obj_by_username(__page__, '{}')",
                        "me",
                        '{"username": "me", "content": "newest", "net_score": 3, "time": '
                        '"2023-07-01T00:00:00"}',
                    ),
                    (
                        parent + "obj" + of_newest,
                        "eve",
                        '{"username": "author", "content": "", "net_score": -2, "time": '
                        '"2023-05-01T00:00:00"}',
                    ),
                    (newest + "content_by_username(__page__, '{}')", "none", "x"),
                    (newest + "obj_by_username(__page__, '{}')", "none", "{}"),
                    (parent + "obj" + of_newest, "none", "{}"),
                ]
            )
        ),
        end="/f/a/1/",
    )
    assert [check.passed for check in verdict.checks] == [True] * 5 + [False] * 3, verdict


def test_a_posts_comments_are_a_tree_however_deep(world, loop, browser):
    def nested(depth: int) -> str:
        return (
            "<div class=comment><a class=fg-inherit>u</a>"
            + (nested(depth - 1) if depth else "")
            + "</div>"
        )

    async def read() -> list[str]:
        page = await browser.new_page()
        try:
            found = []
            for depths in ((2, 0), (450,)):
                world.pages["/f/a/1/"] = (
                    "<div id=main><a class=fg-inherit>author</a>"
                    + "".join(map(nested, depths))
                    + "</div>"
                )
                await page.goto(world.url + "/f/a/1/")
                found.append(
                    await call_helper(
                        "func:reddit_get_post_comment_tree(__page__)",
                        lease_of(world),
                        page,
                        "",
                        seconds=8,
                    )
                )
            return found
        finally:
            await page.close()

    small, deep = loop.run_until_complete(read())

    def shape(entry: dict) -> list:
        assert entry.keys() == {"username", "content", "net_score", "time", "children"}
        return [shape(child) for child in entry["children"]]

    assert json.loads(small)["username"] == "author" and shape(json.loads(small)) == [[[[]]], []]
    assert deep.count('"username":"u"') == 451


# What WebArena's and WebArena-Lite-v2's helper_functions.py define for tasks to name.
UPSTREAM = """shopping_get_latest_order_url shopping_get_sku_latest_review_author \
shopping_get_sku_latest_review_rating
    shopping_get_sku_latest_review_text shopping_get_sku_latest_review_title \
shopping_get_sku_product_page_url
    shopping_get_all_product_order shopping_get_order_product_name_list \
shopping_get_order_product_quantity
    shopping_get_order_product_option shopping_get_product_attributes shopping_get_product_price
    shopping_get_num_reviews shopping_get_rating_as_percentage get_query_text \
get_query_text_lowercase
    reddit_get_post_url reddit_get_post_comment_tree reddit_get_latest_comment_obj_by_username
    reddit_get_latest_comment_content_by_username \
reddit_get_parent_comment_obj_of_latest_comment_by_username
    reddit_get_parent_comment_username_of_latest_comment_by_username \
gitlab_get_project_memeber_role""".split()


def test_every_helper_of_upstream_can_be_named_but_none_that_gives_a_token():
    assert set(HELPERS) == set(UPSTREAM)
    with pytest.raises(ValueError, match="expected a function of jhima/webarena/task_functions.py"):
        parse_call("func:shopping_get_auth_token()")
