"""The shop: browse, search, buy, review, and look after an account.

Paths and class names are those of Magento, the software of WebArena's shopping site, where its
evaluators look.
"""

from __future__ import annotations

from collections.abc import Iterable

from flask import Blueprint, abort, g, request
from markupsafe import Markup

from jhima.pocket.sites.page import (
    NAVIGATION,
    block,
    button,
    choice,
    columns,
    field,
    form,
    grid,
    link,
    option,
    options,
    page,
    pair,
    text,
    when,
)
from jhima.pocket.sites.store_data import (
    CATEGORIES,
    EMMA,
    OPEN,
    SHIPPING,
    SORTS,
    Order,
    Product,
    Review,
    day,
    money,
    number,
    rated,
)
from jhima.pocket.sites.visitor import (
    GET_AND_POST,
    find,
    go_to,
    here,
    login_page,
    require_login,
    typed,
)

site = Blueprint("shopping", __name__)
require_login(site)

NAVIGATION["shopping"] += [
    ("Search", "/catalogsearch/"),
    ("Cart", "/checkout/cart/"),
    ("My Account", "/customer/account/"),
    ("My Orders", "/sales/order/history/"),
    ("Wish List", "/wishlist/"),
    ("Contact Us", "/contact/"),
]
MOST = 99  # pieces of one product in a cart


@site.route("/customer/account/login/", methods=GET_AND_POST)
def login():
    password = field("Password", "password", kind="password")
    return login_page(field("Email", "user"), password, button("Sign In"))


@site.get("/")
def home():
    return page(
        "Welcome",
        *grid([link(name, f"/{name.lower()}.html") for name in CATEGORIES]),
        *(link(label, href) for label, href in NAVIGATION["shopping"]),
    )


# ---- the catalogue ----


def on_sale() -> dict[str, Product]:
    return {key: p for key, p in g.world.store.products.items() if p.enabled}


def product_link(p: Product) -> Markup:
    return link(p.name, f"/{p.key}.html")


def offers(products: Iterable[Product]) -> list[Markup]:
    return [columns(product_link(p), text(money(p.price))) for p in products]


@site.get("/<key>.html")
def catalog(key: str):
    """A category or a product: Magento gives both the same kind of address."""
    name = key.title()
    if name in CATEGORIES:
        return category(name)
    return product(find(on_sale(), key))


def category(name: str) -> str:
    products = g.world.listing((p for p in on_sale().values() if p.category == name), name)
    order, direction = request.args.get("product_list_order"), request.args.get("product_list_dir")
    query = f"product_list_order={order}&product_list_dir={direction}"
    title = name
    for label, value in SORTS.items():
        if value == query:
            title = f"{name}, {label.removesuffix(' first').lower()}"
            key = g.world.store.stars if order == "rating" else lambda p: p.price
            products.sort(key=key, reverse=direction == "desc")
    sorts = [link(label, f"/{name.lower()}.html?{value}") for label, value in SORTS.items()]
    return page(title, *sorts, *offers(products))


def product(p: Product) -> str:
    stars = g.world.store.stars(p)
    return page(
        p.name,
        pair("SKU", p.sku, "sku"),
        pair("Price", money(p.price), "price"),
        pair("Rating", f"{stars:.1f} stars" if stars else "none", "rating"),
        pair("Stock", f"{p.qty} pieces" if p.in_stock else "Out of stock", "stock"),
        text(p.description, "description"),
        form(
            "/checkout/cart/add/", field("Quantity", "qty", 1), button("Add to Cart"), product=p.key
        ),
        form("/wishlist/add/", button("Add to Wish List"), product=p.key),
        columns(
            link("Reviews", f"/review/product/list/id/{p.id}/"),
            link("Add review", f"/review/product/post/id/{p.id}/"),
        ),
    )


@site.get("/catalogsearch/")
def search():
    rows = (field("Product", "q"), button("Find"))
    return page("Search", form("/catalogsearch/result/", *rows, method="get"))


@site.get("/catalogsearch/result/")
def results():
    query = request.args.get("q", "").strip().lower()[:40]
    hits = [p for p in on_sale().values() if query in f"{p.name} {p.sku} {p.category}".lower()]
    return page("Results", *(offers(g.world.listing(hits, query)) or [text("Nothing found")]))


# ---- reviews ----


def product_by_id(number: int) -> Product:
    return find({p.id: p for p in on_sale().values()}, number)


