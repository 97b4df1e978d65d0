"""Task templates of the shop."""

from __future__ import annotations

from functools import partial
from itertools import product as pairs

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
from jhima.pocket.tasks import intents
from jhima.pocket.tasks.intents import (
    Answer,
    Move,
    Solution,
    Subtask,
    Write,
    answer,
    html,
    one_each,
    search,
    solution,
    step,
    string,
    string_and_url,
    target,
    url,
    url_and_html,
)

template = partial(intents.template, "shopping")

STORE = fresh(full=False)
PRODUCTS = {p.name: p for p in STORE.products.values()}
NAMES = list(PRODUCTS)
ALL = one_each("product", NAMES)
MY_ORDERS = {o.number: o for o in STORE.orders.values() if o.customer == EMMA}
ONE_PRODUCT_ORDERS = [number for number, o in MY_ORDERS.items() if len(o.lines) == 1]
LATEST = max(STORE.orders)  # before the shopper does anything
APPROVED = [r for r in STORE.reviews.values() if r.status == "Approved"]
WISHES = [STORE.products[key].name for key in STORE.wishes]
# How a task names the best product of a category, and the sorting that shows it first.
BEST = dict(zip(("cheapest", "dearest", "best rated"), SORTS))
BEST_OF = [{"best": best, "category": category} for best, category in pairs(BEST, CATEGORIES)]

LATEST_ORDER = "func:shopping_get_latest_order_url()"
ORDERED = 'document.querySelector(".order-details-items.ordered").outerText'
SHIPPED_TO = 'document.querySelector(".box.box-address-shipping > .box-content").outerText'
NEWS = "document.querySelector('[title=\"General Subscription\"]').checked.toString()"
WISHED = 'document.querySelector(".products-grid.wishlist").outerText'
MIND = "What’s on your mind?"


def two_names_each(numbers: list[int]) -> list[dict]:
    """Two ways to name each order: by its number and by its first product."""
    by_number = [{"which": f"order {n}", "number": n} for n in numbers]
    first = {n: MY_ORDERS[n].lines[0].product.name for n in numbers}
    return by_number + [{"which": f"order of the {first[n]}", "number": n} for n in numbers]


def first_of(best: str, category: str) -> Product:
    products = [p for p in PRODUCTS.values() if p.category == category]
    if best == "best rated":
        return max(products, key=STORE.stars)
    choose = {"cheapest": min, "dearest": max}[best]
    return choose(products, key=lambda p: p.price)


# ---- parts of plans ----

GO_HOME = step("Go home", "The home page is shown", "Shop")
ADD_TO_CART = step("Add to the cart", "The cart is shown", "Add to Cart")
OPEN_REVIEWS = step("Open the reviews", "The reviews are shown", "Reviews")


def open_product(name: str) -> Subtask:
    return step(f"Open {name}", f"The page of {name} is shown", PRODUCTS[name].category, name)


def sort_category(best: str, category: str) -> Subtask:
    goal = f"The {best} of {category} comes first"
    return step(f"Sort {category}, {best}", goal, category, BEST[best])


def open_order(number: int) -> Subtask:
    goal = f"The page of order {number} is shown"
    return step(f"Open order {number}", goal, "My Orders", f"Order {number}")


def check_out(*moves: Move) -> Subtask:
    all_moves = ("Proceed to Checkout", *moves, "Place Order")
    return step("Place the order", "The order is placed", *all_moves)


def add_to_wishes(name: str, *moves: Move | str) -> Subtask:
    title, goal = f"Add {name} to the wish list", "It is on the wish list"
    return step(title, goal, *moves, "Add to Wish List")


def submit_review(stars: int, title: str) -> Subtask:
    moves = ("Add review", rated(stars), Write("Title", title), "Submit Review")
    return step(f"Review it with {rated(stars)}", "The review is sent", *moves)


# ---- what a page holds afterwards ----


def has_review(product: Product, stars: int, title: str) -> dict:
    page = f"__SHOPPING__/{product.key}.html"
    rating = f"func:shopping_get_sku_latest_review_rating('{product.sku}')"
    heading = f"func:shopping_get_sku_latest_review_title('{product.sku}')"
    return html(
        target(page, rating, must_include=[str(20 * stars)]),
        target(page, heading, exact_match=title),
    )


def bought(*contents: str) -> dict:
    return target(LATEST_ORDER, ORDERED, must_include=list(contents))


# ---- look up ----


@template("What is the price of the {product}?", ALL)
def price(product: str) -> Solution:
    amount = money(PRODUCTS[product].price)
    return solution(
        open_product(product),
        answer("price", amount),
        eval=string(must_include=[amount.removeprefix("$")]),
    )


@template("Find the {product} with the search and tell me its SKU.", ALL)
def sku(product: str) -> Solution:
    p = PRODUCTS[product]
    return solution(
        search("Product", product),
        step("Answer with the SKU", "The SKU is given", product, Answer(p.sku)),
        eval=string_and_url(f"__SHOPPING__/{p.key}.html", exact_match=p.sku),
    )


