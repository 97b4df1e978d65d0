"""Data of the shop and of its back office: one Store, seen through two sites.

The clock stands still at TODAY, so that "the latest order" and every report read the same in
each world. Money is in dollars.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TODAY = "2023-06-12"
EMMA = 1  # the customer that the shopping site is logged in as
CATEGORIES = ("Kitchen", "Garden", "Tools", "Sport")
STATUSES = ("Pending", "Processing", "Complete", "Canceled")
OPEN = ("Pending", "Processing")  # an order with one of these can be canceled or shipped
VERDICTS = ("Pending", "Approved", "Rejected")  # of a review
GROUPS = ("General", "Wholesale", "Retailer", "VIP")  # of a customer
CARRIERS = ("DHL", "UPS")
SHIPPING = {"Standard": 5.0, "Express": 10.0}
# The ways to sort a category: the link's label and Magento's query.
SORTS = {
    "Lowest price first": "product_list_order=price&product_list_dir=asc",
    "Highest price first": "product_list_order=price&product_list_dir=desc",
    "Best rated first": "product_list_order=rating&product_list_dir=desc",
}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass
class Product:
    id: int
    name: str
    category: str
    price: float
    qty: int
    description: str = "Made to last"
    enabled: bool = True
    in_stock: bool = True
    key: str = field(init=False)  # the name in URLs, which stays when the product is renamed
    sku: str = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.name.lower().replace(" ", "-")
        self.sku = f"{self.category[0]}{self.id}"


@dataclass
class Customer:
    id: int
    name: str
    email: str
    phone: str
    street: str
    city: str
    postcode: str
    group: str = "General"


@dataclass
class Line:
    """One product in an order, at the price it was bought for."""

    product: Product
    qty: int
    price: float


@dataclass
class Order:
    number: int
    customer: int
    date: str  # yyyy-mm-dd
    status: str
    lines: list[Line]
    shipping: str = "Standard"
    discount: float = 0.0
    comments: list[str] = field(default_factory=list)

    @property
    def total(self) -> float:
        products = sum(line.qty * line.price for line in self.lines)
        return products + SHIPPING[self.shipping] - self.discount

    @property
    def pieces(self) -> int:
        return sum(line.qty for line in self.lines)


@dataclass
class Review:
    id: int
    product: str  # a Product's key
    nickname: str
    stars: int
    title: str
    detail: str
    status: str = "Approved"


@dataclass
class Store:
    products: dict[str, Product]  # by key
    customers: dict[int, Customer]
    orders: dict[int, Order]
    reviews: dict[int, Review]
    coupons: dict[str, int]  # code -> percent off
    cart: dict[str, int] = field(default_factory=dict)  # product key -> quantity
    wishes: list[str] = field(default_factory=lambda: ["teapot", "hose", "saw", "helmet"])
    subscribed: bool = False
    message: str = ""  # the last one sent through the contact form
    name: str = "Pocket Shop"
    phone: str = "555-100"
    hours: str = "9 to 17"

    def approved(self, product: Product) -> list[Review]:
        """The approved reviews of a product."""
        reviews = [r for r in self.reviews.values() if r.product == product.key]
        return [r for r in reviews if r.status == "Approved"]

    def stars(self, product: Product) -> float:
        """The mean of the approved reviews, or 0 without any."""
        marks = [r.stars for r in self.approved(product)]
        return sum(marks) / len(marks) if marks else 0.0

    def sold(self) -> list[tuple[Product, int]]:
        """Products and pieces sold, best sellers first; canceled orders do not count."""
        pieces: dict[str, int] = {}
        for order in self.orders.values():
            if order.status == "Canceled":
                continue
            for line in order.lines:
                pieces[line.product.key] = pieces.get(line.product.key, 0) + line.qty
        best_first = sorted(pieces.items(), key=lambda item: -item[1])
        return [(self.products[key], count) for key, count in best_first]

    def place_order(self, shipping: str, coupon: str) -> Order:
        """Turns Emma's cart into an order; the coupon takes its percentage off the products."""
        in_cart = [(self.products[key], count) for key, count in self.cart.items()]
        lines = [Line(product, count, product.price) for product, count in in_cart]
        for line in lines:
            line.product.qty = max(0, line.product.qty - line.qty)
        off = sum(line.qty * line.price for line in lines) * self.coupons.get(coupon, 0) / 100
        order = Order(max(self.orders) + 1, EMMA, TODAY, "Pending", lines, shipping, off)
        self.orders[order.number] = order
        self.cart.clear()
        return order


def money(dollars: float) -> str:
    """A price, without cents where there are none: $30, but $27.50."""
    return f"${dollars:.2f}".removesuffix(".00")


