"""The shop's back office: orders, products, customers, reviews, reports, coupons and settings.

Paths, field names and ids are those of Magento's admin, where WebArena's evaluators look.
"""

from __future__ import annotations

from flask import Blueprint, g, request
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
    page,
    pair,
    text,
    when,
)
from jhima.pocket.sites.store_data import (
    CARRIERS,
    GROUPS,
    OPEN,
    STATUSES,
    VERDICTS,
    Order,
    Product,
    Review,
    day,
    money,
    month,
    number,
    rated,
)
from jhima.pocket.sites.visitor import (
    GET_AND_POST,
    find,
    go_to,
    here,
    logged_in,
    login_page,
    one_of,
    require_login,
    typed,
)

site = Blueprint("shopping_admin", __name__)
require_login(site)

NAVIGATION["shopping_admin"] += [
    ("Orders", "/admin/sales/order/"),
    ("Products", "/admin/catalog/product/"),
    ("Customers", "/admin/customer/index/"),
    ("Reviews", "/admin/review/product/pending/"),
    ("Best sellers", "/admin/reports/report_sales/bestsellers/"),
    ("Sales report", "/admin/reports/report_sales/sales/"),
    ("Coupons", "/admin/sales_rule/promo_quote/"),
    ("Settings", "/admin/admin/system_config/edit/section/general/"),
]


@site.route("/admin", methods=GET_AND_POST)
def login():
    """Magento shows its login form at the address of the dashboard."""
    if request.method == "GET" and logged_in():
        return dashboard()
    return login_page(
        field("Username", "user", placeholder="user name"),
        field("Password", "password", kind="password", placeholder="password"),
        button("Sign in"),
    )


@site.get("/admin/dashboard/")
def dashboard():
    newest = list(reversed(g.world.store.orders.values()))[:4]
    return page(
        "Dashboard",
        *grid([link(label, href) for label, href in NAVIGATION["shopping_admin"]]),
        *(pair("Best seller", f"{p.name}, {count} sold") for p, count in g.world.store.sold()[:1]),
        *(columns(order_link(o), text(o.status)) for o in newest),
    )


# ---- orders ----


def order_path(number: int) -> str:
    return f"/admin/sales/order/view/order_id/{number}/"


def order_link(o: Order) -> Markup:
    return link(f"Order {o.number}", order_path(o.number))


@site.get("/admin/sales/order/")
def orders():
    store, status = g.world.store, request.args.get("status")
    filters = grid([link(s, f"/admin/sales/order/?status={s}") for s in STATUSES])
    listed = g.world.listing(store.orders.values(), "orders")
    if status not in STATUSES:
        return page("Orders", *filters, *grid([order_link(o) for o in listed]))
    return page(
        f"{status} orders",
        *filters,
        block("admin__data-grid-filters-current", pair("Status", status)),
        *(
            columns(order_link(o), text(store.customers[o.customer].name))
            for o in listed
            if o.status == status
        ),
    )


@site.get("/admin/sales/order/view/order_id/<int:number>/")
def order(number: int):
    o = find(g.world.store.orders, number)
    actions = columns(
        form("/admin/sales/order/cancel/", button("Cancel"), order=number),
        link("Ship", f"/admin/admin/order_shipment/new/order_id/{number}/"),
    )
    return page(
        f"Order {number}",
        pair("Status", Markup('<span id="order_status">{}</span>').format(o.status)),
        pair("Customer", g.world.store.customers[o.customer].name, "customer"),
        pair("Date", day(o.date), "date"),
        *(pair(f"{line.qty} x {line.product.name}", line.product.sku) for line in o.lines),
        pair("Total", money(o.total), "total"),
        *when(o.status in OPEN, actions),
        link("Add comment", f"/admin/sales/order/comment/order_id/{number}/"),
        block("comments", *(text(c) for c in o.comments)),
    )


@site.post("/admin/sales/order/cancel/")
def cancel():
    o = find(g.world.store.orders, request.form.get("order", 0, int))
    if o.status in OPEN:
        o.status = "Canceled"
    return go_to(order_path(o.number))


