"""What the generated shop sells: kinds of products with their attributes, options and prices.

Every text here is this project's own. `envs.webshop.generator` draws products from it.
"""

from __future__ import annotations

import dataclasses

Group = tuple[str, tuple[str, ...]]

# Three of the names are written together with a colour: the original rewards no purchase of such a colour in
# full when the goal asks for it, since only the purchased value is cut down to its colour word.
COLORS = ("blue", "green", "red", "black", "white", "grey", "yellow", "purple", "orange", "pink")
SHADES = ("dark blue", "light green", "sky blue", "soft pink", "deep red", "pale yellow")
JOINED = ("stonegrey", "inkblue", "mossgreen")
CLOTHES_SIZES = ("small", "medium", "large", "x-large", "xx-large")
SHOE_SIZES = ("6", "7", "8", "9", "10")
PACKS = ("pack of 1", "pack of 2", "pack of 6", "pack of 12")
VOLUMES = ("50 ml", "100 ml", "250 ml", "500 ml")
LENGTHS = ("3 feet", "6 feet", "10 feet", "15 feet")
FLAVORS = ("lemon", "ginger", "cinnamon", "vanilla", "cherry", "coconut", "maple", "almond")
SCENTS = ("lavender", "jasmine", "citrus", "cedar", "unscented")
BEDS = ("twin", "full", "queen", "king")
COLOR: Group = ("color", COLORS)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of product.

    Attributes:
      category: department of the catalogue. query: the search that finds the kind, its name in instructions.
      path: shelf in the shop, from the department down.
      nouns: words of a title that name the thing, those of the query.
      attributes: what products of the kind may be like.
      groups: option groups, each with all values there are.
      prices: lowest and highest price in dollars.
    """

    category: str
    query: str
    path: tuple[str, ...]
    nouns: tuple[str, ...]
    attributes: tuple[str, ...]
    groups: tuple[Group, ...]
    prices: tuple[float, float]


BRANDS = (
    *("Tarn", "Ovela", "Brindle", "Kestra", "Mossbank", "Lumo", "Harrow", "Pellin", "Quarry", "Sunda"),
    *("Vireo", "Wickam", "Yarrow", "Zephin", "Aldo", "Corbel", "Dunmore", "Elvet", "Fenwick", "Gorse"),
)
PLACES = ("home", "office", "travel", "school", "garden", "camping", "gym", "kitchen", "studio", "weekend")
PEOPLE = ("men", "women", "teens", "beginners", "families", "guests", "students", "friends")

_SKIN = ("cruelty free", "paraben free", "fragrance free", "sensitive skin", "dry skin", "plant based")
_HAIR = ("sulfate free", "hair growth", "damaged hair", "natural ingredients", "cruelty free", "long lasting")
_DEVICE = (
    "fast charging",
    "high speed",
    "easy install",
    "wireless bluetooth",
    "noise reduction",
    "heavy duty",
)
_CLOTH = ("machine wash", "quick drying", "long sleeve", "relaxed fit", "slim fit", "moisture wicking")
_SHOE = ("rubber sole", "arch support", "memory foam", "slip resistant", "water resistant", "light weight")
_HOME = ("easy clean", "space saving", "solid wood", "easy assemble", "high density", "living room")
_BED = ("machine washable", "super soft", "easy care", "double sided", "fade resistant", "dining room")
_FOOD = ("gluten free", "sugar free", "non gmo", "dairy free", "low calorie", "shelf stable")
_DRINK = ("caffeine free", "certified organic", "sugar free", "kosher certified", "hand picked", "non gmo")

_BEAUTY, _BATH = ("Beauty & Personal Care", "Skin Care"), ("Beauty & Personal Care", "Bath & Hair")
_ELECTRONICS, _AUDIO = ("Electronics", "Accessories"), ("Electronics", "Audio & Video")
_WEAR, _FEET = ("Clothing & Shoes", "Clothing"), ("Clothing & Shoes", "Shoes")
_FURNITURE, _LINEN = ("Home & Kitchen", "Furniture"), ("Home & Kitchen", "Bedding & Linen")
_SNACKS, _DRINKS = ("Grocery & Food", "Snacks"), ("Grocery & Food", "Drinks")
_SCENT, _VOLUME, _CABLE = ("scent", SCENTS), ("size", VOLUMES), ("size", LENGTHS)
_SIZE, _SHOES, _BEDSIZE = ("size", CLOTHES_SIZES), ("size", SHOE_SIZES), ("size", BEDS)
_FLAVOR, _PACK = ("flavor name", FLAVORS), ("size", PACKS)

KINDS = (
    Kind(
        "beauty", "body lotions", (*_BEAUTY, "Lotions"), ("Body", "Lotion"), _SKIN, (_SCENT, _VOLUME), (6, 40)
    ),
    Kind("beauty", "face masks", (*_BEAUTY, "Masks"), ("Face", "Mask"), _SKIN, (_PACK,), (5, 30)),
    Kind("beauty", "hand soaps", (*_BATH, "Soaps"), ("Hand", "Soap"), _SKIN, (_SCENT, _PACK), (4, 25)),
    Kind("beauty", "hair oils", (*_BATH, "Oils"), ("Hair", "Oil"), _HAIR, (_VOLUME,), (8, 45)),
    Kind("beauty", "hair combs", (*_BATH, "Combs"), ("Hair", "Comb"), _HAIR, (COLOR,), (6, 35)),
    Kind("beauty", "makeup bags", (*_BEAUTY, "Bags"), ("Makeup", "Bag"), _HOME, (COLOR,), (9, 50)),
    Kind(
        "electronics",
        "charging cables",
        (*_ELECTRONICS, "Cables"),
        ("Charging", "Cable"),
        _DEVICE,
        (COLOR, _CABLE),
        (5, 30),
    ),
    Kind(
        "electronics", "phone cases", (*_ELECTRONICS, "Cases"), ("Phone", "Case"), _DEVICE, (COLOR,), (8, 40)
    ),
    Kind(
        "electronics",
        "desk speakers",
        (*_AUDIO, "Speakers"),
        ("Desk", "Speaker"),
        _DEVICE,
        (COLOR,),
        (20, 150),
    ),
    Kind("electronics", "headphones", (*_AUDIO, "Headphones"), ("Headphones",), _DEVICE, (COLOR,), (18, 180)),
    Kind("electronics", "tripods", (*_ELECTRONICS, "Tripods"), ("Camera", "Tripod"), _DEVICE, (), (15, 120)),
    Kind(
        "electronics",
        "hdmi adapters",
        (*_AUDIO, "Adapters"),
        ("Hdmi", "Adapter"),
        _DEVICE,
        (_CABLE,),
        (6, 35),
    ),
    Kind(
        "fashion", "men's t-shirts", (*_WEAR, "Shirts"), ("Men's", "T-Shirt"), _CLOTH, (COLOR, _SIZE), (9, 45)
    ),
    Kind(
        "fashion",
        "women's sweaters",
        (*_WEAR, "Sweaters"),
        ("Women's", "Sweater"),
        _CLOTH,
        (COLOR, _SIZE),
        (18, 80),
    ),
    Kind(
        "fashion", "rain jackets", (*_WEAR, "Jackets"), ("Rain", "Jacket"), _CLOTH, (COLOR, _SIZE), (25, 140)
    ),
    Kind(
        "fashion",
        "walking shoes",
        (*_FEET, "Walking"),
        ("Walking", "Shoes"),
        _SHOE,
        (COLOR, _SHOES),
        (25, 120),
    ),
    Kind(
        "fashion",
        "house slippers",
        (*_FEET, "Slippers"),
        ("House", "Slippers"),
        _SHOE,
        (COLOR, _SHOES),
        (12, 50),
    ),
    Kind("fashion", "sandals", (*_FEET, "Sandals"), ("Sandals",), _SHOE, (_SHOES,), (15, 70)),
    Kind("garden", "coffee tables", (*_FURNITURE, "Tables"), ("Coffee", "Table"), _HOME, (COLOR,), (60, 320)),
    Kind("garden", "bookcases", (*_FURNITURE, "Bookcases"), ("Bookcase",), _HOME, (COLOR,), (45, 260)),
    Kind("garden", "shoe racks", (*_FURNITURE, "Racks"), ("Shoe", "Rack"), _HOME, (), (20, 90)),
    Kind(
        "garden", "duvet covers", (*_LINEN, "Duvets"), ("Duvet", "Cover"), _BED, (COLOR, _BEDSIZE), (22, 110)
    ),
    Kind(
        "garden",
        "throw blankets",
        (*_LINEN, "Blankets"),
        ("Throw", "Blanket"),
        _BED,
        (COLOR, _BEDSIZE),
        (15, 80),
    ),
    Kind("garden", "curtains", (*_LINEN, "Curtains"), ("Curtain",), _BED, (COLOR,), (14, 75)),
    Kind("grocery", "granola bars", (*_SNACKS, "Bars"), ("Granola", "Bar"), _FOOD, (_FLAVOR, _PACK), (4, 35)),
    Kind(
        "grocery",
        "rice crackers",
        (*_SNACKS, "Crackers"),
        ("Rice", "Crackers"),
        _FOOD,
        (_FLAVOR, _PACK),
        (3, 25),
    ),
    Kind("grocery", "trail mix", (*_SNACKS, "Mixes"), ("Trail", "Mix"), _FOOD, (_PACK,), (5, 30)),
    Kind("grocery", "herbal teas", (*_DRINKS, "Teas"), ("Herbal", "Tea"), _DRINK, (_FLAVOR, _PACK), (4, 30)),
    Kind(
        "grocery", "ground coffees", (*_DRINKS, "Coffees"), ("Ground", "Coffee"), _DRINK, (_FLAVOR,), (8, 40)
    ),
    Kind(
        "grocery", "fruit juices", (*_DRINKS, "Juices"), ("Fruit", "Juice"), _DRINK, (_FLAVOR, _PACK), (4, 28)
    ),
)
