"""Task templates of the shop's back office."""

from __future__ import annotations

from functools import partial
from itertools import product as pairs

from jhima.pocket.sites.store_data import (
    CARRIERS,
    GROUPS,
    OPEN,
    STATUSES,
    Order,
    Review,
    fresh,
    money,
    month,
)
from jhima.pocket.tasks import intents
from jhima.pocket.tasks.intents import (
    Solution,
    Subtask,
    Write,
    answer,
    html,
    one_each,
    solution,
    step,
    string,
    target,
    url,
    url_and_html,
)

template = partial(intents.template, "shopping_admin")

STORE = fresh(full=False)
PRODUCTS = {p.name: p for p in STORE.products.values()}
NAMES = list(PRODUCTS)
CUSTOMERS = {c.name: c for c in STORE.customers.values()}
OPEN_ORDERS = [number for number, o in STORE.orders.items() if o.status in OPEN]
PENDING_REVIEWS = [r for r in STORE.reviews.values() if r.status == "Pending"]
SOLD = STORE.sold()[:7]  # below these, ranks are shared
MONTHS = list(dict.fromkeys(month(o.date) for o in STORE.orders.values()))
STOCK = "product[quantity_and_stock_status]"


# ---- parts of plans ----

GO_HOME = step("Go home", "The dashboard is shown", "Shop Admin")
OPEN_BEST_SELLERS = step("Open the best sellers", "The list is shown", "Best sellers")
CANCEL = step("Cancel it", "The order is canceled", "Cancel")


def open_product(name: str) -> Subtask:
    return step(f"Open {name}", f"The form of {name} is shown", "Products", name)


def open_order(number: int) -> Subtask:
    goal = f"The page of order {number} is shown"
    return step(f"Open order {number}", goal, "Orders", f"Order {number}")


def filter_orders(status: str) -> Subtask:
    return step(f"Show {status} orders", "Only these orders are listed", "Orders", status)


def open_customer(name: str) -> Subtask:
    return step(f"Open {name}", f"The page of {name} is shown", "Customers", name)


def open_review(review: Review) -> Subtask:
    label = f"{review.nickname} on {STORE.products[review.product].name}"
    return step("Open the review", "The review is shown", "Reviews", label)


def choose_group(group: str) -> Subtask:
    return step(f"Choose {group}", "The customer is saved", group, "Save Customer")


def save_price(price: str) -> Subtask:
    return step(f"Set the price to {price}", "The price is saved", Write("Price", price), "Save")


# ---- what a page holds afterwards ----


def product_has(name: str, selector: str, value: str) -> dict:
    page = f"__SHOPPING_ADMIN__/catalog/product/edit/id/{PRODUCTS[name].id}/"
    return html(target(page, f"document.querySelector('{selector}').value", exact_match=value))


def order_has(number: int, selector: str, **contents: object) -> dict:
    page = f"__SHOPPING_ADMIN__/sales/order/view/order_id/{number}/"
    return target(page, f'document.querySelector("{selector}").outerText', **contents)


def coupons_have(**contents: object) -> dict:
    coupons = 'document.querySelector(".coupons").outerText'
    return html(target("__SHOPPING_ADMIN__/sales_rule/promo_quote/", coupons, **contents))


def in_group(customer: int, group: str) -> dict:
    page = f"__SHOPPING_ADMIN__/customer/index/edit/id/{customer}/"
    chosen = "document.querySelector('[name=\"customer[group_id]\"]:checked').value"
    return html(target(page, chosen, exact_match=group))


# ---- look up ----


@template(
    "What is the {what} of the customer {name}?",
    [{"what": what, "name": name} for name, what in pairs(CUSTOMERS, ("phone", "email"))],
)
def customer_value(what: str, name: str) -> Solution:
    value = getattr(CUSTOMERS[name], what)
    return solution(
        open_customer(name),
        answer(what, value),
        eval=string(exact_match=value),
    )


@template(
    "How many pieces of the {product} are in stock, and at what price?",
    one_each("product", NAMES),
)
def stock(product: str) -> Solution:
    p = PRODUCTS[product]
    price = money(p.price).removeprefix("$")
    return solution(
        open_product(product),
        answer("stock and price", f"{p.qty} pieces at ${price}"),
        eval=string(must_include=[str(p.qty), price]),
    )


@template(
    "What were the {what} of {month}?",
    [{"what": what, "month": name} for name, what in pairs(MONTHS, ("total sales", "items sold"))],
)
def sales(what: str, month: str) -> Solution:
    orders = orders_of(month)
    if what == "total sales":
        value = money(sum(o.total for o in orders))
    else:
        value = str(sum(o.pieces for o in orders))
    return solution(
        step(f"Open {month}", "The sales of the month are shown", "Sales report", month),
        answer(what, value),
        eval=string(must_include=[value.removeprefix("$")]),
    )


def orders_of(name: str) -> list[Order]:
    return [o for o in STORE.orders.values() if month(o.date) == name and o.status != "Canceled"]


