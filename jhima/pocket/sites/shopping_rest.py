"""The part of Magento's REST API that WebArena's evaluators call: newest order, product, reviews.

A bearer token of the admin account stands in for the login cookie.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from flask import Blueprint, g, jsonify, request

from jhima.pocket.sites.store_data import Product
from jhima.pocket.sites.visitor import find

rest = Blueprint("rest", __name__)


def token_required(view: Callable) -> Callable:
    @wraps(view)
    def guarded(*args: object, **kwargs: object):
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if g.world.sessions.get(token) != "shopping_admin":
            return jsonify(message="The consumer isn't authorized to access this resource."), 401
        return view(*args, **kwargs)

    return guarded


@rest.post("/rest/default/V1/integration/admin/token")
def rest_token():
    account = request.get_json(silent=True)
    if not isinstance(account, dict):
        account = {}
    token = g.world.log_in("shopping_admin", account.get("username"), account.get("password"))
    if token is None:
        return jsonify(message="The account sign-in was incorrect."), 401
    return jsonify(token)


@rest.get("/rest/V1/orders")
@token_required
def rest_orders():
    query = request.args
    falling = query.get("searchCriteria[sortOrders][0][direction]", "DESC").upper() == "DESC"
    orders = list(g.world.store.orders.values())
    orders.sort(key=lambda o: (o.date, o.number), reverse=falling)
    size = query.get("searchCriteria[pageSize]", len(orders), int)
    items = [
        {
            "increment_id": f"{o.number:09d}",
            "entity_id": o.number,
            "created_at": f"{o.date} 12:00:00",
            "status": o.status.lower(),
            "grand_total": o.total,
        }
        for o in orders[:size]
    ]
    return jsonify(items=items, total_count=len(orders))


def product_by_sku(sku: str) -> Product:
    return find({p.sku: p for p in g.world.store.products.values()}, sku)


@rest.get("/rest/V1/products/<sku>")
@token_required
def rest_product(sku: str):
    p = product_by_sku(sku)
    attributes = [{"attribute_code": "url_key", "value": p.key}]
    return jsonify(sku=p.sku, name=p.name, price=p.price, custom_attributes=attributes)


@rest.get("/rest/V1/products/<sku>/reviews")
@token_required
def rest_reviews(sku: str):
    key = product_by_sku(sku).key
    reviews = [
        {
            "id": r.id,
            "nickname": r.nickname,
            "title": r.title,
            "detail": r.detail,
            "ratings": [{"percent": 20 * r.stars, "value": r.stars}],
        }
        for r in g.world.store.reviews.values()
        if r.product == key
    ]
    return jsonify(reviews)
