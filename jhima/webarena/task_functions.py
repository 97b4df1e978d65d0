"""The functions that task files name as `func:...`, and the bounded requests and waits that scoring stands on.

A call is parsed and looked up in a table; nothing is evaluated as Python. Names and meanings are those of WebArena and
WebArena-Lite-v2 (their spelling too), with three differences: in the latter the evaluator cannot reach the names, so the
13 tasks that use them never score; a site that fails here is an EnvironmentFailure, where upstream makes it an empty
string and so a reward of 0; and what is an object upstream, which no rule could read, is JSON text. No task can call
what upstream's evaluators call themselves: its LLM judges, and shopping_get_auth_token, whose token would stand in the
episode's report.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request

from playwright.async_api import Page

from jhima.browser.lease import Lease
from jhima.failures import EnvironmentFailure, fetch, within
from jhima.webarena.matching import OR

# ---- func:... ----


def parse_call(text: str) -> tuple[str, tuple[str, ...]]:
    """The helper's name and arguments in `func:name('literal', __page__)`.

    Raises ValueError for anything but one call of a known helper with string literals, and `__page__` exactly where
    the helper takes a page.

    >>> parse_call("func:gitlab_get_project_memeber_role(__page__, 'vinta')")
    ('gitlab_get_project_memeber_role', ('__page__', 'vinta'))
    """
    try:
        call = ast.parse(text.removeprefix("func:").strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("expected one function call after func:") from None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords):
        raise ValueError("expected one function call after func:")
    name = call.func.id
    if name not in HELPERS:
        raise ValueError(
            f"expected a function of jhima/webarena/task_functions.py, got {name[:80]!r}"
        )
    takes = list(inspect.signature(HELPERS[name]).parameters)[2:]  # after lease and seconds
    if len(call.args) != len(takes) or not all(
        isinstance(given, ast.Name) and given.id == "__page__"
        if parameter == "page"
        else isinstance(given, ast.Constant) and isinstance(given.value, str)
        for given, parameter in zip(call.args, takes)
    ):
        shown = ", ".join(
            "__page__" if parameter == "page" else f"'{parameter}'" for parameter in takes
        )
        raise ValueError(f"expected {name}({shown})")
    return name, tuple(
        given.id if isinstance(given, ast.Name) else given.value for given in call.args
    )


async def call_helper(text: str, lease: Lease, page: Page, last_url: str, seconds: float) -> str:
    """Runs `func:...`. `page` stands for __page__; `last_url`, where the agent ended, for '__last_url__'.

    Returns "" where the site or page has no such thing; raises EnvironmentFailure where it cannot tell.
    """
    name, arguments = parse_call(text)
    values: dict[str, Any] = {"__page__": page, "__last_url__": last_url}
    try:
        found = await HELPERS[name](
            lease, seconds, *(values.get(argument, argument) for argument in arguments)
        )
        return "" if found is None else str(found)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EnvironmentFailure(
            "site", f"{name}: a reply of another shape than Magento's: {error!r}"
        ) from None


# ---- shopping: Magento's REST API ----


async def shopping_get_latest_order_url(lease: Lease, seconds: float) -> str:
    """The customer's page of the shop's newest order.

    "Newest" is of the whole shop: an arena whose replicas are shared by rollouts may see a neighbour's order here.
    """
    query = urlencode(
        {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": 1,
        }
    )
    orders = (await _shop(lease, seconds, f"/rest/V1/orders?{query}"))["items"]
    return (
        f"{_shop_url(lease)}/sales/order/view/order_id/{int(orders[0]['entity_id'])}/"
        if orders
        else ""
    )


async def shopping_get_sku_latest_review_author(lease: Lease, seconds: float, sku: str) -> str:
    return (await _latest_review(lease, seconds, sku)).get("nickname", "")


async def shopping_get_sku_latest_review_rating(lease: Lease, seconds: float, sku: str) -> str:
    """In percent: four stars are "80"."""
    review = await _latest_review(lease, seconds, sku)
    return str(review["ratings"][0]["percent"]) if review else ""


async def shopping_get_sku_latest_review_text(lease: Lease, seconds: float, sku: str) -> str:
    return (await _latest_review(lease, seconds, sku)).get("detail", "")


async def shopping_get_sku_latest_review_title(lease: Lease, seconds: float, sku: str) -> str:
    return (await _latest_review(lease, seconds, sku)).get("title", "")


async def shopping_get_sku_product_page_url(lease: Lease, seconds: float, sku: str) -> str:
    product = await _shop(lease, seconds, f"/rest/V1/products/{quote(sku, safe='')}")
    keys = (
        [a["value"] for a in product["custom_attributes"] if a["attribute_code"] == "url_key"]
        if product
        else []
    )
    return f"{_shop_url(lease)}/{keys[0]}.html" if keys else ""


def _shop_url(lease: Lease) -> str:
    return lease.urls["shopping"].rstrip("/")


async def _latest_review(lease: Lease, seconds: float, sku: str) -> dict:
    """Magento lists reviews in the order they were written."""
    reviews = await _shop(lease, seconds, f"/rest/V1/products/{quote(sku, safe='')}/reviews")
    return reviews[-1] if reviews else {}


async def _shop(lease: Lease, seconds: float, path: str) -> Any:
    """The JSON at `path` of the shop, read as its administrator; None where there is no such thing."""
    base = _shop_url(lease)
    user, password = lease.accounts["shopping_admin"]
    login = json.dumps({"username": user, "password": password}).encode()
    token = await _rest(
        f"{base}/rest/default/V1/integration/admin/token", lease.headers, seconds, login
    )
    return await _rest(base + path, {**lease.headers, "Authorization": f"Bearer {token}"}, seconds)


async def _rest(
    url: str, headers: dict[str, str], seconds: float, body: bytes | None = None
) -> Any:
    """The JSON at `url`; None for 404."""
    request = Request(
        url, body, {**headers, "Content-Type": "application/json", "Accept": "application/json"}
    )
    status, reply = await fetch(request, seconds)
    if status == 404:
        return None
    if status >= 400:
        raise EnvironmentFailure(
            "login" if status in (401, 403) else "site", f"{url}: HTTP {status}"
        )
    try:
        return json.loads(reply)
    except (ValueError, RecursionError) as error:
        raise EnvironmentFailure("site", f"{url}: {error}") from None


# ---- shopping: an order's or a product's page ----

_ORDERED = """() => [...document.querySelectorAll('#my-orders-table tbody')].map(row => {
    const cell = name => row.querySelector('td.' + name);
    const text = name => cell(name)?.innerText.trim() ?? '';
    const labels = [...(cell('name')?.querySelectorAll('dt') ?? [])];
    return {
        name: cell('name')?.querySelector('.product-item-name')?.innerText.trim() ?? text('name'),
        options: Object.fromEntries(
            labels.map(dt => [dt.innerText.trim(), dt.nextElementSibling?.innerText.trim() ?? ''])),
        sku: text('sku'), price: text('price'), qty: text('qty').match(/\\d+/)?.[0] ?? '0', subtotal: text('subtotal'),
    };
})"""


async def _ordered(page: Page, seconds: float) -> list[dict]:
    return await within(seconds, page.evaluate(_ORDERED), "reading an order")


async def shopping_get_all_product_order(_lease: Lease, seconds: float, page: Page) -> str:
    """A JSON list of what was ordered."""
    return json.dumps(await _ordered(page, seconds), ensure_ascii=False)


async def shopping_get_order_product_name_list(_lease: Lease, seconds: float, page: Page) -> str:
    return OR.join(item["name"] for item in await _ordered(page, seconds))


async def shopping_get_order_product_quantity(
    _lease: Lease, seconds: float, page: Page, sku: str
) -> str:
    """How many were ordered of the first product that is one of `sku`; "0" where none was."""
    return next(
        (item["qty"] for item in await _ordered(page, seconds) if item["sku"] in sku.split(OR)), "0"
    )


async def shopping_get_order_product_option(
    _lease: Lease, seconds: float, page: Page, sku: str, option: str
) -> str:
    return next(
        (
            item["options"].get(option, "")
            for item in await _ordered(page, seconds)
            if item["sku"] == sku
        ),
        "",
    )


async def shopping_get_product_attributes(
    _lease: Lease, seconds: float, page: Page, attribute: str
) -> str:
    """The values of the details whose label holds one of `attribute`, joined with commas."""
    return await within(
        seconds,
        page.evaluate(
            """names =>
        [...document.querySelectorAll('#productDetails_detailBullets_sections1 tr')]
            .filter(row => names.some(name => row.cells[0].innerText.toLowerCase().includes(name)))
            .map(row => row.cells[1]?.innerText ?? '').join(', ')""",
            attribute.lower().split(OR.lower()),
        ),
        "reading a product's details",
    )


async def shopping_get_product_price(_lease: Lease, seconds: float, page: Page) -> str:
    """Without currency and thousands; "0" where no price is shown."""
    text = await _text(page, ".product-info-price .price-box .price", seconds)
    return (re.findall(r"\d+(?:\.\d+)?", text.replace(",", "")) or ["0"])[0]


async def shopping_get_num_reviews(_lease: Lease, seconds: float, page: Page) -> str:
    return (re.findall(r"\d+", await _text(page, "#tab-label-reviews-title", seconds)) or ["0"])[0]


async def shopping_get_rating_as_percentage(_lease: Lease, seconds: float, page: Page) -> str:
    title = await within(
        seconds,
        page.evaluate("() => document.querySelector('.rating-result')?.title ?? ''"),
        "reading a rating",
    )
    return (re.findall(r"\d+", title) or ["0"])[0]


async def get_query_text(_lease: Lease, seconds: float, page: Page, selector: str) -> str:
    return await _text(page, selector, seconds)


async def get_query_text_lowercase(_lease: Lease, seconds: float, page: Page, selector: str) -> str:
    return (await _text(page, selector, seconds)).lower()


async def _text(page: Page, selector: str, seconds: float) -> str:
    """What the first element that `selector` finds says; "" where it finds none, or is no selector."""
    return await within(
        seconds,
        page.evaluate(
            """selector => {
        try { return document.querySelector(selector)?.textContent ?? ''; } catch { return ''; }
    }""",
            selector,
        ),
        "reading a part of the page",
    )


# ---- reddit and gitlab ----


async def reddit_get_post_url(lease: Lease, seconds: float, url: str) -> str:
    """The post that `url` lies in (/f/FORUM/ID/...), whatever follows the id; any other URL as it is."""
    post = re.match(r"https?://[^/]+/f/[^/?#]+/\d+(?=[/?#]|$)", url)
    return f"{post[0]}/" if post else url


# A post's page nests its comments in one another: `tree` is the post with all of them below it, `newest` the newest
# comment of one user, `parent` what that answers, which is a comment or the post.
_COMMENTS = """name => {
    const said = (node, selector) => node.querySelector(selector)?.innerText.trim() ?? '';
    const entry = (node, content) => ({username: said(node, '.fg-inherit'), content: said(node, content),
        net_score: parseInt(said(node, '.vote__net-score')) || 0, time: node.querySelector('time')?.dateTime ?? ''});
    const main = document.querySelector('#main') ?? document.body, made = new Map();
    const tree = {...entry(main, '.submission__body'), children: []};
    let newest = null, parent = null, last = -1;
    for (const node of main.querySelectorAll('.comment')) {             // a comment comes before its answers
        const above = made.get(node.parentElement.closest('.comment')) ?? tree;
        const own = entry(node, '.comment__content'), time = Date.parse(own.time) || 0;
        made.set(node, {...own, children: []});
        above.children.push(made.get(node));
        if (own.username === name && time > last) {
            const {children, ...rest} = above;
            [newest, parent, last] = [own, rest, time];
        }
    }
    return {tree: JSON.stringify(tree), newest, parent};        // as text: it may nest deeper than Python likes
}"""


async def _comments(page: Page, seconds: float, username: str) -> dict:
    return await within(seconds, page.evaluate(_COMMENTS, username), "reading comments")


async def reddit_get_post_comment_tree(_lease: Lease, seconds: float, page: Page) -> str:
    """The post as JSON: username, content, net_score, time and, in `children`, its comments with theirs."""
    return (await _comments(page, seconds, ""))["tree"]


async def reddit_get_latest_comment_obj_by_username(
    _lease: Lease, seconds: float, page: Page, username: str
) -> str:
    """A user's newest comment as JSON: username, content, net_score and time."""
    newest = (await _comments(page, seconds, username))["newest"]
    return json.dumps(newest, ensure_ascii=False) if newest else ""


