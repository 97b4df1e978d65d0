"""The shop's back office: orders, products, customers, reviews, reports, coupons and the store's settings.

Paths, field names and ids are those of Magento's admin, where WebArena's evaluators look.
"""

from __future__ import annotations

from flask import Blueprint, g, redirect, request
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
    done,
    find,
    here,
    logged_in,
    login_page,
    login_required,
    try_login,
    typed,
)

site = Blueprint("shopping_admin", __name__)


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


def sign_in(error: str = "") -> str:
    return login_page(
        field("Username", "user", placeholder="user name"),
        field("Password", "password", kind="password", placeholder="password"),
        "Sign in",
        error,
    )


@site.route("/admin", methods=["GET", "POST"])
def admin():
    """Magento shows its login form at the address of the dashboard."""
    if request.method == "POST":
        return try_login(sign_in)
    return dashboard() if logged_in() else sign_in()


@site.get("/admin/dashboard/")
@login_required
def dashboard():
    newest = list(reversed(g.world.store.orders.values()))[:4]
    return page(
        "Dashboard",
        *grid([link(label, href) for label, href in NAVIGATION["shopping_admin"]]),
        *(pair("Best seller", f"{p.name}, {n} sold") for p, n in g.world.store.sold()[:1]),
        *(columns(order_link(o), text(o.status)) for o in newest),
    )


# ---- orders ----


def order_link(o: Order) -> Markup:
    return link(f"Order {o.number}", f"/admin/sales/order/view/order_id/{o.number}/")


@site.get("/admin/sales/order/")
@login_required
def orders():
    store, status = g.world.store, request.args.get("status")
    filters = grid([link(s, f"/admin/sales/order/?status={s}") for s in STATUSES])
    found = g.world.listing(store.orders.values(), "orders")
    if status not in STATUSES:
        return page("Orders", *filters, *grid([order_link(o) for o in found]))
    return page(
        f"{status} orders",
        *filters,
        block("admin__data-grid-filters-current", pair("Status", status)),
        *(
            columns(order_link(o), text(store.customers[o.customer].name))
            for o in found
            if o.status == status
        ),
    )


@site.get("/admin/sales/order/view/order_id/<int:number>/")
@login_required
def order(number: int):
    o = find(g.world.store.orders, number)
    act = (
        [
            columns(
                form("/admin/sales/order/cancel/", button("Cancel"), order=number),
                link("Ship", f"/admin/admin/order_shipment/new/order_id/{number}/"),
            )
        ]
        if o.status in OPEN
        else []
    )
    return page(
        f"Order {number}",
        pair("Status", Markup('<span id="order_status">{}</span>').format(o.status)),
        pair("Customer", g.world.store.customers[o.customer].name, "customer"),
        pair("Date", day(o.date), "date"),
        *(pair(f"{line.qty} x {line.product.name}", line.product.sku) for line in o.lines),
        pair("Total", money(o.total), "total"),
        *act,
        link("Add comment", f"/admin/sales/order/comment/order_id/{number}/"),
        block("comments", *(text(c) for c in o.comments)),
        notice=done(),
    )


@site.post("/admin/sales/order/cancel/")
@login_required
def cancel():
    o = find(g.world.store.orders, request.form.get("order", 0, int))
    if o.status in OPEN:
        o.status = "Canceled"
    return redirect(f"/admin/sales/order/view/order_id/{o.number}/", 303)


@site.route("/admin/admin/order_shipment/new/order_id/<int:number>/", methods=["GET", "POST"])
@login_required
def ship(number: int):
    o = find(g.world.store.orders, number)
    if request.method == "GET":
        return page(
            "Ship",
            form(
                here(),
                choice("carrier", CARRIERS, CARRIERS[0]),
                field("Tracking", "tracking"),
                button("Submit Shipment"),
            ),
        )
    if o.status in OPEN and typed("carrier") in CARRIERS:
        o.status = "Complete"
        o.comments.append(
            f"Tracking number {typed('tracking', 30)} for {typed('carrier')} assigned"
        )
    return redirect(f"/admin/sales/order/view/order_id/{number}/", 303)