def rated(stars: int) -> str:
    return f"{stars} star{'s' * (stars != 1)}"


def day(date: str) -> str:
    """2023-01-05 as 5 Jan 2023."""
    return f"{int(date[8:])} {month(date)}"


def month(date: str) -> str:
    """2023-01-05 as Jan 2023."""
    return f"{MONTHS[int(date[5:7]) - 1]} {date[:4]}"


def number(raw: str, low: float, high: float, otherwise: float) -> float:
    """The number typed into a field, or `otherwise` where it is none or out of bounds."""
    try:
        value = float(raw.strip().removeprefix("$"))
    except ValueError:
        return otherwise
    return value if low <= value <= high else otherwise  # nan compares false


_PRODUCTS = [
    # id, name, category, price, pieces in stock
    (11, "Kettle", "Kitchen", 30, 12),
    (12, "Teapot", "Kitchen", 18, 7),
    (13, "Pan", "Kitchen", 45, 20),
    (14, "Mug", "Kitchen", 6, 85),
    (21, "Hose", "Garden", 22, 9),
    (22, "Rake", "Garden", 16, 14),
    (23, "Shovel", "Garden", 48, 5),
    (24, "Seeds", "Garden", 4, 60),
    (31, "Hammer", "Tools", 14, 31),
    (32, "Saw", "Tools", 20, 17),
    (33, "Drill", "Tools", 90, 3),
    (34, "Ladder", "Tools", 75, 6),
    (41, "Ball", "Sport", 12, 40),
    (42, "Racket", "Sport", 52, 8),
    (43, "Helmet", "Sport", 36, 11),
    (44, "Skates", "Sport", 64, 4),
]

_CUSTOMERS = [
    # id, name, email, phone, street, city, postcode
    (1, "Emma Lopez", "emma.lopez@gmail.com", "555-201", "4 Lake Street", "Dover", "19901"),
    (2, "Anna Berg", "anna@post.com", "555-202", "8 Hill Road", "Salem", "97301"),
    (3, "Ben Cole", "ben@mail.com", "555-203", "2 Park Lane", "Boise", "83701"),
    (4, "Cara Diaz", "cara@post.com", "555-204", "6 Mill Street", "Tulsa", "74101"),
    (5, "Dan Evans", "dan@mail.com", "555-205", "9 Dock Road", "Miami", "33101"),
    (6, "Eva Frank", "eva@post.com", "555-206", "3 Old Square", "Provo", "84601"),
    (7, "Finn Gray", "finn@mail.com", "555-207", "7 Rail Street", "Omaha", "68101"),
]

_ORDERS = [
    # number, customer, date, status, pieces by product
    (31, 1, "2023-01-05", "Complete", {"kettle": 1}),
    (32, 2, "2023-01-18", "Complete", {"drill": 1, "hammer": 5}),
    (33, 1, "2023-02-02", "Complete", {"seeds": 8}),
    (34, 3, "2023-02-14", "Canceled", {"ball": 2}),
    (35, 1, "2023-02-20", "Canceled", {"racket": 1}),
    (36, 4, "2023-03-03", "Complete", {"mug": 10}),
    (37, 1, "2023-03-15", "Complete", {"hose": 2, "rake": 3}),
    (38, 5, "2023-03-28", "Processing", {"ladder": 1}),
    (39, 1, "2023-04-09", "Processing", {"saw": 4}),
    (40, 6, "2023-04-21", "Pending", {"pan": 1}),
    (41, 1, "2023-05-06", "Pending", {"teapot": 1}),
    (42, 7, "2023-05-17", "Pending", {"skates": 1}),
    (43, 1, "2023-05-25", "Pending", {"ball": 7}),
    (44, 1, "2023-06-02", "Pending", {"helmet": 1}),
]

_WORDS = {
    1: ("Awful", "Broke on day one"),
    2: ("Weak", "Too thin for me"),
    3: ("Okay", "It does the job"),
    4: ("Good", "Works very well"),
    5: ("Great", "I love it"),
}

_REVIEWS = {
    # two reviewers of each product with their stars; one product in each category has the best mean
    "kettle": (("Anna", 5), ("Ben", 4)),
    "teapot": (("Cara", 3), ("Dan", 2)),
    "pan": (("Eva", 5), ("Finn", 3)),
    "mug": (("Ben", 1), ("Cara", 5)),
    "hose": (("Dan", 2), ("Eva", 3)),
    "rake": (("Finn", 4), ("Anna", 5)),
    "shovel": (("Cara", 5), ("Ben", 3)),
    "seeds": (("Eva", 1), ("Dan", 4)),
    "hammer": (("Anna", 3), ("Finn", 4)),
    "saw": (("Ben", 2), ("Eva", 5)),
    "drill": (("Cara", 4), ("Dan", 5)),
    "ladder": (("Finn", 1), ("Anna", 2)),
    "ball": (("Eva", 4), ("Ben", 3)),
    "racket": (("Dan", 1), ("Cara", 3)),
    "helmet": (("Anna", 2), ("Finn", 5)),
    "skates": (("Ben", 5), ("Eva", 4)),
}