@template("List the {category} products, the {best} first.", BEST_OF)
def sort(best: str, category: str) -> Solution:
    address = f"__SHOPPING__/{category.lower()}.html?{SORTS[BEST[best]]}"
    return solution(sort_category(best, category), eval=url(address, exact=True))


@template("Show me the reviews of the {product}.", ALL)
def reviews(product: str) -> Solution:
    address = f"__SHOPPING__/review/product/list/id/{PRODUCTS[product].id}/"
    return solution(open_product(product), OPEN_REVIEWS, eval=url(address))


@template(
    "Who rated the {product} {stars} out of 5?",
    [{"product": STORE.products[r.product].name, "stars": r.stars} for r in APPROVED],
)
def reviewer(product: str, stars: int) -> Solution:
    key = PRODUCTS[product].key
    names = {r.stars: r.nickname for r in APPROVED if r.product == key}
    others = [name for mark, name in names.items() if mark != stars]
    return solution(
        open_product(product),
        OPEN_REVIEWS,
        step("Answer with the name", "The reviewer is named", Answer(names[stars])),
        eval=string(must_include=[names[stars]], must_exclude=others),
    )


@template(
    "What is the {what} of my order {number}?",
    [{"what": what, "number": n} for n, what in pairs(MY_ORDERS, ("status", "total", "date"))],
)
def order_value(what: str, number: int) -> Solution:
    o = MY_ORDERS[number]
    value = {"status": o.status, "total": money(o.total), "date": day(o.date)}[what]
    if what == "total":
        entry = string(must_include=[value.removeprefix("$")])
    else:
        entry = string(fuzzy_match=[value])
    return solution(open_order(number), answer(what, value), eval=entry)


# ---- buy ----


@template(
    "Buy {qty} of the {product}.",
    [{"qty": 2 + i % 4, "product": name} for i, name in enumerate(NAMES) if name != "Helmet"],
)
def buy(qty: int, product: str) -> Solution:
    moves = (Write("Quantity", str(qty)), "Add to Cart")
    return solution(
        open_product(product),
        step(f"Add {qty} to the cart", "The cart is shown", *moves),
        check_out(),
        eval=html(bought(PRODUCTS[product].sku, f"{qty} x {product}")),
    )


@template(
    "Buy the {product} with the coupon {coupon}.",
    [{"product": name, "coupon": list(STORE.coupons)[i % 3]} for i, name in enumerate(NAMES)],
)
def use_coupon(product: str, coupon: str) -> Solution:
    p = PRODUCTS[product]
    discount = 'document.querySelector(".discount").outerText'
    off = money(p.price * STORE.coupons[coupon] / 100)
    return solution(
        open_product(product),
        ADD_TO_CART,
        check_out(Write("Coupon", coupon)),
        eval=html(bought(p.sku), target(LATEST_ORDER, discount, exact_match=off)),
    )


@template(
    "Buy what is in my {which} once more.", two_names_each([n for n in MY_ORDERS if n != LATEST])
)
def reorder(which: str, number: int) -> Solution:
    return solution(
        open_order(number),
        step("Reorder it", "The cart is shown", "Reorder"),
        check_out(),
        eval=html(bought(*(line.product.sku for line in MY_ORDERS[number].lines))),
    )


@template(
    "Cancel my {which}.",
    two_names_each([number for number, o in MY_ORDERS.items() if o.status in OPEN]),
)
def cancel(which: str, number: int) -> Solution:
    page = f"__SHOPPING__/sales/order/view/order_id/{number}/"
    status = 'document.querySelector(".order-status").outerText'
    return solution(
        open_order(number),
        step("Cancel it", "The order is canceled", "Cancel Order"),
        eval=html(target(page, status, exact_match="Canceled")),
    )


# ---- wish list and reviews ----


@template("Add the {best} of {category} to my wish list.", BEST_OF)
def wish_best(best: str, category: str) -> Solution:
    name = first_of(best, category).name
    return solution(
        sort_category(best, category),
        add_to_wishes(name, name),
        eval=html(target("__SHOPPING__/wishlist/", WISHED, must_include=[name])),
    )


UNWISHED = [name for name in NAMES if name not in WISHES]


@template(
    "Put the {new} on my wish list instead of the {old}.",
    [{"new": name, "old": WISHES[i % 4]} for i, name in enumerate(UNWISHED)],
)
def swap_wish(new: str, old: str) -> Solution:
    moves = ("Wish List", f"Remove {old}", "Shop")
    return solution(
        step(f"Remove {old}", "It is off the wish list", *moves),
        open_product(new),
        add_to_wishes(new),
        eval=html(
            target("__SHOPPING__/wishlist/", WISHED, must_include=[new]),
            target("__SHOPPING__/wishlist/", WISHED, must_exclude=[old]),
        ),
    )


STARS = (3, 1, 4, 2, 5)
HEADINGS = ("Solid", "Poor", "Fine", "Cheap")