@site.route("/admin/admin/order_shipment/new/order_id/<int:number>/", methods=GET_AND_POST)
def ship(number: int):
    o = find(g.world.store.orders, number)
    if request.method == "GET":
        carriers = choice("carrier", CARRIERS, CARRIERS[0])
        rows = (carriers, field("Tracking", "tracking"), button("Submit Shipment"))
        return page("Ship", form(here(), *rows))
    if o.status in OPEN and typed("carrier") in CARRIERS:
        o.status = "Complete"
        tracking = typed("tracking", 30)
        o.comments.append(f"Tracking number {tracking} for {typed('carrier')} assigned")
    return go_to(order_path(number))


@site.route("/admin/sales/order/comment/order_id/<int:number>/", methods=GET_AND_POST)
def comment(number: int):
    o = find(g.world.store.orders, number)
    if request.method == "GET":
        statuses = choice("status", STATUSES, o.status)
        rows = (statuses, field("Comment", "comment"), button("Submit Comment"))
        return page("Add comment", form(here(), *rows))
    o.status = one_of("status", STATUSES, o.status)
    if typed("comment"):
        o.comments.append(typed("comment"))
    return go_to(order_path(number), "Saved")


# ---- products ----

STOCK = "product[quantity_and_stock_status]"


@site.get("/admin/catalog/product/")
def products():
    listed = g.world.listing(g.world.store.products.values(), "products")
    links = [link(p.name, f"/admin/catalog/product/edit/id/{p.id}/") for p in listed]
    return page("Products", *grid(links))


@site.route("/admin/catalog/product/edit/id/<int:number>/", methods=GET_AND_POST)
def product(number: int):
    p = find({p.id: p for p in g.world.store.products.values()}, number)
    if request.method == "POST":
        save_product(p)
        return go_to("/admin/catalog/product/", "Saved")
    stock = "In stock" if p.in_stock else "Out of stock"
    status = "Enabled" if p.enabled else "Disabled"
    return page(
        f"Edit {p.name}",
        pair("SKU", p.sku),
        form(
            here(),
            field("Name", "product[name]", p.name),
            field("Price", "product[price]", money(p.price)[1:]),
            field("Quantity", f"{STOCK}[qty]", p.qty),
            choice(f"{STOCK}[is_in_stock]", ["In stock", "Out of stock"], stock),
            field("Text", "product[description]", p.description),
            choice("product[status]", ["Enabled", "Disabled"], status),
            button("Save"),
        ),
    )


def save_product(p: Product) -> None:
    p.name = typed("product[name]", 40) or p.name
    p.price = number(typed("product[price]"), 0, 1e5, p.price)
    p.qty = int(number(typed(f"{STOCK}[qty]"), 0, 1e5, p.qty))
    p.in_stock = typed(f"{STOCK}[is_in_stock]") == "In stock"
    p.description = typed("product[description]")
    p.enabled = typed("product[status]") == "Enabled"


# ---- customers ----


@site.get("/admin/customer/index/")
def customers():
    listed = g.world.listing(g.world.store.customers.values(), "customers")
    return page(
        "Customers",
        *(
            columns(link(c.name, f"/admin/customer/index/edit/id/{c.id}/"), text(c.city))
            for c in listed
        ),
    )


@site.route("/admin/customer/index/edit/id/<int:number>/", methods=GET_AND_POST)
def customer(number: int):
    c = find(g.world.store.customers, number)
    if request.method == "POST":
        c.email = typed("customer[email]", 60) or c.email
        c.phone = typed("customer[phone]", 30) or c.phone
        c.group = one_of("customer[group_id]", GROUPS, c.group)
        return go_to("/admin/customer/index/", "Saved")
    orders = sum(o.customer == number for o in g.world.store.orders.values())
    return page(
        c.name,
        form(
            here(),
            field("Email", "customer[email]", c.email),
            field("Phone", "customer[phone]", c.phone),
            choice("customer[group_id]", GROUPS, c.group),
            button("Save Customer"),
        ),
        pair("Street", c.street),
        pair("City", f"{c.city} {c.postcode}"),
        pair("Orders", orders),
    )


# ---- reviews ----


def reviews_with(status: str) -> list[Review]:
    return [r for r in g.world.store.reviews.values() if r.status == status]


def review_list(status: str) -> str:
    listed = g.world.listing(reviews_with(status), f"reviews/{status}")
    return page(
        f"{status} reviews",
        *(link(caption(r), f"/admin/review/product/edit/id/{r.id}/") for r in listed),
        link("All reviews", "/admin/review/product/index/"),
    )


