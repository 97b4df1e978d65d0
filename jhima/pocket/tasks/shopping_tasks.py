"""What one can ask of the shop."""

from __future__ import annotations

from jhima.pocket.sites.store_data import (
    CATEGORIES,
    EMMA,
    OPEN,
    SORTS,
    Product,
    day,
    fresh,
    money,
    rated,
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
    string_and_url,
    target,
    template,
    url,
    url_and_html,
)

STORE = fresh(full=False)


PRODUCTS = {p.name: p for p in STORE.products.values()}


NAMES = [{"product": name} for name in PRODUCTS]


MINE = {o.number: o for o in STORE.orders.values() if o.customer == EMMA}


LATEST = max(STORE.orders)  # in place before the shopper does anything


WISHES = [STORE.products[key].name for key in STORE.wishes]
# How one points at the best of a category, and the list that shows it first.
BEST = dict(zip(("cheapest", "dearest", "best rated"), SORTS))


BEST_OF = [{"best": best, "category": category} for best in BEST for category in CATEGORIES]


LATEST_ORDER = "func:shopping_get_latest_order_url()"


ORDERED = 'document.querySelector(".order-details-items.ordered").outerText'


SHIPPED_TO = 'document.querySelector(".box.box-address-shipping > .box-content").outerText'


NEWS = "document.querySelector('[title=\"General Subscription\"]').checked.toString()"


WISHED = 'document.querySelector(".products-grid.wishlist").outerText'


MIND = "What’s on your mind?"


def pointers(numbers: list[int]) -> list[dict]:
    """Two ways to point at each order: by its number and by its first product."""
    return [{"which": f"order {n}", "number": n} for n in numbers] + [
        {"which": f"order of the {MINE[n].lines[0].product.name}", "number": n} for n in numbers
    ]


def first_of(best: str, category: str) -> Product:
    products = [p for p in PRODUCTS.values() if p.category == category]
    return {"cheapest": min, "dearest": max, "best rated": max}[best](
        products, key=STORE.stars if best == "best rated" else lambda p: p.price
    )


# ---- parts of plans ----


def open_product(name: str) -> Subtask:
    return step(
        f"Open {name}", f"The page of {name} is shown", Click(PRODUCTS[name].category), Click(name)
    )


def sort_category(best: str, category: str) -> Subtask:
    return step(
        f"Sort {category}, {best}",
        f"The {best} of {category} comes first",
        Click(category),
        Click(BEST[best]),
    )


def open_order(number: int) -> Subtask:
    return step(
        f"Open order {number}",
        f"The page of order {number} is shown",
        Click("My Orders"),
        Click(f"Order {number}"),
    )


def add_to_cart() -> Subtask:
    return step("Add to the cart", "The cart is shown", Click("Add to Cart"))


def check_out(*moves: Click | Write) -> Subtask:
    return step(
        "Place the order",
        "The order is placed",
        Click("Proceed to Checkout"),
        *moves,
        Click("Place Order"),
    )


def submit_review(stars: int, title: str) -> Subtask:
    return step(
        f"Review it with {rated(stars)}",
        "The review is sent",
        Click("Add review"),
        Click(rated(stars)),
        Write("Title", title),
        Click("Submit Review"),
    )


def has_review(product: Product, stars: int, title: str) -> dict:
    page, helper = (
        f"__SHOPPING__/{product.key}.html",
        "func:shopping_get_sku_latest_review_{}('{}')",
    )
    return html(
        target(page, helper.format("rating", product.sku), must_include=[str(20 * stars)]),
        target(page, helper.format("title", product.sku), exact_match=title),
    )


# ---- look up ----


@template("shopping", "What is the price of the {product}?", NAMES)
def price(product: str) -> Solution:
    answer = money(PRODUCTS[product].price)
    return Solution(
        (
            open_product(product),
            step("Answer with the price", "The price is given", Answer(answer)),
        ),
        string(must_include=[answer.removeprefix("$")]),
    )