_PENDING_REVIEWS = [
    # product, reviewer, stars, title, text
    ("kettle", "Dan", 2, "Slow", "It takes too long"),
    ("pan", "Cara", 4, "Even", "It heats evenly"),
    ("rake", "Ben", 1, "Bent", "The handle bent"),
    ("seeds", "Anna", 5, "Green", "All of them grew"),
    ("saw", "Finn", 4, "Sharp", "It cuts cleanly"),
    ("ladder", "Eva", 2, "Heavy", "I can hardly lift it"),
    ("ball", "Cara", 1, "Flat", "It lost its air"),
    ("helmet", "Dan", 5, "Safe", "It saved my head"),
]

# Only in full worlds, where lists are longer than a screen. These change no answer of a task:
# prices lie between the cheapest and the dearest of each category, orders are a year older and
# of other products.
_LOOKS = ("Blue", "Steel", "Large", "Classic", "Light")
_MORE_THINGS = {
    "Kitchen": ("Bowl", "Ladle", "Tray", "Grater", "Whisk"),
    "Garden": ("Trowel", "Bucket", "Fence", "Bench", "Statue"),
    "Tools": ("Wrench", "Pliers", "Vise", "Chisel", "File"),
    "Sport": ("Bat", "Glove", "Net", "Whistle", "Mat"),
}
_MORE_PRODUCTS = []
for _i, (_category, _things) in enumerate(_MORE_THINGS.items(), start=1):
    for _j, (_look, _thing) in enumerate(zip(_LOOKS, _things)):
        _row = (10 * _i + 5 + _j, f"{_look} {_thing}", _category, 25 + 3 * _j, 10 + _j)
        _MORE_PRODUCTS.append(_row)

# fmt: off
_MORE_NAMES = (
    "Gina Hall", "Hugo Ives", "Iris Jung", "Jack Kern", "Kira Lund",
    "Leo Marsh", "Mona Nash", "Nick Owen", "Olga Pratt", "Paul Quinn",
)
# fmt: on


def _more_customer(i: int, name: str) -> tuple:
    email = f"{name.split()[0].lower()}@mail.com"
    return (8 + i, name, email, f"555-{208 + i}", f"{10 + i} Elm Street", "Akron", "44301")


def _more_order(i: int) -> tuple:
    customer = EMMA if i % 3 == 0 else 8 + i % 10
    date = f"2022-{1 + i // 5:02}-{3 + 5 * (i % 5):02}"
    key = _MORE_PRODUCTS[i][1].lower().replace(" ", "-")
    return (1 + i, customer, date, STATUSES[2 + i % 2], {key: 1})


_MORE_CUSTOMERS = [_more_customer(i, name) for i, name in enumerate(_MORE_NAMES)]
_MORE_ORDERS = [_more_order(i) for i in range(20)]


def fresh(full: bool) -> Store:
    product_rows, customer_rows, order_rows = _PRODUCTS, _CUSTOMERS, _ORDERS
    if full:
        product_rows = _PRODUCTS + _MORE_PRODUCTS
        customer_rows = _CUSTOMERS + _MORE_CUSTOMERS
        order_rows = _MORE_ORDERS + _ORDERS
    all_products = [Product(*row) for row in product_rows]
    products = {p.key: p for p in all_products}
    orders = {}
    for number, customer, date, status, pieces in order_rows:
        lines = [Line(products[key], count, products[key].price) for key, count in pieces.items()]
        orders[number] = Order(number, customer, date, status, lines)
    reviews: dict[int, Review] = {}
    for key, marks in _REVIEWS.items():
        for nickname, stars in marks:
            review_id = len(reviews) + 1
            reviews[review_id] = Review(review_id, key, nickname, stars, *_WORDS[stars])
    for row in _PENDING_REVIEWS:
        review_id = len(reviews) + 1
        reviews[review_id] = Review(review_id, *row, status="Pending")
    return Store(
        products=products,
        customers={row[0]: Customer(*row) for row in customer_rows},
        orders=orders,
        reviews=reviews,
        coupons={"SPRING": 10, "SUMMER": 20, "WINTER": 50},
    )
