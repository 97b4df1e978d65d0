"""What one can ask of the shop's back office."""

from __future__ import annotations

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
from jhima.pocket.tasks.intents import (
    Answer,
    Click,
    Solution,
    Subtask,
    Write,
    html,
    step,
    string,
    target,
    template,
    url,
    url_and_html,
)

STORE = fresh(full=False)


PRODUCTS = {p.name: p for p in STORE.products.values()}


NAMES = [{"product": name} for name in PRODUCTS]


CUSTOMERS = {c.name: c for c in STORE.customers.values()}


ORDERS = [{"number": n} for n in STORE.orders]


OPEN_ORDERS = [n for n, o in STORE.orders.items() if o.status in OPEN]


PENDING_REVIEWS = [r for r in STORE.reviews.values() if r.status == "Pending"]


SOLD = STORE.sold()[:7]  # below these, ranks are shared


BY_BUYER: dict[tuple[str, str], list[int]] = {}  # status, customer's name -> orders


for _order in STORE.orders.values():
    BY_BUYER.setdefault((_order.status, STORE.customers[_order.customer].name), []).append(
        _order.number
    )


MONTHS = list(dict.fromkeys(month(o.date) for o in STORE.orders.values()))


STOCK = "product[quantity_and_stock_status]"


# ---- parts of plans ----


def open_product(name: str) -> Subtask:
    return step(f"Open {name}", f"The form of {name} is shown", Click("Products"), Click(name))


def open_order(number: int) -> Subtask:
    return step(
        f"Open order {number}",
        f"The page of order {number} is shown",
        Click("Orders"),
        Click(f"Order {number}"),
    )


def filter_orders(status: str) -> Subtask:
    return step(
        f"Show {status} orders", "Only these orders are listed", Click("Orders"), Click(status)
    )


def open_customer(name: str) -> Subtask:
    return step(f"Open {name}", f"The page of {name} is shown", Click("Customers"), Click(name))


def open_review(review: Review) -> Subtask:
    label = f"{review.nickname} on {STORE.products[review.product].name}"
    return step("Open the review", "The review is shown", Click("Reviews"), Click(label))


def open_best_sellers() -> Subtask:
    return step("Open the best sellers", "The list is shown", Click("Best sellers"))


def choose_group(group: str) -> Subtask:
    return step(f"Choose {group}", "The customer is saved", Click(group), Click("Save Customer"))


def answer(what: str, text: str) -> Subtask:
    return step(f"Answer with the {what}", f"The {what} is given", Answer(text))


# ---- what a page holds afterwards ----


def product_has(name: str, field: str, value: str, checked: bool = False) -> dict:
    locator = f"document.querySelector('[name=\"{field}\"]{':checked' if checked else ''}').value"
    return target(
        f"__SHOPPING_ADMIN__/catalog/product/edit/id/{PRODUCTS[name].id}/",
        locator,
        exact_match=value,
    )


def order_has(number: int, selector: str, **contents: object) -> dict:
    return target(
        f"__SHOPPING_ADMIN__/sales/order/view/order_id/{number}/",
        f'document.querySelector("{selector}").outerText',
        **contents,
    )


def coupons_have(**contents: object) -> dict:
    return html(
        target(
            "__SHOPPING_ADMIN__/sales_rule/promo_quote/",
            'document.querySelector(".coupons").outerText',
            **contents,
        )
    )


def in_group(customer: int, group: str) -> dict:
    return html(
        target(
            f"__SHOPPING_ADMIN__/customer/index/edit/id/{customer}/",
            "document.querySelector('[name=\"customer[group_id]\"]:checked').value",
            exact_match=group,
        )
    )


# ---- look up ----


@template(
    "shopping_admin",
    "What is the {what} of the customer {name}?",
    [{"what": what, "name": name} for name in CUSTOMERS for what in ("phone", "email")],
)
def customer_value(what: str, name: str) -> Solution:
    value = getattr(CUSTOMERS[name], what)
    return Solution((open_customer(name), answer(what, value)), string(exact_match=value))


