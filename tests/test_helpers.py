"""Functions that task files name as `func:...`, against stubs of the REST API and the pages that they read."""
import asyncio
import json
import time

import pytest
from stubs import Site, html, lease_of

from jhima.failures import EnvironmentFailure
from jhima.helpers import call_helper

ORDERS = ("/rest/V1/orders?searchCriteria[sortOrders][0][field]=created_at"
          "&searchCriteria[sortOrders][0][direction]=DESC&searchCriteria[pageSize]=1")
TOKEN = "/rest/default/V1/integration/admin/token"
LATEST_ORDER = html(("func:shopping_get_latest_order_url()", "document.querySelector('.item').innerText",
                     {"exact_match": "B07"}))


def test_shop_helpers_read_the_episodes_own_world(world):
    account = {"username": "admin", "password": "secret"}
    world.pages |= {
        TOKEN: lambda body: (200, '"tok"') if json.loads(body) == account else (401, "no"),
        ORDERS: (200, {"items": [{"increment_id": "000000007", "entity_id": 191}]}),
        "/sales/order/view/order_id/191/": "<p class=item>B07</p>",
        "/rest/V1/products/B 07": (200, {"custom_attributes": [{"attribute_code": "url_key", "value": "mug"}]}),
        "/mug.html": "<p>a mug</p>",
        "/rest/V1/products/B 07/reviews": (200, [{"nickname": "old"}, {
            "nickname": "Emma", "title": "Nice", "detail": "It holds tea", "ratings": [{"percent": 80}]}])}
    assert world.score(LATEST_ORDER).reward == 1
    asked = next(headers for path, headers, _ in world.seen if path.startswith("/rest/V1/orders"))
    assert asked["X-World"] == "w1" and asked["Authorization"] == "Bearer tok"

    review = "func:shopping_get_sku_latest_review_"
    verdict = world.score(html(
        ("last", review + "author('B 07')", {"exact_match": "Emma"}),
        ("last", review + "title('B 07')", {"exact_match": "Nice"}),
        ("last", review + "text('B 07')", {"must_include": ["tea"]}),
        ("last", review + "rating('B 07')", {"exact_match": "80"}),
        ("func:shopping_get_sku_product_page_url('B 07')", "", {"must_include": ["mug"]}),
        ("last", review + "author('none')", {"must_exclude": ["x"]}),                  # last targets come first
        ("func:shopping_get_sku_product_page_url('none')", "", {"must_include": ["x"]})))
    assert [check.passed for check in verdict.checks] == [True] * 4 + [False, True, False]
    world.pages[ORDERS] = (200, {"items": []})
    assert world.score(LATEST_ORDER).checks[0].reason == "no page to open: ''"


@pytest.mark.parametrize("token, orders, kind", [
    ((401, "no"), "", "login"), ((500, "no"), "", "site"), ('"tok"', (503, "no"), "site"), ('"tok"', "<html>", "site"),
    ('"tok"', (200, {}), "site"), ('"tok"', (200, {"items": [{"entity_id": None}]}), "site"),
    ('"tok"', lambda _body: time.sleep(4) or "{}", "deadline")])
def test_a_broken_rest_api_is_no_zero(token, orders, kind):
    with Site({TOKEN: token, ORDERS: orders}) as site, pytest.raises(EnvironmentFailure) as failure:
        asyncio.run(call_helper("func:shopping_get_latest_order_url()", lease_of(site), None, "", seconds=2))
    assert failure.value.kind == kind


def test_reddit_post_of_the_last_url(world):
    world.pages |= {"/f/nyc/71/is-a-car/-/comment/3?sort=new": "<p>comment</p>", "/f/nyc/71/": "<p>the post</p>",
                    "/f/nyc": "<p>the forum</p>"}
    entry = html(("func:reddit_get_post_url('__last_url__')", "document.querySelector('p').innerText",
                  {"exact_match": "the post"}))
    assert world.score(entry, end="/f/nyc/71/is-a-car/-/comment/3?sort=new").reward == 1
    assert world.score(entry, end="/f/nyc").checks[0].reason == "found 'the forum'"