@site.get("/review/product/list/id/<int:number>/")
def reviews(number: int):
    p = product_by_id(number)
    rows = []
    for r in g.world.store.approved(p):
        rows += [pair(r.nickname, rated(r.stars)), text(f"{r.title}. {r.detail}")]
    back = link(f"Back to {p.name}", f"/{p.key}.html")
    return page(f"Reviews of {p.name}", *(rows or [text("No reviews yet")]), back)


@site.route("/review/product/post/id/<int:number>/", methods=GET_AND_POST)
def post_review(number: int):
    p = product_by_id(number)
    ratings = [rated(stars) for stars in range(1, 6)]
    if request.method == "GET":
        return page(
            "Add review",
            form(
                here(),
                choice("rating", ratings),
                field("Title", "title"),
                field("Text", "detail"),
                button("Submit Review"),
            ),
        )
    if typed("rating") not in ratings:
        return go_to(here(), "Choose stars")
    new_id = max(g.world.store.reviews) + 1
    g.world.store.reviews[new_id] = Review(
        id=new_id,
        product=p.key,
        nickname="Emma",
        stars=ratings.index(typed("rating")) + 1,
        title=typed("title", 60),
        detail=typed("detail"),
        status="Pending",  # the shop shows it once the admin approves it
    )
    return go_to(f"/{p.key}.html", "Sent")


# ---- cart and checkout ----


@site.post("/checkout/cart/add/")
def add_to_cart():
    p = find(on_sale(), typed("product"))
    if not p.in_stock:
        return go_to(f"/{p.key}.html", "Out of stock")
    put_into_cart(p, int(number(typed("qty"), 1, MOST, 1)))
    return go_to("/checkout/cart/", "Added")


def put_into_cart(p: Product, count: int) -> None:
    cart = g.world.store.cart
    cart[p.key] = min(MOST, cart.get(p.key, 0) + count)


@site.post("/checkout/cart/delete/")
def remove_from_cart():
    g.world.store.cart.pop(typed("product"), None)
    return go_to("/checkout/cart/", "Removed")


def subtotal() -> float:
    return sum(g.world.store.products[key].price * n for key, n in g.world.store.cart.items())


@site.get("/checkout/cart/")
def cart():
    rows = []
    for key, count in g.world.store.cart.items():
        name = g.world.store.products[key].name
        remove = form("/checkout/cart/delete/", button(f"Remove {name}"), product=key)
        rows.append(columns(text(f"{count} x {name}"), remove))
    if not rows:
        return page("Cart", text("Your cart is empty"))
    return page(
        "Cart",
        *rows,
        pair("Subtotal", money(subtotal())),
        link("Proceed to Checkout", "/checkout/"),
    )


@site.route("/checkout/", methods=GET_AND_POST)
def checkout():
    store = g.world.store
    if not store.cart:
        return go_to("/checkout/cart/")
    if request.method == "GET":
        return page(
            "Checkout",
            pair("Subtotal", money(subtotal())),
            pair("Ship to", store.customers[EMMA].street),
            *(pair(name, money(cost)) for name, cost in SHIPPING.items()),
            form(
                "/checkout/",
                choice("shipping", [f"Use {name}" for name in SHIPPING], "Use Standard"),
                field("Coupon", "coupon"),
                button("Place Order"),
            ),
        )
    shipping, coupon = typed("shipping").removeprefix("Use "), typed("coupon", 20).upper()
    if shipping not in SHIPPING or (coupon and coupon not in store.coupons):
        return go_to("/checkout/", "Bad coupon")
    order = store.place_order(shipping, coupon)
    return go_to(f"/checkout/onepage/success/?order={order.number}")


@site.get("/checkout/onepage/success/")
def success():
    order = my_order(request.args.get("order", 0, int))
    return page(
        "Thank you",
        pair("Your order is", order.number),
        link("View order", order_path(order)),
    )


# ---- orders ----


def my_order(number: int) -> Order:
    order = find(g.world.store.orders, number)
    if order.customer != EMMA:
        abort(404)
    return order


def order_path(order: Order) -> str:
    return f"/sales/order/view/order_id/{order.number}/"


@site.get("/sales/order/history/")
def orders():
    mine = [o for o in g.world.store.orders.values() if o.customer == EMMA]
    return page(
        "My Orders",
        *(
            columns(link(f"Order {o.number}", order_path(o)), text(o.status))
            for o in reversed(mine)
        ),
    )