@template(
    "shopping_admin", "How many pieces of the {product} are in stock, and at what price?", NAMES
)
def stock(product: str) -> Solution:
    p = PRODUCTS[product]
    price = money(p.price).removeprefix("$")
    return Solution(
        (open_product(product), answer("stock and price", f"{p.qty} pieces at ${price}")),
        string(must_include=[str(p.qty), price]),
    )


@template(
    "shopping_admin",
    "What were the {what} of {month}?",
    [{"what": what, "month": name} for name in MONTHS for what in ("total sales", "items sold")],
)
def sales(what: str, month: str) -> Solution:
    kept = orders_of(month)
    value = (
        money(sum(o.total for o in kept))
        if what == "total sales"
        else str(sum(line.qty for o in kept for line in o.lines))
    )
    return Solution(
        (
            step(
                f"Open {month}",
                "The sales of the month are shown",
                Click("Sales report"),
                Click(month),
            ),
            answer(what, value),
        ),
        string(must_include=[value.removeprefix("$")]),
    )


def orders_of(name: str) -> list[Order]:
    return [o for o in STORE.orders.values() if month(o.date) == name and o.status != "Canceled"]


@template(
    "shopping_admin",
    "How many of the {product} did we sell?",
    [{"product": p.name} for p, _ in SOLD],
)
def sold(product: str) -> Solution:
    pieces = next(str(n) for p, n in SOLD if p.name == product)
    return Solution((open_best_sellers(), answer("pieces", pieces)), string(must_include=[pieces]))


@template(
    "shopping_admin", "Show me the {status} orders.", [{"status": status} for status in STATUSES]
)
def orders_by_status(status: str) -> Solution:
    current = 'document.querySelector("div.admin__data-grid-filters-current").outerText'
    return Solution(
        (filter_orders(status),),
        url_and_html(
            "__SHOPPING_ADMIN__/sales/order/", target("last", current, must_include=[status])
        ),
    )


@template(
    "shopping_admin",
    "Show me the page of {name}.",
    [{"name": name} for name in CUSTOMERS] + [{"name": f"order {n}"} for n in STORE.orders],
)
def show(name: str) -> Solution:
    if name in CUSTOMERS:
        address = f"__SHOPPING_ADMIN__/customer/index/edit/id/{CUSTOMERS[name].id}/"
        return Solution((open_customer(name),), url(address, exact=True))
    number = int(name.removeprefix("order "))
    return Solution(
        (open_order(number),),
        url(f"__SHOPPING_ADMIN__/sales/order/view/order_id/{number}/", exact=True),
    )


@template(
    "shopping_admin",
    "What does {name} say about the {product} in the pending review?",
    [{"name": r.nickname, "product": STORE.products[r.product].name} for r in PENDING_REVIEWS],
)
def opinion(name: str, product: str) -> Solution:
    r = pending_review(name, product)
    return Solution((open_review(r), answer("opinion", r.detail)), string(fuzzy_match=[r.detail]))


def pending_review(name: str, product: str) -> Review:
    return next(
        r for r in PENDING_REVIEWS if (r.nickname, r.product) == (name, PRODUCTS[product].key)
    )


@template(
    "shopping_admin",
    "Give me the {what} of the customer who placed order {number}.",
    [{"what": what, "number": n} for n in STORE.orders for what in ("phone", "email")],
)
def buyer_value(what: str, number: int) -> Solution:
    customer = STORE.customers[STORE.orders[number].customer]
    value = getattr(customer, what)
    return Solution(
        (
            open_order(number),
            step("Go home", "The dashboard is shown", Click("Shop Admin")),
            open_customer(customer.name),
            answer(what, value),
        ),
        string(exact_match=value),
    )


# ---- products ----


@template(
    "shopping_admin",
    "Set the price of the {product} to ${price}.",
    [{"product": name, "price": 11 + 2 * i} for i, name in enumerate(PRODUCTS)],
)
def set_price(product: str, price: int) -> Solution:
    return Solution(
        (
            open_product(product),
            step(
                f"Set the price to {price}",
                "The price is saved",
                Write("Price", str(price)),
                Click("Save"),
            ),
        ),
        html(product_has(product, "product[price]", str(price))),
    )