def caption(r: Review) -> str:
    return f"{r.nickname} on {g.world.store.products[r.product].name}"


@site.get("/admin/review/product/pending/")
def pending_reviews():
    return review_list("Pending")


@site.get("/admin/review/product/index/")
def reviews():
    status = request.args.get("status")
    if status in VERDICTS:
        return review_list(status)
    rows = []
    for verdict in VERDICTS:
        count = text(f"{len(reviews_with(verdict))} reviews")
        rows.append(columns(link(verdict, f"/admin/review/product/index/?status={verdict}"), count))
    return page("All reviews", *rows)


@site.route("/admin/review/product/edit/id/<int:number>/", methods=GET_AND_POST)
def review(number: int):
    r = find(g.world.store.reviews, number)
    if request.method == "POST":
        r.status = one_of("status_id", VERDICTS, r.status)
        return go_to("/admin/review/product/pending/", "Saved")
    return page(
        caption(r),
        pair("Rating", rated(r.stars)),
        pair("Title", r.title),
        text(r.detail, "detail"),
        form(here(), choice("status_id", VERDICTS, r.status), button("Save Review")),
    )


# ---- reports ----


@site.get("/admin/reports/report_sales/bestsellers/")
def best_sellers():
    ranks = enumerate(g.world.store.sold()[:10], start=1)
    return page(
        "Best sellers",
        *(pair(f"{rank}. {p.name}", f"{count} sold") for rank, (p, count) in ranks),
    )


@site.get("/admin/reports/report_sales/sales/")
def sales():
    """Sales by month; like Magento's report, without canceled orders."""
    months: dict[str, list[Order]] = {}
    for o in sorted(g.world.store.orders.values(), key=lambda o: o.date):
        if o.status != "Canceled":
            months.setdefault(month(o.date), []).append(o)
    chosen = request.args.get("month")
    if chosen not in months:
        links = [link(name, f"{here()}?month={name}") for name in months]
        return page("Sales report", *links)
    orders = months[chosen]
    return page(
        f"Sales of {chosen}",
        pair("Orders", len(orders)),
        pair("Items", sum(o.pieces for o in orders)),
        pair("Total", money(sum(o.total for o in orders))),
        *grid([order_link(o) for o in orders]),
    )


# ---- coupons and settings ----


@site.get("/admin/sales_rule/promo_quote/")
def coupons():
    codes, delete = g.world.store.coupons, "/admin/sales_rule/promo_quote/delete/"
    return page(
        "Coupons",
        link("Add coupon", "/admin/sales_rule/promo_quote/new/"),
        block("coupons", *(pair(code, f"{percent}% off") for code, percent in codes.items())),
        *grid([form(delete, button(f"Delete {code}"), code=code) for code in codes]),
    )


@site.route("/admin/sales_rule/promo_quote/new/", methods=GET_AND_POST)
def new_coupon():
    if request.method == "GET":
        fields = (field("Code", "coupon_code"), field("Percent", "discount_amount"))
        return page("Add coupon", form(here(), *fields, button("Save Coupon")))
    code = typed("coupon_code", 20).upper()
    percent = int(number(typed("discount_amount").rstrip("%"), 1, 100, 0))
    if not (code and percent):
        return go_to(here(), "Not valid")
    g.world.store.coupons[code] = percent
    return go_to("/admin/sales_rule/promo_quote/", "Saved")


@site.post("/admin/sales_rule/promo_quote/delete/")
def delete_coupon():
    g.world.store.coupons.pop(typed("code"), None)
    return go_to("/admin/sales_rule/promo_quote/", "Deleted")


@site.route("/admin/admin/system_config/edit/section/general/", methods=GET_AND_POST)
def settings():
    store = g.world.store
    if request.method == "POST":
        store.name = typed("store_name", 40) or store.name
        store.phone = typed("store_phone", 30) or store.phone
        store.hours = typed("store_hours", 30) or store.hours
        return go_to(here(), "Saved")
    return page(
        "Settings",
        form(
            here(),
            field("Store name", "store_name", store.name),
            field("Phone", "store_phone", store.phone),
            field("Hours", "store_hours", store.hours),
            button("Save Config"),
        ),
    )
