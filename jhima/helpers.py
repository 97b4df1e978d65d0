"""What the evaluators stand on: comparing texts and URLs, and the functions that task files name as `func:...`.

The functions are parsed and looked up in a table; nothing is evaluated as Python. Names and meanings are
WebArena-Lite-v2's (its spelling too), with two differences: there the names cannot be reached by the evaluator, so
the 13 tasks that use them never score; and a site that fails here is an EnvironmentFailure, where upstream makes it
an empty string and so a reward of 0.
"""
from __future__ import annotations

import ast
import asyncio
import html
import inspect
import json
import posixpath
import re
import time
import unicodedata
from collections.abc import Awaitable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page
from playwright.async_api import TimeoutError as PlaywrightTimeout

from .failures import EnvironmentFailure

if TYPE_CHECKING:
    from .arena import Lease

T = TypeVar("T")
OR = " |OR| "                                # between alternatives, in URLs and in contents
MAX_REPLY = 4_000_000                        # bytes of one REST reply; an order or a product's reviews are a few kB
_OPENER = build_opener(ProxyHandler({}))     # the sites are reached as the browser reaches them, past any proxy
_INEQUALITY = re.compile(r"(<=|>=|==|<|>) *(-?\d+(?:\.\d+)?)")


async def within(seconds: float, work: Awaitable[T], doing: str) -> T:
    """Awaits browser `work` for at most `seconds`; whatever the browser raises becomes an EnvironmentFailure."""
    try:
        return await asyncio.wait_for(work, seconds)
    except (TimeoutError, PlaywrightTimeout):
        raise EnvironmentFailure("deadline", f"{doing}: not done in {seconds:g} s") from None
    except PlaywrightError as error:
        kind = "site" if "net::" in error.message else "browser"     # Chromium's own prefix for network errors
        raise EnvironmentFailure(kind, f"{doing}: {error.message.splitlines()[0][:200]}") from None


# ---- comparing texts and URLs ----