@template(
    "shopping_admin",
    "Reduce the price of the {product} by ${off}.",
    [{"product": name, "off": 1 + i % 3} for i, name in enumerate(PRODUCTS)],
)
def reduce_price(product: str, off: int) -> Solution:
    price = money(PRODUCTS[product].price - off).removeprefix("$")
    return Solution(
        (
            open_product(product),
            step(
                f"Set the price to {price}",
                "The price is saved",
                Write("Price", price),
                Click("Save"),
            ),
        ),
        html(product_has(product, "product[price]", price)),
    )


@template(
    "shopping_admin",
    "Mark the {product} as {state}.",
    [
        {"product": name, "state": state}
        for name in PRODUCTS
        for state in ("Out of stock", "Disabled")
    ],
)
def mark(product: str, state: str) -> Solution:
    field = {"Out of stock": f"{STOCK}[is_in_stock]", "Disabled": "product[status]"}[state]
    return Solution(
        (
            open_product(product),
            step(f"Mark it as {state}", "The product is saved", Click(state), Click("Save")),
        ),
        html(product_has(product, field, state, checked=True)),
    )


# ---- orders, customers, reviews ----


@template("shopping_admin", "Cancel order {number}.", [{"number": n} for n in OPEN_ORDERS])
def cancel(number: int) -> Solution:
    return Solution(
        (open_order(number), step("Cancel it", "The order is canceled", Click("Cancel"))),
        html(order_has(number, "#order_status", exact_match="Canceled")),
    )


@template(
    "shopping_admin",
    "Ship order {number} by {carrier} with the tracking number {tracking}.",
    [
        {"number": n, "carrier": carrier, "tracking": 100 + 13 * i}
        for i, (n, carrier) in enumerate((n, carrier) for n in OPEN_ORDERS for carrier in CARRIERS)
    ],
)
def ship(number: int, carrier: str, tracking: int) -> Solution:
    return Solution(
        (
            open_order(number),
            step(
                f"Ship it by {carrier}",
                "The shipment is saved",
                Click("Ship"),
                Click(carrier),
                Write("Tracking", str(tracking)),
                Click("Submit Shipment"),
            ),
        ),
        url_and_html(
            f"__SHOPPING_ADMIN__/sales/order/view/order_id/{number}/",
            target(
                "last",
                'document.querySelector(".comments").outerText',
                must_include=[f"Tracking number {tracking} for {carrier} assigned"],
            ),
        ),
    )


@template(
    "shopping_admin",
    "Set order {number} to {status} with the comment {comment}.",
    [
        {
            "number": n,
            "status": STATUSES[(STATUSES.index(o.status) + 1) % 3],
            "comment": ("Checked", "Paid", "Packed")[n % 3],
        }
        for n, o in STORE.orders.items()
        if o.status != "Canceled"
    ],
)
def comment(number: int, status: str, comment: str) -> Solution:
    return Solution(
        (
            open_order(number),
            step(
                f"Comment {comment}, set {status}",
                "The comment is saved",
                Click("Add comment"),
                Click(status),
                Write("Comment", comment),
                Click("Submit Comment"),
            ),
        ),
        html(
            order_has(number, "#order_status", exact_match=status),
            order_has(number, ".comments", must_include=[comment]),
        ),
    )


@template(
    "shopping_admin",
    "{verb} the review of the {product} by {name}.",
    [
        {"verb": verb, "product": STORE.products[r.product].name, "name": r.nickname}
        for r in PENDING_REVIEWS
        for verb in ("Approve", "Reject")
    ],
)
def moderate(verb: str, product: str, name: str) -> Solution:
    review, verdict = (
        pending_review(name, product),
        {"Approve": "Approved", "Reject": "Rejected"}[verb],
    )
    return Solution(
        (
            open_review(review),
            step(f"{verb} it", "The review is saved", Click(verdict), Click("Save Review")),
        ),
        html(
            target(
                f"__SHOPPING_ADMIN__/review/product/edit/id/{review.id}/",
                "document.querySelector('[name=status_id]:checked').value",
                exact_match=verdict,
            )
        ),
    )