async def reddit_get_latest_comment_content_by_username(
    _lease: Lease, seconds: float, page: Page, username: str
) -> str:
    return ((await _comments(page, seconds, username))["newest"] or {}).get("content", "")


async def reddit_get_parent_comment_obj_of_latest_comment_by_username(
    _lease: Lease, seconds: float, page: Page, username: str
) -> str:
    """What a user's newest comment answers, a comment or the post, as JSON."""
    parent = (await _comments(page, seconds, username))["parent"]
    return json.dumps(parent, ensure_ascii=False) if parent else ""


async def reddit_get_parent_comment_username_of_latest_comment_by_username(
    _lease: Lease, seconds: float, page: Page, username: str
) -> str:
    return ((await _comments(page, seconds, username))["parent"] or {}).get("username", "")


async def gitlab_get_project_memeber_role(
    lease: Lease, seconds: float, page: Page, account_name: str
) -> str:
    """The role that a project's member page shows beside @account_name.

    Upstream pairs the n-th account with the n-th role of the page; here both are read from one row.
    """
    return await within(
        seconds,
        page.evaluate(
            """name => {
        for (const cell of document.querySelectorAll('[data-label="Account"]'))
            if (cell.innerText.split(/\\s+/).includes('@' + name))
                return cell.parentElement.querySelector('.col-max-role span')?.innerText ?? '';
        return '';
    }""",
            account_name,
        ),
        "reading a member's role",
    )


HELPERS = {
    helper.__name__: helper
    for helper in (
        shopping_get_latest_order_url,
        shopping_get_sku_latest_review_author,
        shopping_get_sku_latest_review_rating,
        shopping_get_sku_latest_review_text,
        shopping_get_sku_latest_review_title,
        shopping_get_sku_product_page_url,
        shopping_get_all_product_order,
        shopping_get_order_product_name_list,
        shopping_get_order_product_quantity,
        shopping_get_order_product_option,
        shopping_get_product_attributes,
        shopping_get_product_price,
        shopping_get_num_reviews,
        shopping_get_rating_as_percentage,
        get_query_text,
        get_query_text_lowercase,
        reddit_get_post_url,
        reddit_get_post_comment_tree,
        reddit_get_latest_comment_obj_by_username,
        reddit_get_latest_comment_content_by_username,
        reddit_get_parent_comment_obj_of_latest_comment_by_username,
        reddit_get_parent_comment_username_of_latest_comment_by_username,
        gitlab_get_project_memeber_role,
    )
}
