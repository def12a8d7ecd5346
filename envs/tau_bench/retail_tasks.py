"""Generated retail tasks: two customers, three orders, three products with a few variants.

| type | the customer wants | what decides |
|---|---|---|
| `cancel` | a pending order cancelled | the reason |
| `deny` | an order cancelled that is not pending | its status: nothing may change |
| `address` | a pending order sent elsewhere | six arguments |
| `exchange` | one item in another colour, with a second choice | which variant is available |
| `return` | one or two items returned | all of them, and where the refund goes |
| `total` | to know what was paid | the amount must be said |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from envs.tau_bench.data import Bench, Call
from envs.tau_bench.scenario import Scenario, address, finish, numbers, people

PRODUCTS = ("Lamp", "Mug", "Rug", "Clock", "Vase", "Chair", "Kettle", "Mirror", "Backpack", "Jacket")
COLORS = ("red", "blue", "green", "black", "white", "yellow")
REASONS = ("no longer needed", "ordered by mistake")
POLICY = (
    "You help customers of a shop. Find out who they are by name and zip code or by email before anything "
    "else. Only pending orders can be cancelled or changed, only delivered ones returned or exchanged. Say "
    "what you are going to do and wait for a yes before you change anything. Refuse what is not possible."
)


def retail(task_type: str, rng: random.Random) -> Scenario:
    """A task of one of `RETAIL_TYPES`."""
    shop = _Shop(rng)
    return RETAIL_TYPES[task_type](shop, rng)


class _Shop:
    """A small database and the customer in it."""

    def __init__(self, rng: random.Random) -> None:
        ids = iter(numbers(rng, 40))
        self.products = [_product(rng, name, ids) for name in rng.sample(PRODUCTS, 3)]
        users = people(rng, 2)
        self.order_ids = [f"#W{n}" for n in numbers(rng, 3)]
        self.user_id = users[0]["user_id"]
        self.identity = f"{' '.join(users[0]['name'].values())}, zip {users[0]['address']['zip']}."
        self.name = {**users[0]["name"], "zip": users[0]["address"]["zip"]}
        self.orders = {}
        self.users = {}
        for user, owned in zip(users, (self.order_ids[:2], self.order_ids[2:]), strict=True):
            user_id = user.pop("user_id")
            self.users[user_id] = {**user, "payment_methods": _methods(rng), "orders": list(owned)}
            for order_id in owned:
                self.orders[order_id] = self._order(rng, order_id, user_id)
        self.order = self.orders[self.order_ids[0]]

    def _order(self, rng: random.Random, order_id: str, user_id: str) -> dict[str, Any]:
        items = []
        for product in rng.sample(self.products, 2):
            variant = rng.choice(list(product["variants"].values()))
            item = {"name": product["name"], "item_id": variant["item_id"]}
            item |= {"product_id": product["product_id"], "price": variant["price"]}
            items.append({**item, "options": variant["options"]})
        user = self.users[user_id]
        method = rng.choice(list(user["payment_methods"]))
        amount = sum(item["price"] for item in items)
        payment = {"transaction_type": "payment", "amount": amount, "payment_method_id": method}
        return {
            "order_id": order_id,
            "user_id": user_id,
            "address": user["address"],
            "items": items,
            "fulfillments": [],
            "status": rng.choice(("pending", "delivered", "processed")),
            "payment_history": [payment],
        }

    @property
    def paid_with(self) -> str:
        return str(self.order["payment_history"][0]["payment_method_id"])

    @property
    def gift_card(self) -> str:
        return next(m for m in self.users[self.user_id]["payment_methods"] if m.startswith("gift_card"))

    def finish(self, opening: str, *calls: Call, **kwargs: Any) -> Scenario:
        bench = Bench(
            domain="retail",
            database={
                "orders": self.orders,
                "products": {product["product_id"]: product for product in self.products},
                "users": self.users,
            },
            tasks={},
            policy=POLICY,
            rules=[],
            tools=[],
        )
        who = Call("find_user_id_by_name_zip", self.name)
        read = Call("get_order_details", {"order_id": self.order["order_id"]})
        return finish(bench, self.user_id, opening, self.identity, [who, read, *calls], **kwargs)


def _product(rng: random.Random, name: str, ids: Any) -> dict[str, Any]:
    variants = {}
    for color in rng.sample(COLORS, 4):
        item_id = next(ids)
        variants[item_id] = {
            "item_id": item_id,
            "options": {"color": color},
            "available": rng.random() < 0.7,
            "price": rng.randrange(20, 65, 5),
        }
    return {"name": name, "product_id": next(ids), "variants": variants}


def _methods(rng: random.Random) -> dict[str, Any]:
    card, gift = (str(rng.randint(1, 9)) for _ in range(2))
    other = rng.choice(("paypal", "credit_card"))
    gift_card = {"source": "gift_card", "balance": rng.randint(60, 99), "id": f"gift_card_{gift}"}
    return {
        f"{other}_{card}": {"source": other, "id": f"{other}_{card}"},
        f"gift_card_{gift}": gift_card,
    }


def _cancel(shop: _Shop, rng: random.Random) -> Scenario:
    shop.order["status"] = "pending"
    opening, call = _wish_to_cancel(shop, rng)
    return shop.finish(opening, call)


def _deny(shop: _Shop, rng: random.Random) -> Scenario:
    shop.order["status"] = rng.choice(("delivered", "processed"))
    opening, call = _wish_to_cancel(shop, rng)
    return shop.finish(opening, refused=[call])


def _wish_to_cancel(shop: _Shop, rng: random.Random) -> tuple[str, Call]:
    reason, order_id = rng.choice(REASONS), shop.order["order_id"]
    call = Call("cancel_pending_order", {"order_id": order_id, "reason": reason})
    return f"Cancel order {order_id}, {reason}.", call


def _address(shop: _Shop, rng: random.Random) -> Scenario:
    shop.order["status"] = "pending"
    new, order_id = address(rng), shop.order["order_id"]
    keys = ("address1", "address2", "city", "state", "country", "zip")
    call = Call("modify_pending_order_address", {"order_id": order_id, **{k: new[k] for k in keys}})
    where = f"{new['address1']}, {new['city']}, {new['state']} {new['zip']}"
    return shop.finish(f"Send order {order_id} to {where}.", call)


def _exchange(shop: _Shop, rng: random.Random) -> Scenario:
    shop.order["status"] = "delivered"
    item, order_id = rng.choice(shop.order["items"]), shop.order["order_id"]
    product = next(p for p in shop.products if p["product_id"] == item["product_id"])
    others = [v for v in product["variants"].values() if v["item_id"] != item["item_id"]]
    first, second = rng.sample(others, 2)
    first["available"] = rng.random() < 0.5
    second["available"] = True
    wanted = first if first["available"] else second
    colors = [variant["options"]["color"] for variant in (first, second)]
    where, method, reads = _payment(shop, rng)
    kwargs = {
        "order_id": order_id,
        "item_ids": [item["item_id"]],
        "new_item_ids": [wanted["item_id"]],
        "payment_method_id": method,
    }
    choice = f"a {colors[0]} one, or else {colors[1]}"
    opening = f"Exchange the {item['name']} of order {order_id} for {choice}, paid {where}."
    look = Call("get_product_details", {"product_id": item["product_id"]})
    return shop.finish(opening, *reads, look, Call("exchange_delivered_order_items", kwargs))


def _return(shop: _Shop, rng: random.Random) -> Scenario:
    shop.order["status"] = "delivered"
    items = rng.sample(shop.order["items"], rng.randint(1, 2))
    where, method, reads = _payment(shop, rng)
    ids = [item["item_id"] for item in items]
    kwargs = {"order_id": shop.order["order_id"], "item_ids": ids, "payment_method_id": method}
    names = " and the ".join(item["name"] for item in items)
    opening = f"Return the {names} of order {shop.order['order_id']}, refund {where}."
    return shop.finish(opening, *reads, Call("return_delivered_order_items", kwargs))


def _payment(shop: _Shop, rng: random.Random) -> tuple[str, str, list[Call]]:
    """Where money comes from or goes to: in words, its id, and what must be read to know it."""
    if rng.random() < 0.5:
        return "as before", shop.paid_with, []
    return "by gift card", shop.gift_card, [Call("get_user_details", {"user_id": shop.user_id})]


def _total(shop: _Shop, rng: random.Random) -> Scenario:
    amount = shop.order["payment_history"][0]["amount"]
    return shop.finish(f"What did I pay for order {shop.order['order_id']}?", outputs=[str(amount)])


RETAIL_TYPES: Mapping[str, Callable[[_Shop, random.Random], Scenario]] = {
    "cancel": _cancel,
    "deny": _deny,
    "address": _address,
    "exchange": _exchange,
    "return": _return,
    "total": _total,
}