@template("How many of the {product} did we sell?", one_each("product", [p.name for p, _ in SOLD]))
def sold(product: str) -> Solution:
    count = next(str(n) for p, n in SOLD if p.name == product)
    return solution(
        OPEN_BEST_SELLERS,
        answer("pieces", count),
        eval=string(must_include=[count]),
    )


@template("Show me the {status} orders.", one_each("status", STATUSES))
def orders_by_status(status: str) -> Solution:
    current = 'document.querySelector("div.admin__data-grid-filters-current").outerText'
    return solution(
        filter_orders(status),
        eval=url_and_html(
            "__SHOPPING_ADMIN__/sales/order/", target("last", current, must_include=[status])
        ),
    )


@template(
    "Show me the page of {name}.",
    one_each("name", [*CUSTOMERS, *(f"order {number}" for number in STORE.orders)]),
)
def show(name: str) -> Solution:
    if name in CUSTOMERS:
        page = f"__SHOPPING_ADMIN__/customer/index/edit/id/{CUSTOMERS[name].id}/"
        return solution(open_customer(name), eval=url(page, exact=True))
    number = int(name.removeprefix("order "))
    page = f"__SHOPPING_ADMIN__/sales/order/view/order_id/{number}/"
    return solution(open_order(number), eval=url(page, exact=True))


@template(
    "What does {name} say about the {product} in the pending review?",
    [{"name": r.nickname, "product": STORE.products[r.product].name} for r in PENDING_REVIEWS],
)
def opinion(name: str, product: str) -> Solution:
    r = pending_review(name, product)
    return solution(
        open_review(r),
        answer("opinion", r.detail),
        eval=string(fuzzy_match=[r.detail]),
    )


def pending_review(name: str, product: str) -> Review:
    key = PRODUCTS[product].key
    return next(r for r in PENDING_REVIEWS if (r.nickname, r.product) == (name, key))


@template(
    "Give me the {what} of the customer who placed order {number}.",
    [{"what": what, "number": n} for n, what in pairs(STORE.orders, ("phone", "email"))],
)
def buyer_value(what: str, number: int) -> Solution:
    customer = STORE.customers[STORE.orders[number].customer]
    value = getattr(customer, what)
    return solution(
        open_order(number),
        GO_HOME,
        open_customer(customer.name),
        answer(what, value),
        eval=string(exact_match=value),
    )


# ---- products ----


@template(
    "Set the price of the {product} to ${price}.",
    [{"product": name, "price": 11 + 2 * i} for i, name in enumerate(NAMES)],
)
def set_price(product: str, price: int) -> Solution:
    return solution(
        open_product(product),
        save_price(str(price)),
        eval=product_has(product, '[name="product[price]"]', str(price)),
    )


@template(
    "Reduce the price of the {product} by ${off}.",
    [{"product": name, "off": 1 + i % 3} for i, name in enumerate(NAMES)],
)
def reduce_price(product: str, off: int) -> Solution:
    price = money(PRODUCTS[product].price - off).removeprefix("$")
    return solution(
        open_product(product),
        save_price(price),
        eval=product_has(product, '[name="product[price]"]', price),
    )


STATE_FIELDS = {"Out of stock": f"{STOCK}[is_in_stock]", "Disabled": "product[status]"}


@template(
    "Mark the {product} as {state}.",
    [{"product": name, "state": state} for name, state in pairs(NAMES, STATE_FIELDS)],
)
def mark(product: str, state: str) -> Solution:
    return solution(
        open_product(product),
        step(f"Mark it as {state}", "The product is saved", state, "Save"),
        eval=product_has(product, f'[name="{STATE_FIELDS[state]}"]:checked', state),
    )


# ---- orders, customers, reviews ----


@template("Cancel order {number}.", one_each("number", OPEN_ORDERS))
def cancel(number: int) -> Solution:
    return solution(
        open_order(number),
        CANCEL,
        eval=html(order_has(number, "#order_status", exact_match="Canceled")),
    )


@template(
    "Ship order {number} by {carrier} with the tracking number {tracking}.",
    [
        {"number": n, "carrier": carrier, "tracking": 100 + 13 * i}
        for i, (n, carrier) in enumerate(pairs(OPEN_ORDERS, CARRIERS))
    ],
)
def ship(number: int, carrier: str, tracking: int) -> Solution:
    moves = ("Ship", carrier, Write("Tracking", str(tracking)), "Submit Shipment")
    comments = 'document.querySelector(".comments").outerText'
    line = f"Tracking number {tracking} for {carrier} assigned"
    return solution(
        open_order(number),
        step(f"Ship it by {carrier}", "The shipment is saved", *moves),
        eval=url_and_html(
            f"__SHOPPING_ADMIN__/sales/order/view/order_id/{number}/",
            target("last", comments, must_include=[line]),
        ),
    )


COMMENTS = ("Checked", "Paid", "Packed")


def next_status(status: str) -> str:
    return STATUSES[(STATUSES.index(status) + 1) % 3]