@template("shopping", "Find the {product} with the search and tell me its SKU.", NAMES)
def sku(product: str) -> Solution:
    p = PRODUCTS[product]
    return Solution(
        (
            step(
                f"Search for {product}",
                "The results are shown",
                Click("Search"),
                Write("Product", product),
                Click("Find"),
            ),
            step("Answer with the SKU", "The SKU is given", Click(product), Answer(p.sku)),
        ),
        string_and_url(f"__SHOPPING__/{p.key}.html", exact_match=p.sku),
    )


@template("shopping", "List the {category} products, the {best} first.", BEST_OF)
def sort(best: str, category: str) -> Solution:
    return Solution(
        (sort_category(best, category),),
        url(f"__SHOPPING__/{category.lower()}.html?{SORTS[BEST[best]]}", exact=True),
    )


@template("shopping", "Show me the reviews of the {product}.", NAMES)
def reviews(product: str) -> Solution:
    return Solution(
        (
            open_product(product),
            step("Open the reviews", "The reviews are shown", Click("Reviews")),
        ),
        url(f"__SHOPPING__/review/product/list/id/{PRODUCTS[product].id}/"),
    )


@template(
    "shopping",
    "Who rated the {product} {stars} out of 5?",
    [
        {"product": STORE.products[r.product].name, "stars": r.stars}
        for r in STORE.reviews.values()
        if r.status == "Approved"
    ],
)
def reviewer(product: str, stars: int) -> Solution:
    names = {
        r.stars: r.nickname
        for r in STORE.reviews.values()
        if r.product == PRODUCTS[product].key and r.status == "Approved"
    }
    others = [name for mark, name in names.items() if mark != stars]
    return Solution(
        (
            open_product(product),
            step("Open the reviews", "The reviews are shown", Click("Reviews")),
            step("Answer with the name", "The reviewer is named", Answer(names[stars])),
        ),
        string(must_include=[names[stars]], must_exclude=others),
    )


@template(
    "shopping",
    "What is the {what} of my order {number}?",
    [{"what": what, "number": n} for n in MINE for what in ("status", "total", "date")],
)
def order_value(what: str, number: int) -> Solution:
    o = MINE[number]
    answer = {"status": o.status, "total": money(o.total), "date": day(o.date)}[what]
    exam = (
        string(must_include=[answer.removeprefix("$")])
        if what == "total"
        else string(fuzzy_match=[answer])
    )
    return Solution(
        (
            open_order(number),
            step(f"Answer with the {what}", f"The {what} is given", Answer(answer)),
        ),
        exam,
    )


# ---- buy ----


@template(
    "shopping",
    "Buy {qty} of the {product}.",
    [{"qty": 2 + i % 4, "product": name} for i, name in enumerate(PRODUCTS) if name != "Helmet"],
)
def buy(qty: int, product: str) -> Solution:
    return Solution(
        (
            open_product(product),
            step(
                f"Add {qty} to the cart",
                "The cart is shown",
                Write("Quantity", str(qty)),
                Click("Add to Cart"),
            ),
            check_out(),
        ),
        html(
            target(
                LATEST_ORDER, ORDERED, must_include=[PRODUCTS[product].sku, f"{qty} x {product}"]
            )
        ),
    )


@template(
    "shopping",
    "Buy the {product} with the coupon {coupon}.",
    [{"product": name, "coupon": list(STORE.coupons)[i % 3]} for i, name in enumerate(PRODUCTS)],
)
def use_coupon(product: str, coupon: str) -> Solution:
    off = money(PRODUCTS[product].price * STORE.coupons[coupon] / 100)
    return Solution(
        (open_product(product), add_to_cart(), check_out(Write("Coupon", coupon))),
        html(
            target(LATEST_ORDER, ORDERED, must_include=[PRODUCTS[product].sku]),
            target(LATEST_ORDER, 'document.querySelector(".discount").outerText', exact_match=off),
        ),
    )


