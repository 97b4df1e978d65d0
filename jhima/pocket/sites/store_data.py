"""Data of the shop and of its back office: one Store, seen through two sites.

The clock stands still at TODAY, so that "the latest order" and every report read the same in each world.
Money is in dollars.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TODAY = "2023-06-12"


EMMA = 1  # the customer that the shopping site is logged in as


CATEGORIES = ("Kitchen", "Garden", "Tools", "Sport")


STATUSES = ("Pending", "Processing", "Complete", "Canceled")


OPEN = ("Pending", "Processing")  # an order can be canceled or shipped in these


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
    key: str = field(init=False)  # its place in URLs: a later change of name leaves it alone
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
        return (
            sum(line.qty * line.price for line in self.lines)
            + SHIPPING[self.shipping]
            - self.discount
        )

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

    def stars(self, product: Product) -> float:
        """Mean of the approved reviews, 0 without any."""
        marks = [
            r.stars
            for r in self.reviews.values()
            if r.product == product.key and r.status == "Approved"
        ]
        return sum(marks) / len(marks) if marks else 0.0

    def sold(self) -> list[tuple[Product, int]]:
        """Products and pieces sold, best sellers first; canceled orders do not count."""
        pieces: dict[str, int] = {}
        for order in self.orders.values():
            for line in order.lines if order.status != "Canceled" else ():
                pieces[line.product.key] = pieces.get(line.product.key, 0) + line.qty
        return sorted(
            ((self.products[key], n) for key, n in pieces.items()), key=lambda item: -item[1]
        )

    def place_order(self, shipping: str, coupon: str) -> Order:
        """Emma's cart becomes an order, with a coupon's percentage off its products."""
        lines = [
            Line(self.products[key], n, self.products[key].price) for key, n in self.cart.items()
        ]
        for line in lines:
            line.product.qty = max(0, line.product.qty - line.qty)
        off = sum(line.qty * line.price for line in lines) * self.coupons.get(coupon, 0) / 100
        order = Order(max(self.orders) + 1, EMMA, TODAY, "Pending", lines, shipping, off)
        self.orders[order.number] = order
        self.cart.clear()
        return order


def money(dollars: float) -> str:
    """A price without idle cents: $30, but $27.50."""
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
    """What someone typed into a field for numbers, or `otherwise` where that is no number within the bounds."""
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
# Only in full worlds, where lists are longer than a screen. These change no answer of a task: prices lie between
# the cheapest and the dearest of each category, orders are a year older and of other products.
_MORE_PRODUCTS = [
    (10 * i + 5 + j, f"{look} {thing}", category, 25 + 3 * j, 10 + j)
    for i, (category, things) in enumerate(
        zip(
            CATEGORIES,
            (
                ("Bowl", "Ladle", "Tray", "Grater", "Whisk"),
                ("Trowel", "Bucket", "Fence", "Bench", "Statue"),
                ("Wrench", "Pliers", "Vise", "Chisel", "File"),
                ("Bat", "Glove", "Net", "Whistle", "Mat"),
            ),
        ),
        start=1,
    )
    for j, (look, thing) in enumerate(zip(("Blue", "Steel", "Large", "Classic", "Light"), things))
]


_MORE_CUSTOMERS = [
    (
        8 + i,
        name,
        f"{name.split()[0].lower()}@mail.com",
        f"555-{208 + i}",
        f"{10 + i} Elm Street",
        "Akron",
        "44301",
    )
    for i, name in enumerate(
        (
            "Gina Hall",
            "Hugo Ives",
            "Iris Jung",
            "Jack Kern",
            "Kira Lund",
            "Leo Marsh",
            "Mona Nash",
            "Nick Owen",
            "Olga Pratt",
            "Paul Quinn",
        )
    )
]


_MORE_ORDERS = [
    (
        1 + i,
        EMMA if i % 3 == 0 else 8 + i % 10,
        f"2022-{1 + i // 5:02}-{3 + 5 * (i % 5):02}",
        STATUSES[2 + i % 2],
        {_MORE_PRODUCTS[i % 20][1].lower().replace(" ", "-"): 1},
    )
    for i in range(20)
]


def fresh(full: bool) -> Store:
    products = {
        p.key: p for p in (Product(*row) for row in _PRODUCTS + (_MORE_PRODUCTS if full else []))
    }
    customers = {row[0]: Customer(*row) for row in _CUSTOMERS + (_MORE_CUSTOMERS if full else [])}
    orders = {}
    for n, customer, date, status, pieces in (_MORE_ORDERS if full else []) + _ORDERS:
        lines = [Line(products[key], qty, products[key].price) for key, qty in pieces.items()]
        orders[n] = Order(n, customer, date, status, lines)
    approved = [
        (key, nickname, stars, *_WORDS[stars])
        for key, marks in _REVIEWS.items()
        for nickname, stars in marks
    ]
    reviews = {i: Review(i, *row) for i, row in enumerate(approved, start=1)}
    for i, row in enumerate(_PENDING_REVIEWS, start=len(reviews) + 1):
        reviews[i] = Review(i, *row, status="Pending")
    return Store(products, customers, orders, reviews, {"SPRING": 10, "SUMMER": 20, "WINTER": 50})