def clean(text: str) -> str:
    """Strip, unquote one pair, lower-case, collapse whitespace: what no person would call a difference.

    Composed and decomposed accents are made the same too.

    >>> clean(' "The\\n Red  Mug" ')
    'the red mug'
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1].strip()
    return text.lower()


# A number with its thousands, that is no part of a word, a version or a longer number. `(?>...)` never gives back
# digits: "12,345kg" holds no 12.
_NUMBER = re.compile(r"(?<!\w)(?<!\d\.)-?(?>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?!\w)(?!\.\d)")


def same_answer(text: str, reference: str) -> bool:
    """exact_match on an answer: one final full stop is punctuation, not content."""
    return clean(text).removesuffix(".") == clean(reference).removesuffix(".")


def same_text(text: str, reference: str) -> bool:
    """exact_match on a page, HTML-unescaped on both sides."""
    return clean(html.unescape(text)) == clean(html.unescape(reference))


def has_words(text: str, item: str) -> bool:
    """must_include on an answer: `item` occurs as whole words. A bare number is compared by value.

    >>> has_words("it costs $12.50.", "$12.50"), has_words("11 or 1.5", "1"), has_words("$1,000.00", "1000")
    (True, False, True)
    """
    text, item = clean(text), clean(item)
    if _NUMBER.fullmatch(item):
        return any(_value(number) == _value(item) for number in _NUMBER.findall(text))
    left = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", item) else ""
    right = r"(?!\w)(?!\.\d)" if re.search(r"\w$", item) else ""
    return bool(re.search(left + re.escape(item) + right, text))


def has_text(text: str, item: str) -> bool:
    """must_include on a page: a substring, as upstream. Pages glue words together and references quote attributes.

    Both sides are HTML-unescaped, with whitespace collapsed.
    """
    return clean(html.unescape(item)) in clean(html.unescape(text))


def satisfies(text: str, inequality: str) -> bool:
    """required_values: the whole text is a number (a $ and thousands allowed) and fulfils e.g. ">= 12.5".

    Raises ValueError for what is no inequality.
    """
    rule = _INEQUALITY.fullmatch(inequality.strip())
    if rule is None:
        raise ValueError(f"expected an inequality such as '>= 12.5', got {inequality[:80]!r}")
    number = clean(text).removeprefix("$")
    if not _NUMBER.fullmatch(number):
        return False
    value, bound = _value(number), Decimal(rule[2])
    return {"<": value < bound, "<=": value <= bound, "==": value == bound,
            ">=": value >= bound, ">": value > bound}[rule[1]]


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


def url_match(url: str, references: str, rule: str) -> bool:
    """Whether the agent's `url` is one of `references`.

    EXACT: same host, path and query. GOLD in PRED: same host, the reference's path or one below it, and every query
    value of the reference (others may be there too; a key that the reference leaves blank may be absent).
    In both: localhost is 127.0.0.1, a trailing slash and percent-encoding do not count, nor do the order of a query,
    the scheme (a replica may redirect to https) and the fragment (a place in the page, such as the map's position).

    >>> url_match("http://localhost/issues/8?b=2&a=1#top", "http://127.0.0.1/issues/8/?a=1&b=2", "EXACT")
    True
    >>> url_match("http://h/issues/80", "http://h/issues/8", "GOLD in PRED")
    False
    """
    host, path, query = _address(url)
    for reference in references.split(OR):
        gold_host, gold_path, gold_query = _address(reference)
        if rule == "EXACT":
            matches = path == gold_path and query == gold_query
        else:
            below = path == gold_path or path.startswith(gold_path.rstrip("/") + "/")
            matches = below and all(set(values) <= set(query.get(key, [""])) for key, values in gold_query.items())
        if matches and host == gold_host:
            return True
    return False


def _address(url: str) -> tuple[str, str, dict[str, list[str]]]:
    """Host with port, path without dot segments and trailing slash, and the query's values by key, sorted."""
    parts = urlsplit(url.strip())
    name = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    path = "/" + posixpath.normpath(unquote(parts.path) or "/").lstrip("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    return f"{name}:{port}", path, {key: sorted(values) for key, values in query.items()}


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
        raise ValueError(f"expected one of {', '.join(HELPERS)}, got {name[:80]!r}")
    takes = list(inspect.signature(HELPERS[name]).parameters)[2:]          # after lease and seconds
    if len(call.args) != len(takes) or not all(
            isinstance(given, ast.Name) and given.id == "__page__" if parameter == "page" else
            isinstance(given, ast.Constant) and isinstance(given.value, str)
            for given, parameter in zip(call.args, takes)):
        shown = ", ".join("__page__" if parameter == "page" else f"'{parameter}'" for parameter in takes)
        raise ValueError(f"expected {name}({shown})")
    return name, tuple(given.id if isinstance(given, ast.Name) else given.value for given in call.args)


async def call_helper(text: str, lease: Lease, page: Page, last_url: str, seconds: float) -> str:
    """Runs `func:...`. `page` stands for __page__; `last_url`, where the agent ended, for '__last_url__'.

    Returns "" where the site has no such thing; raises EnvironmentFailure where it cannot tell.
    """
    name, arguments = parse_call(text)
    values: dict[str, Any] = {"__page__": page, "__last_url__": last_url}
    try:
        found = await HELPERS[name](lease, seconds, *(values.get(argument, argument) for argument in arguments))
        return str(found or "")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise EnvironmentFailure("site", f"{name}: a reply of another shape than Magento's: {error!r}") from None


# ---- shopping: Magento's REST API ----

async def shopping_get_latest_order_url(lease: Lease, seconds: float) -> str:
    """The customer's page of the shop's newest order.

    "Newest" is of the whole shop: an arena whose replicas are shared by rollouts may see a neighbour's order here.
    """
    query = urlencode({"searchCriteria[sortOrders][0][field]": "created_at",
                       "searchCriteria[sortOrders][0][direction]": "DESC", "searchCriteria[pageSize]": 1})
    orders = (await _shop(lease, seconds, f"/rest/V1/orders?{query}"))["items"]
    return f"{_shop_url(lease)}/sales/order/view/order_id/{int(orders[0]['entity_id'])}/" if orders else ""


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
    keys = [a["value"] for a in product["custom_attributes"] if a["attribute_code"] == "url_key"] if product else []
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
    token = await _rest(f"{base}/rest/default/V1/integration/admin/token", lease.headers, seconds, login)
    return await _rest(base + path, {**lease.headers, "Authorization": f"Bearer {token}"}, seconds)


async def _rest(url: str, headers: dict[str, str], seconds: float, body: bytes | None = None) -> Any:
    request = Request(url, body, {**headers, "Content-Type": "application/json", "Accept": "application/json"})
    try:
        reply = await asyncio.wait_for(asyncio.to_thread(_read, request, seconds), seconds)
        return json.loads(reply)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise EnvironmentFailure("login" if error.code in (401, 403) else "site", f"{url}: {error}") from None
    except TimeoutError:
        raise EnvironmentFailure("deadline", f"{url}: no reply in {seconds:g} s") from None
    except (OSError, ValueError, RecursionError) as error:               # URLError is an OSError
        raise EnvironmentFailure("site", f"{url}: {error}") from None


def _read(request: Request, seconds: float) -> bytes:
    """The reply's body, bounded in size and time: a site that dribbles must not hold a thread for ever."""
    end, body = time.monotonic() + seconds, b""
    with _OPENER.open(request, timeout=seconds) as reply:
        while chunk := reply.read1(65536):
            body += chunk
            if len(body) > MAX_REPLY:
                raise ValueError(f"a reply of more than {MAX_REPLY} bytes")
            if time.monotonic() > end:
                raise TimeoutError
    return body


# ---- reddit and gitlab ----

async def reddit_get_post_url(lease: Lease, seconds: float, url: str) -> str:
    """The post that `url` lies in (/f/FORUM/ID/...), whatever follows the id; any other URL as it is."""
    post = re.match(r"https?://[^/]+/f/[^/?#]+/\d+(?=[/?#]|$)", url)
    return f"{post[0]}/" if post else url


async def gitlab_get_project_memeber_role(lease: Lease, seconds: float, page: Page, account_name: str) -> str:
    """The role that a project's member page shows beside @account_name.

    Upstream pairs the n-th account with the n-th role of the page; here both are read from one row.
    """
    return await within(seconds, page.evaluate("""name => {
        for (const cell of document.querySelectorAll('[data-label="Account"]'))
            if (cell.innerText.split(/\\s+/).includes('@' + name))
                return cell.parentElement.querySelector('.col-max-role span')?.innerText ?? '';
        return '';
    }""", account_name), "reading a member's role")


HELPERS = {helper.__name__: helper for helper in (
    shopping_get_latest_order_url, shopping_get_sku_latest_review_author, shopping_get_sku_latest_review_rating,
    shopping_get_sku_latest_review_text, shopping_get_sku_latest_review_title, shopping_get_sku_product_page_url,
    reddit_get_post_url, gitlab_get_project_memeber_role)}