@site.route("/admin/sales/order/comment/order_id/<int:number>/", methods=["GET", "POST"])
@login_required
def comment(number: int):
    o = find(g.world.store.orders, number)
    if request.method == "GET":
        return page(
            "Add comment",
            form(
                here(),
                choice("status", STATUSES, o.status),
                field("Comment", "comment"),
                button("Submit Comment"),
            ),
        )
    o.status = typed("status") if typed("status") in STATUSES else o.status
    o.comments += [typed("comment")] if typed("comment") else []
    return redirect(f"/admin/sales/order/view/order_id/{number}/?done=Saved", 303)


# ---- products ----


@site.get("/admin/catalog/product/")
@login_required
def products():
    shown = [
        link(p.name, f"/admin/catalog/product/edit/id/{p.id}/")
        for p in g.world.listing(g.world.store.products.values(), "products")
    ]
    return page("Products", *grid(shown), notice=done())


@site.route("/admin/catalog/product/edit/id/<int:number>/", methods=["GET", "POST"])
@login_required
def product(number: int):
    p = find({p.id: p for p in g.world.store.products.values()}, number)
    if request.method == "POST":
        save_product(p)
        return redirect("/admin/catalog/product/?done=Saved", 303)
    stock = "product[quantity_and_stock_status]"
    return page(
        f"Edit {p.name}",
        pair("SKU", p.sku),
        form(
            f"/admin/catalog/product/edit/id/{number}/",
            field("Name", "product[name]", p.name),
            field("Price", "product[price]", money(p.price)[1:]),
            field("Quantity", f"{stock}[qty]", p.qty),
            choice(
                f"{stock}[is_in_stock]",
                ["In stock", "Out of stock"],
                "In stock" if p.in_stock else "Out of stock",
            ),
            field("Text", "product[description]", p.description),
            choice(
                "product[status]", ["Enabled", "Disabled"], "Enabled" if p.enabled else "Disabled"
            ),
            button("Save"),
        ),
    )


def save_product(p: Product) -> None:
    stock = "product[quantity_and_stock_status]"
    p.name = typed("product[name]", 40) or p.name
    p.price = number(typed("product[price]"), 0, 1e5, p.price)
    p.qty = int(number(typed(f"{stock}[qty]"), 0, 1e5, p.qty))
    p.in_stock = typed(f"{stock}[is_in_stock]") == "In stock"
    p.description = typed("product[description]")
    p.enabled = typed("product[status]") == "Enabled"


# ---- customers ----


@site.get("/admin/customer/index/")
@login_required
def customers():
    shown = [
        columns(link(c.name, f"/admin/customer/index/edit/id/{c.id}/"), text(c.city))
        for c in g.world.listing(g.world.store.customers.values(), "customers")
    ]
    return page("Customers", *shown, notice=done())


@site.route("/admin/customer/index/edit/id/<int:number>/", methods=["GET", "POST"])
@login_required
def customer(number: int):
    c = find(g.world.store.customers, number)
    if request.method == "POST":
        c.email, c.phone = (
            typed("customer[email]", 60) or c.email,
            typed("customer[phone]", 30) or c.phone,
        )
        c.group = typed("customer[group_id]") if typed("customer[group_id]") in GROUPS else c.group
        return redirect("/admin/customer/index/?done=Saved", 303)
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


def review_list(status: str) -> str:
    found = g.world.listing(
        (r for r in g.world.store.reviews.values() if r.status == status), f"reviews/{status}"
    )
    return page(
        f"{status} reviews",
        *(link(caption(r), f"/admin/review/product/edit/id/{r.id}/") for r in found),
        link("All reviews", "/admin/review/product/index/"),
        notice=done(),
    )


def caption(r: Review) -> str:
    return f"{r.nickname} on {g.world.store.products[r.product].name}"


@site.get("/admin/review/product/pending/")
@login_required
def pending_reviews():
    return review_list("Pending")


@site.get("/admin/review/product/index/")
@login_required
def reviews():
    status = request.args.get("status")
    if status in VERDICTS:
        return review_list(status)
    counts = {s: sum(r.status == s for r in g.world.store.reviews.values()) for s in VERDICTS}
    return page(
        "All reviews",
        *(
            columns(link(s, f"/admin/review/product/index/?status={s}"), text(f"{n} reviews"))
            for s, n in counts.items()
        ),
    )