@template(
    "shopping_admin",
    "Move the customer {name} to the group {group}.",
    [{"name": name, "group": group} for name in CUSTOMERS for group in GROUPS[1:]],
)
def regroup(name: str, group: str) -> Solution:
    return Solution((open_customer(name), choose_group(group)), in_group(CUSTOMERS[name].id, group))


# ---- coupons and settings ----


@template(
    "shopping_admin",
    "Create the coupon {code} with {percent} percent off.",
    [
        {"code": code, "percent": percent}
        for code in ("EASTER", "FRIEND", "SALE", "WELCOME")
        for percent in (15, 25, 30)
    ],
)
def create_coupon(code: str, percent: int) -> Solution:
    return Solution(
        (
            step(
                "Open the coupon form", "The form is shown", Click("Coupons"), Click("Add coupon")
            ),
            step(
                f"Save {code}",
                "The coupon is listed",
                Write("Code", code),
                Write("Percent", str(percent)),
                Click("Save Coupon"),
            ),
        ),
        coupons_have(must_include=[code, f"{percent}% off"]),
    )


@template("shopping_admin", "Delete the coupon {code}.", [{"code": code} for code in STORE.coupons])
def delete_coupon(code: str) -> Solution:
    return Solution(
        (step(f"Delete {code}", "The coupon is gone", Click("Coupons"), Click(f"Delete {code}")),),
        coupons_have(must_exclude=[code]),
    )


@template(
    "shopping_admin",
    "Change the phone number of our store to {phone}.",
    [{"phone": f"555-{410 + 9 * i}"} for i in range(12)],
)
def store_phone(phone: str) -> Solution:
    return Solution(
        (
            step("Open Settings", "The settings are shown", Click("Settings")),
            step(
                f"Set the phone to {phone}",
                "The settings are saved",
                Write("Phone", phone),
                Click("Save Config"),
            ),
        ),
        html(
            target(
                "__SHOPPING_ADMIN__/admin/system_config/edit/section/general/",
                "document.querySelector('[name=store_phone]').value",
                exact_match=phone,
            )
        ),
    )


# ---- held out ----


@template(
    "shopping_admin",
    "Which product is number {rank} of the best sellers?",
    [{"rank": rank} for rank in range(1, len(SOLD) + 1)],
    held_out=True,
)
def best_seller(rank: int) -> Solution:
    name = SOLD[rank - 1][0].name
    return Solution((open_best_sellers(), answer("name", name)), string(exact_match=name))


@template(
    "shopping_admin",
    "Move the customer who placed order {number} to the group {group}.",
    [{"number": n, "group": GROUPS[1 + n % 3]} for n in STORE.orders],
    held_out=True,
)
def regroup_buyer(number: int, group: str) -> Solution:
    customer = STORE.customers[STORE.orders[number].customer]
    return Solution(
        (
            open_order(number),
            step("Go home", "The dashboard is shown", Click("Shop Admin")),
            open_customer(customer.name),
            choose_group(group),
        ),
        in_group(customer.id, group),
    )


@template(
    "shopping_admin",
    "Cancel the {status} order of {name}.",
    [
        {"status": status, "name": name}
        for (status, name), numbers in BY_BUYER.items()
        if status in OPEN and len(numbers) == 1
    ],
    held_out=True,
)
def cancel_of(status: str, name: str) -> Solution:
    number = BY_BUYER[status, name][0]
    return Solution(
        (
            filter_orders(status),
            step(f"Open order {number}", f"The order of {name} is shown", Click(f"Order {number}")),
            step("Cancel it", "The order is canceled", Click("Cancel")),
        ),
        html(order_has(number, "#order_status", exact_match="Canceled")),
    )


TEMPLATES = [
    customer_value,
    stock,
    sales,
    sold,
    orders_by_status,
    show,
    opinion,
    buyer_value,
    set_price,
    reduce_price,
    mark,
    cancel,
    ship,
    comment,
    moderate,
    regroup,
    create_coupon,
    delete_coupon,
    store_phone,
    best_seller,
    regroup_buyer,
    cancel_of,
]