def test_gitlab_role_is_of_the_members_own_row(world):
    rows = [("by", "<span>Owner</span><span>x"), ("vinta2", "<span>Guest</span>"), ("vinta", "<b><span>Reporter")]
    world.pages["/p/-/project_members"] = "<table>" + "".join(
        f"<tr><td data-label=Account>A person <span>@{name}</span></td><td class=col-max-role>{role}</td></tr>"
        for name, role in rows)
    members = [("vinta", "Reporter", True), ("by", "Owner", True), ("vinta", "Guest", False), ("vint", "Guest", False)]
    helper = "func:gitlab_get_project_memeber_role(__page__, '{}')"
    verdict = world.score(html(*(("__GITLAB__/p/-/project_members", helper.format(name), {"must_include": [role]})
                                 for name, role, _ in members)))
    assert [check.passed for check in verdict.checks] == [holds for *_, holds in members]


def test_helpers_that_read_an_order(world):
    world.pages["/order"] = """<table id=my-orders-table><thead><tr><td class="col sku">SKU</thead>
        <tbody><tr><td class="col name"><strong class="product name product-item-name">Mug</strong>
            <dl><dt>Size<dd> Large<dt>Color<dd>Red</dl><td class="col sku">B07<td class="col qty">Ordered<b>12</b></tbody>
        <tbody><tr><td class="col name">Plate<td class="col sku">B08<td class="col qty">Ordered 1</tbody></table>"""
    order = "func:shopping_get_order_product_"
    verdict = world.score(html(
        ("last", order + "name_list(__page__)", {"exact_match": "mug |or| plate"}),
        ("last", order + "quantity(__page__, 'none |OR| B07')", {"required_values": ["== 12"]}),
        ("last", order + "quantity(__page__, 'none')", {"exact_match": "0"}),
        ("last", order + "option(__page__, 'B07', 'Color')", {"exact_match": "Red"}),
        ("last", order + "option(__page__, 'B08', 'Color')", {"must_exclude": ["x"]})), end="/order")
    assert [check.passed for check in verdict.checks] == [True] * 4 + [False], verdict
    assert verdict.checks[0].reason == "found 'Mug |OR| Plate'"


def test_helpers_that_read_a_product(world):
    world.pages["/mug.html"] = """<div class=product-info-price><div class=price-box><span class=price>$1,299.50</span></div>
        </div><a id=tab-label-reviews-title>Reviews <span>12</span></a><div class=rating-result title="80%"></div>
        <table id=productDetails_detailBullets_sections1><tr><td>Brand Name<td>Acme<tr><td>Weight<td>1 lb</table>"""
    product = "func:shopping_get_"
    verdict = world.score(html(
        ("last", product + "product_price(__page__)", {"required_values": ["== 1299.5"]}),
        ("last", product + "num_reviews(__page__)", {"exact_match": "12"}),
        ("last", product + "rating_as_percentage(__page__)", {"exact_match": "80"}),
        ("last", product + "product_attributes(__page__, 'Manufacturer |OR| brand name')", {"exact_match": "Acme"}),
        ("last", "func:get_query_text(__page__, 'tr:nth-child(2)')", {"must_include": ["Weight"]}),
        ("last", "func:get_query_text_lowercase(__page__, 'tr')", {"must_include": ["acme"]}),
        ("last", "func:get_query_text(__page__, '((')", {"must_exclude": ["x"]})), end="/mug.html")
    assert [check.passed for check in verdict.checks] == [True] * 6 + [False], verdict


def test_helpers_that_read_comments(world):
    def comment(name: str, time_: str, content: str, below: str = "") -> str:
        return (f"<article class=comment><header><a class=fg-inherit>{name}</a><time datetime={time_}></time></header>"
                f"<div class=comment__content>{content}</div>{below}</article>")

    world.pages["/f/a/1/"] = ("<div id=main><a class=fg-inherit>author</a>" + comment(
        "bob", "2023-05-01T00:00:00", "first", comment("me", "2023-07-01T00:00:00", "newest", comment(
            "me", "2023-06-01T00:00:00", "older"))) + comment("eve", "2023-08-01T00:00:00", "other") + "</div>")
    newest = "func:reddit_get_latest_comment_content_by_username(__page__, '{}')"
    parent = "func:reddit_get_parent_comment_username_of_latest_comment_by_username(__page__, '{}')"
    verdict = world.score(html(*(("last", helper.format(name), {"exact_match": text}) for helper, name, text in [
        (newest, "me", "newest"), (parent, "me", "bob"), (parent, "eve", "author"), (newest, "none", "x")])), end="/f/a/1/")
    assert [check.passed for check in verdict.checks] == [True, True, True, False], verdict