@site.route("/admin/review/product/edit/id/<int:number>/", methods=["GET", "POST"])
@login_required
def review(number: int):
    r = find(g.world.store.reviews, number)
    if request.method == "POST":
        r.status = typed("status_id") if typed("status_id") in VERDICTS else r.status
        return redirect("/admin/review/product/pending/?done=Saved", 303)
    return page(
        caption(r),
        pair("Rating", rated(r.stars)),
        pair("Title", r.title),
        text(r.detail, "detail"),
        form(here(), choice("status_id", VERDICTS, r.status), button("Save Review")),
    )


# ---- reports ----


@site.get("/admin/reports/report_sales/bestsellers/")
@login_required
def best_sellers():
    return page(
        "Best sellers",
        *(
            pair(f"{i}. {p.name}", f"{n} sold")
            for i, (p, n) in enumerate(g.world.store.sold()[:10], start=1)
        ),
    )


@site.get("/admin/reports/report_sales/sales/")
@login_required
def sales():
    """Sales by month; like Magento's report, without canceled orders."""
    chosen, months = request.args.get("month"), {}
    for o in sorted(g.world.store.orders.values(), key=lambda o: o.date):
        if o.status != "Canceled":
            months.setdefault(month(o.date), []).append(o)
    if chosen in months:
        kept = months[chosen]
        items = sum(line.qty for o in kept for line in o.lines)
        return page(
            f"Sales of {chosen}",
            pair("Orders", len(kept)),
            pair("Items", items),
            pair("Total", money(sum(o.total for o in kept))),
            *grid([order_link(o) for o in kept]),
        )
    return page(
        "Sales report",
        *(link(name, f"/admin/reports/report_sales/sales/?month={name}") for name in months),
    )


# ---- coupons and settings ----


@site.get("/admin/sales_rule/promo_quote/")
@login_required
def coupons():
    codes, delete = g.world.store.coupons, "/admin/sales_rule/promo_quote/delete/"
    return page(
        "Coupons",
        link("Add coupon", "/admin/sales_rule/promo_quote/new/"),
        block("coupons", *(pair(code, f"{percent}% off") for code, percent in codes.items())),
        *grid([form(delete, button(f"Delete {code}"), code=code) for code in codes]),
        notice=done(),
    )


@site.route("/admin/sales_rule/promo_quote/new/", methods=["GET", "POST"])
@login_required
def new_coupon():
    if request.method == "GET":
        return page(
            "Add coupon",
            form(
                here(),
                field("Code", "coupon_code"),
                field("Percent", "discount_amount"),
                button("Save Coupon"),
            ),
            notice=done(),
        )
    code, percent = (
        typed("coupon_code", 20).upper(),
        int(number(typed("discount_amount").rstrip("%"), 1, 100, 0)),
    )
    if not (code and percent):
        return redirect(f"{here()}?done=Not valid", 303)
    g.world.store.coupons[code] = percent
    return redirect("/admin/sales_rule/promo_quote/?done=Saved", 303)


@site.post("/admin/sales_rule/promo_quote/delete/")
@login_required
def delete_coupon():
    g.world.store.coupons.pop(typed("code"), None)
    return redirect("/admin/sales_rule/promo_quote/?done=Deleted", 303)


@site.route("/admin/admin/system_config/edit/section/general/", methods=["GET", "POST"])
@login_required
def settings():
    store = g.world.store
    if request.method == "POST":
        store.name, store.phone = (
            typed("store_name", 40) or store.name,
            typed("store_phone", 30) or store.phone,
        )
        store.hours = typed("store_hours", 30) or store.hours
        return redirect(f"{here()}?done=Saved", 303)
    return page(
        "Settings",
        form(
            here(),
            field("Store name", "store_name", store.name),
            field("Phone", "store_phone", store.phone),
            field("Hours", "store_hours", store.hours),
            button("Save Config"),
        ),
        notice=done(),
    )