@template(
    "Set order {number} to {status} with the comment {comment}.",
    [
        {"number": n, "status": next_status(o.status), "comment": COMMENTS[n % 3]}
        for n, o in STORE.orders.items()
        if o.status != "Canceled"
    ],
)
def comment(number: int, status: str, comment: str) -> Solution:
    moves = ("Add comment", status, Write("Comment", comment), "Submit Comment")
    return solution(
        open_order(number),
        step(f"Comment {comment}, set {status}", "The comment is saved", *moves),
        eval=html(
            order_has(number, "#order_status", exact_match=status),
            order_has(number, ".comments", must_include=[comment]),
        ),
    )


VERDICTS = {"Approve": "Approved", "Reject": "Rejected"}


@template(
    "{verb} the review of the {product} by {name}.",
    [
        {"verb": verb, "product": STORE.products[r.product].name, "name": r.nickname}
        for r, verb in pairs(PENDING_REVIEWS, VERDICTS)
    ],
)
def moderate(verb: str, product: str, name: str) -> Solution:
    review = pending_review(name, product)
    page = f"__SHOPPING_ADMIN__/review/product/edit/id/{review.id}/"
    status = "document.querySelector('[name=status_id]:checked').value"
    return solution(
        open_review(review),
        step(f"{verb} it", "The review is saved", VERDICTS[verb], "Save Review"),
        eval=html(target(page, status, exact_match=VERDICTS[verb])),
    )


@template(
    "Move the customer {name} to the group {group}.",
    [{"name": name, "group": group} for name, group in pairs(CUSTOMERS, GROUPS[1:])],
)
def regroup(name: str, group: str) -> Solution:
    return solution(
        open_customer(name),
        choose_group(group),
        eval=in_group(CUSTOMERS[name].id, group),
    )


# ---- coupons and settings ----

NEW_CODES = ("EASTER", "FRIEND", "SALE", "WELCOME")


@template(
    "Create the coupon {code} with {percent} percent off.",
    [{"code": code, "percent": percent} for code, percent in pairs(NEW_CODES, (15, 25, 30))],
)
def create_coupon(code: str, percent: int) -> Solution:
    moves = (Write("Code", code), Write("Percent", str(percent)), "Save Coupon")
    return solution(
        step("Open the coupon form", "The form is shown", "Coupons", "Add coupon"),
        step(f"Save {code}", "The coupon is listed", *moves),
        eval=coupons_have(must_include=[code, f"{percent}% off"]),
    )


@template("Delete the coupon {code}.", one_each("code", list(STORE.coupons)))
def delete_coupon(code: str) -> Solution:
    return solution(
        step(f"Delete {code}", "The coupon is gone", "Coupons", f"Delete {code}"),
        eval=coupons_have(must_exclude=[code]),
    )


@template(
    "Change the phone number of our store to {phone}.",
    one_each("phone", [f"555-{410 + 9 * i}" for i in range(12)]),
)
def store_phone(phone: str) -> Solution:
    moves = (Write("Phone", phone), "Save Config")
    page = "__SHOPPING_ADMIN__/admin/system_config/edit/section/general/"
    field = "document.querySelector('[name=store_phone]').value"
    return solution(
        step("Open Settings", "The settings are shown", "Settings"),
        step(f"Set the phone to {phone}", "The settings are saved", *moves),
        eval=html(target(page, field, exact_match=phone)),
    )


# ---- held out ----


@template(
    "Which product is number {rank} of the best sellers?",
    one_each("rank", range(1, len(SOLD) + 1)),
    held_out=True,
)
def best_seller(rank: int) -> Solution:
    name = SOLD[rank - 1][0].name
    return solution(OPEN_BEST_SELLERS, answer("name", name), eval=string(exact_match=name))


@template(
    "Move the customer who placed order {number} to the group {group}.",
    [{"number": n, "group": GROUPS[1 + n % 3]} for n in STORE.orders],
    held_out=True,
)
def regroup_buyer(number: int, group: str) -> Solution:
    customer = STORE.customers[STORE.orders[number].customer]
    return solution(
        open_order(number),
        GO_HOME,
        open_customer(customer.name),
        choose_group(group),
        eval=in_group(customer.id, group),
    )


def only_open_orders() -> dict[tuple[str, str], int]:
    """(status, customer's name) -> the order, where the customer has just one of this status."""
    orders: dict[tuple[str, str], list[int]] = {}
    for order in STORE.orders.values():
        key = (order.status, STORE.customers[order.customer].name)
        orders.setdefault(key, []).append(order.number)
    return {key: ns[0] for key, ns in orders.items() if key[0] in OPEN and len(ns) == 1}


ONLY_OPEN_ORDERS = only_open_orders()


@template(
    "Cancel the {status} order of {name}.",
    [{"status": status, "name": name} for status, name in ONLY_OPEN_ORDERS],
    held_out=True,
)
def cancel_of(status: str, name: str) -> Solution:
    number = ONLY_OPEN_ORDERS[status, name]
    return solution(
        filter_orders(status),
        step(f"Open order {number}", f"The order of {name} is shown", f"Order {number}"),
        CANCEL,
        eval=html(order_has(number, "#order_status", exact_match="Canceled")),
    )