@site.get("/sales/order/view/order_id/<int:number>/")
def order(number: int):
    o = my_order(number)
    items = [pair(f"{line.qty} x {line.product.name}", line.product.sku) for line in o.lines]
    cancel = form("/sales/order/cancel/", button("Cancel Order"), order=o.number)
    return page(
        f"Order {o.number}",
        pair("Status", o.status, "order-status"),
        pair("Date", day(o.date), "order-date"),
        block("order-details-items ordered", *items),
        pair("Shipping", o.shipping, "shipping"),
        *when(o.discount, pair("Discount", money(o.discount), "discount")),
        pair("Total", money(o.total), "total"),
        form("/sales/order/reorder/", button("Reorder"), order=o.number),
        *when(o.status in OPEN, cancel),
    )


@site.post("/sales/order/cancel/")
def cancel_order():
    o = my_order(request.form.get("order", 0, int))
    if o.status in OPEN:
        o.status = "Canceled"
    return go_to(order_path(o))


@site.post("/sales/order/reorder/")
def reorder():
    shown = on_sale()
    for line in my_order(request.form.get("order", 0, int)).lines:
        if line.product.key in shown and line.product.in_stock:
            put_into_cart(line.product, line.qty)
    return go_to("/checkout/cart/", "Added")


# ---- wish list ----


@site.get("/wishlist/")
def wishlist():
    wished = [p for p in on_sale().values() if p.key in g.world.store.wishes]
    links = [product_link(p) for p in wished]
    removals = [
        form("/wishlist/remove/", button(f"Remove {p.name}"), product=p.key) for p in wished
    ]
    return page("Wish List", block("products-grid wishlist", *links), *grid(removals))


@site.post("/wishlist/add/")
def add_wish():
    p, wishes = find(on_sale(), typed("product")), g.world.store.wishes
    if p.key not in wishes:
        wishes.append(p.key)
    return go_to("/wishlist/", "Added")


@site.post("/wishlist/remove/")
def remove_wish():
    g.world.store.wishes = [key for key in g.world.store.wishes if key != typed("product")]
    return go_to("/wishlist/", "Removed")


# ---- account ----


@site.get("/customer/account/")
def account():
    emma = g.world.store.customers[EMMA]
    return page(
        "My Account",
        pair("Name", emma.name),
        pair("Email", emma.email),
        pair("Newsletter", "yes" if g.world.store.subscribed else "no"),
        link("Address Book", "/customer/address/"),
        link("Newsletter settings", "/newsletter/manage/"),
    )


@site.get("/customer/address/")
def address():
    emma = g.world.store.customers[EMMA]
    lines = [text(emma.street), text(f"{emma.city} {emma.postcode}"), pair("Phone", emma.phone)]
    return page(
        "Address Book",
        block("box box-address-shipping", block("box-content", *lines)),
        link("Edit Address", "/customer/address/edit/"),
    )


@site.route("/customer/address/edit/", methods=GET_AND_POST)
def edit_address():
    emma = g.world.store.customers[EMMA]
    if request.method == "GET":
        return page(
            "Edit Address",
            form(
                here(),
                field("Street", "street", emma.street),
                field("City", "city", emma.city),
                field("Zip", "postcode", emma.postcode),
                field("Phone", "telephone", emma.phone),
                button("Save Address"),
            ),
        )
    emma.street = typed("street", 40) or emma.street
    emma.city = typed("city", 40) or emma.city
    emma.postcode = typed("postcode", 12) or emma.postcode
    emma.phone = typed("telephone", 30) or emma.phone
    return go_to("/customer/address/", "Saved")


@site.route("/newsletter/manage/", methods=GET_AND_POST)
def newsletter():
    store = g.world.store
    if request.method == "POST":
        store.subscribed = "is_subscribed" in request.form
        return go_to("/customer/account/", "Saved")
    box = option(
        "checkbox",
        name="is_subscribed",
        value="1",
        label="Subscribe",
        checked=store.subscribed,
        title="General Subscription",
    )
    return page("Newsletter", form(here(), options(box), button("Save")))


@site.route("/contact/", methods=GET_AND_POST)
def contact():
    store = g.world.store
    if request.method == "POST":
        store.message = typed("comment", 400)
        return go_to("/contact/index/", "Sent")
    emma = store.customers[EMMA]
    return page(
        "Contact Us",
        pair("Store", store.name),
        pair("Phone", store.phone),
        pair("Open", store.hours),
        form(
            "/contact/",
            field("Name", "name", emma.name),
            field("Email", "email", emma.email),
            field("What’s on your mind?", "comment", kind="textarea"),
            button("Submit"),
        ),
    )


@site.get("/contact/index/")
def contact_sent():
    return page("Message", block("message", text(g.world.store.message)))