@template(
    "shopping", "Buy what is in my {which} once more.", pointers([n for n in MINE if n != LATEST])
)
def reorder(which: str, number: int) -> Solution:
    return Solution(
        (
            open_order(number),
            step("Reorder it", "The cart is shown", Click("Reorder")),
            check_out(),
        ),
        html(
            target(
                LATEST_ORDER,
                ORDERED,
                must_include=[line.product.sku for line in MINE[number].lines],
            )
        ),
    )


@template(
    "shopping", "Cancel my {which}.", pointers([n for n, o in MINE.items() if o.status in OPEN])
)
def cancel(which: str, number: int) -> Solution:
    return Solution(
        (open_order(number), step("Cancel it", "The order is canceled", Click("Cancel Order"))),
        html(
            target(
                f"__SHOPPING__/sales/order/view/order_id/{number}/",
                'document.querySelector(".order-status").outerText',
                exact_match="Canceled",
            )
        ),
    )


# ---- wish list and reviews ----


@template("shopping", "Add the {best} of {category} to my wish list.", BEST_OF)
def wish_best(best: str, category: str) -> Solution:
    name = first_of(best, category).name
    return Solution(
        (
            sort_category(best, category),
            step(
                f"Add {name} to the wish list",
                "It is on the wish list",
                Click(name),
                Click("Add to Wish List"),
            ),
        ),
        html(target("__SHOPPING__/wishlist/", WISHED, must_include=[name])),
    )


@template(
    "shopping",
    "Put the {new} on my wish list instead of the {old}.",
    [
        {"new": name, "old": WISHES[i % 4]}
        for i, name in enumerate(n for n in PRODUCTS if n not in WISHES)
    ],
)
def swap_wish(new: str, old: str) -> Solution:
    return Solution(
        (
            step(
                f"Remove {old}",
                "It is off the wish list",
                Click("Wish List"),
                Click(f"Remove {old}"),
                Click("Shop"),
            ),
            open_product(new),
            step(
                f"Add {new} to the wish list", "It is on the wish list", Click("Add to Wish List")
            ),
        ),
        html(
            target("__SHOPPING__/wishlist/", WISHED, must_include=[new]),
            target("__SHOPPING__/wishlist/", WISHED, must_exclude=[old]),
        ),
    )


@template(
    "shopping",
    "Review the {product}: {stars} out of 5, title {title}.",
    [
        {
            "product": name,
            "stars": (3, 1, 4, 2, 5)[i % 5],
            "title": ("Solid", "Poor", "Fine", "Cheap")[i % 4],
        }
        for i, name in enumerate(PRODUCTS)
    ],
)
def review(product: str, stars: int, title: str) -> Solution:
    return Solution(
        (open_product(product), submit_review(stars, title)),
        has_review(PRODUCTS[product], stars, title),
    )


@template(
    "shopping",
    "Review the product of my order {number}: {stars} out of 5, title {title}.",
    [
        {"number": n, "stars": stars, "title": title}
        for n, o in MINE.items()
        if len(o.lines) == 1
        for stars, title in ((2, "Loose"), (4, "Neat"))
    ],
)
def review_order(number: int, stars: int, title: str) -> Solution:
    p = MINE[number].lines[0].product
    return Solution(
        (
            open_order(number),
            step("Go home", "The home page is shown", Click("Shop")),
            open_product(p.name),
            submit_review(stars, title),
        ),
        has_review(p, stars, title),
    )


# ---- account and messages ----


@template(
    "shopping",
    "I moved to {street} in {city}: change my address.",
    [
        {"street": street, "city": city}
        for street in ("2 Oak Street", "5 Main Road", "9 Rose Lane")
        for city in ("Reno", "Utica", "Mesa", "Flint")
    ],
)
def move(street: str, city: str) -> Solution:
    return Solution(
        (
            step(
                "Open the address",
                "The form is shown",
                Click("My Account"),
                Click("Address Book"),
                Click("Edit Address"),
            ),
            step(
                "Save the new address",
                "The address is saved",
                Write("Street", street),
                Write("City", city),
                Click("Save Address"),
            ),
        ),
        url_and_html(
            "__SHOPPING__/customer/address/",
            target("__SHOPPING__/customer/address", SHIPPED_TO, must_include=[street, city]),
        ),
    )