@template(
    "Review the {product}: {stars} out of 5, title {title}.",
    [
        {"product": name, "stars": STARS[i % 5], "title": HEADINGS[i % 4]}
        for i, name in enumerate(NAMES)
    ],
)
def review(product: str, stars: int, title: str) -> Solution:
    return solution(
        open_product(product),
        submit_review(stars, title),
        eval=has_review(PRODUCTS[product], stars, title),
    )


@template(
    "Review the product of my order {number}: {stars} out of 5, title {title}.",
    [
        {"number": number, "stars": stars, "title": title}
        for number, (stars, title) in pairs(ONE_PRODUCT_ORDERS, ((2, "Loose"), (4, "Neat")))
    ],
)
def review_order(number: int, stars: int, title: str) -> Solution:
    p = MY_ORDERS[number].lines[0].product
    return solution(
        open_order(number),
        GO_HOME,
        open_product(p.name),
        submit_review(stars, title),
        eval=has_review(p, stars, title),
    )


# ---- account and messages ----

STREETS = ("2 Oak Street", "5 Main Road", "9 Rose Lane")
CITIES = ("Reno", "Utica", "Mesa", "Flint")


@template(
    "I moved to {street} in {city}: change my address.",
    [{"street": street, "city": city} for street, city in pairs(STREETS, CITIES)],
)
def move(street: str, city: str) -> Solution:
    way = ("My Account", "Address Book", "Edit Address")
    entries = (Write("Street", street), Write("City", city))
    return solution(
        step("Open the address", "The form is shown", *way),
        step("Save the new address", "The address is saved", *entries, "Save Address"),
        eval=url_and_html(
            "__SHOPPING__/customer/address/",
            target("__SHOPPING__/customer/address", SHIPPED_TO, must_include=[street, city]),
        ),
    )


@template(
    "Subscribe me to the newsletter and change my phone to {phone}.",
    one_each("phone", [f"555-{300 + 7 * i}" for i in range(12)]),
)
def subscribe(phone: str) -> Solution:
    switch = ("My Account", "Newsletter settings", "Subscribe", "Save")
    edit = ("Address Book", "Edit Address", Write("Phone", phone), "Save Address")
    return solution(
        step("Subscribe to the newsletter", "The newsletter is on", *switch),
        step(f"Set the phone to {phone}", "The phone is saved", *edit),
        eval=html(
            target("__SHOPPING__/newsletter/manage/", NEWS, exact_match="true"),
            target("__SHOPPING__/customer/address", SHIPPED_TO, must_include=[phone]),
        ),
    )


@template(
    "Draft a refund message for my order {number} with its SKU and total in the contact form.",
    one_each("number", ONE_PRODUCT_ORDERS),
)
def draft_refund(number: int) -> Solution:
    o = MY_ORDERS[number]
    facts = [o.lines[0].product.sku, money(o.total).removeprefix("$")]
    message = Write(MIND, f"Refund {' '.join(facts)}")
    draft = f"document.querySelector('[title=\"{MIND}\"]').value"
    return solution(
        open_order(number),
        step("Open the contact form", "The form is shown", "Shop", "Contact Us"),
        step("Write the message", "It holds SKU and total", message),
        eval=url_and_html(
            "__SHOPPING__/contact/", target("last", draft, must_include=["Refund", *facts])
        ),
    )


# ---- held out ----


@template(
    "Which costs more, the {a} or the {b}?",
    [{"a": a, "b": b} for a, b in zip(NAMES, NAMES[5:] + NAMES[:5])],
    held_out=True,
)
def dearer(a: str, b: str) -> Solution:
    more, less = sorted((a, b), key=lambda name: -PRODUCTS[name].price)
    return solution(
        open_product(a),
        GO_HOME,
        open_product(b),
        step("Answer with the dearer one", "It is named", Answer(more)),
        eval=string(must_include=[more], must_exclude=[less]),
    )


@template("Buy the {best} of {category}.", BEST_OF, held_out=True)
def buy_best(best: str, category: str) -> Solution:
    p = first_of(best, category)
    return solution(
        sort_category(best, category),
        step(f"Open {p.name}", f"The page of {p.name} is shown", p.name),
        ADD_TO_CART,
        check_out(),
        eval=html(bought(p.sku)),
    )


# fmt: off
MESSAGES = [
    "Call me today", "Call me soon", "Write to me today", "Write to me soon",
    "Ship it today", "Ship it soon", "Send a bill", "Send a gift",
    "No more ads", "Thank you", "Well done", "Great shop",
]
# fmt: on


@template(
    "Send the message {message} through the contact form.",
    one_each("message", MESSAGES),
    held_out=True,
)
def contact(message: str) -> Solution:
    received = 'document.querySelector(".message").outerText'
    return solution(
        step("Open the contact form", "The form is shown", "Contact Us"),
        step("Send the message", "The message is sent", Write(MIND, message), "Submit"),
        eval=url_and_html(
            "__SHOPPING__/contact/index/", target("last", received, exact_match=message)
        ),
    )