@template(
    "shopping",
    "Subscribe me to the newsletter and change my phone to {phone}.",
    [{"phone": f"555-{300 + 7 * i}"} for i in range(12)],
)
def subscribe(phone: str) -> Solution:
    return Solution(
        (
            step(
                "Subscribe to the newsletter",
                "The newsletter is on",
                Click("My Account"),
                Click("Newsletter settings"),
                Click("Subscribe"),
                Click("Save"),
            ),
            step(
                f"Set the phone to {phone}",
                "The phone is saved",
                Click("Address Book"),
                Click("Edit Address"),
                Write("Phone", phone),
                Click("Save Address"),
            ),
        ),
        html(
            target("__SHOPPING__/newsletter/manage/", NEWS, exact_match="true"),
            target("__SHOPPING__/customer/address", SHIPPED_TO, must_include=[phone]),
        ),
    )


@template(
    "shopping",
    "Draft a refund message for my order {number} with its SKU and total in the contact form.",
    [{"number": n} for n, o in MINE.items() if len(o.lines) == 1],
)
def draft_refund(number: int) -> Solution:
    o = MINE[number]
    facts = [o.lines[0].product.sku, money(o.total).removeprefix("$")]
    draft = f"document.querySelector('[title=\"{MIND}\"]').value"
    return Solution(
        (
            open_order(number),
            step("Open the contact form", "The form is shown", Click("Shop"), Click("Contact Us")),
            step(
                "Write the message",
                "It holds SKU and total",
                Write(MIND, f"Refund {' '.join(facts)}"),
            ),
        ),
        url_and_html(
            "__SHOPPING__/contact/", target("last", draft, must_include=["Refund", *facts])
        ),
    )


# ---- held out ----


@template(
    "shopping",
    "Which costs more, the {a} or the {b}?",
    [{"a": a, "b": b} for a, b in zip(PRODUCTS, [*list(PRODUCTS)[5:], *list(PRODUCTS)[:5]])],
    held_out=True,
)
def dearer(a: str, b: str) -> Solution:
    more, less = sorted((a, b), key=lambda name: -PRODUCTS[name].price)
    return Solution(
        (
            open_product(a),
            step("Go home", "The home page is shown", Click("Shop")),
            open_product(b),
            step("Answer with the dearer one", "It is named", Answer(more)),
        ),
        string(must_include=[more], must_exclude=[less]),
    )


@template("shopping", "Buy the {best} of {category}.", BEST_OF, held_out=True)
def buy_best(best: str, category: str) -> Solution:
    p = first_of(best, category)
    return Solution(
        (
            sort_category(best, category),
            step(f"Open {p.name}", f"The page of {p.name} is shown", Click(p.name)),
            add_to_cart(),
            check_out(),
        ),
        html(target(LATEST_ORDER, ORDERED, must_include=[p.sku])),
    )


@template(
    "shopping",
    "Send the message {message} through the contact form.",
    [
        {"message": message}
        for message in (
            "Call me today",
            "Call me soon",
            "Write to me today",
            "Write to me soon",
            "Ship it today",
            "Ship it soon",
            "Send a bill",
            "Send a gift",
            "No more ads",
            "Thank you",
            "Well done",
            "Great shop",
        )
    ],
    held_out=True,
)
def contact(message: str) -> Solution:
    return Solution(
        (
            step("Open the contact form", "The form is shown", Click("Contact Us")),
            step("Send the message", "The message is sent", Write(MIND, message), Click("Submit")),
        ),
        url_and_html(
            "__SHOPPING__/contact/index/",
            target("last", 'document.querySelector(".message").outerText', exact_match=message),
        ),
    )


TEMPLATES = [
    price,
    sku,
    sort,
    reviews,
    reviewer,
    order_value,
    buy,
    use_coupon,
    reorder,
    cancel,
    wish_best,
    swap_wish,
    review,
    review_order,
    move,
    subscribe,
    draft_refund,
    dearer,
    buy_best,
    contact,
]
