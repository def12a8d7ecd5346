"""What is usual in a household: which rooms have which furniture, what fits where, what is found where.

The generator builds rooms from these tables, and the expert looks first where a thing is usually found.
They agree with the facts of ALFWorld's own games (what each kind can do and contain), as far as a kind
is listed here.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Room:
    """A kind of room.

    Attributes:
      core: receptacle types that every room of the kind has.
      extra: receptacle types of which the rest is drawn (may repeat).
      things: object types found in it.
      lamp: whether a desk lamp may stand in it.
    """

    core: tuple[str, ...]
    extra: tuple[str, ...]
    things: tuple[str, ...]
    lamp: bool = False


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ROOMS = {
    "kitchen": Room(
        core=("countertop", "fridge", "microwave", "sinkbasin"),
        extra=_words(
            "cabinet drawer diningtable shelf garbagecan coffeemachine stoveburner sidetable cabinet drawer"
        ),
        things=_words(
            "apple bowl bread butterknife cup dishsponge egg fork kettle knife lettuce mug pan "
            "peppershaker plate pot potato saltshaker soapbottle spatula spoon tomato"
        ),
    ),
    "bathroom": Room(
        core=("countertop", "sinkbasin", "toilet"),
        extra=_words("cabinet drawer garbagecan shelf bathtubbasin cart cabinet sidetable"),
        things=_words("candle cloth dishsponge soapbar soapbottle spraybottle toiletpaper"),
    ),
    "bedroom": Room(
        core=("bed", "desk", "drawer"),
        extra=_words("dresser sidetable shelf safe garbagecan armchair drawer sidetable"),
        things=_words(
            "alarmclock book bowl cd cellphone creditcard keychain laptop mug pen pencil pillow tissuebox"
        ),
        lamp=True,
    ),
    "livingroom": Room(
        core=("sofa", "coffeetable", "sidetable"),
        extra=_words("armchair dresser drawer cabinet shelf garbagecan diningtable safe tvstand"),
        things=_words(
            "book box creditcard keychain laptop newspaper pillow remotecontrol statue tissuebox vase watch"
        ),
        lamp=True,
    ),
}

OPENABLE = frozenset({"cabinet", "drawer", "fridge", "microwave", "safe"})

CLEANABLE = frozenset(
    _words(
        "apple bowl butterknife cloth cup dishsponge egg fork kettle knife lettuce mug pan "
        "plate pot potato soapbar spatula spoon tomato"
    )
)
HEATABLE = frozenset(_words("apple bread cup egg mug plate potato tomato"))
COOLABLE = frozenset(_words("apple bowl bread cup egg lettuce mug pan plate pot potato tomato"))
SLICEABLE = frozenset(_words("apple bread egg lettuce potato tomato"))

# Receptacle type -> object types that may be put into it.
HOLDS = {
    receptacle: frozenset(_words(objects))
    for receptacle, objects in {
        "armchair": "book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol",
        "bathtubbasin": "cloth dishsponge soapbar",
        "bed": "book cellphone laptop pillow",
        "cabinet": "book bowl box candle cd cloth cup dishsponge kettle mug newspaper pan peppershaker "
        "plate pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper vase",
        "cart": "candle cloth dishsponge soapbar soapbottle spraybottle tissuebox toiletpaper",
        "coffeemachine": "mug",
        "coffeetable": "book bowl box candle cellphone creditcard keychain laptop newspaper pen pencil plate "
        "remotecontrol statue tissuebox vase watch",
        "countertop": "alarmclock apple book bowl bread butterknife candle cd cellphone cloth creditcard "
        "cup dishsponge egg fork kettle keychain knife laptop lettuce mug pan pen pencil "
        "peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula "
        "spoon spraybottle statue tissuebox toiletpaper tomato vase",
        "desk": "alarmclock book bowl box cd cellphone cloth creditcard keychain laptop mug pen "
        "pencil remotecontrol statue tissuebox vase watch",
        "diningtable": "alarmclock apple book bowl box bread butterknife candle cd cellphone cloth "
        "creditcard cup dishsponge egg fork kettle keychain knife laptop lettuce mug "
        "newspaper pan pen pencil peppershaker plate pot potato remotecontrol saltshaker "
        "soapbottle spatula spoon spraybottle statue tissuebox tomato vase watch",
        "drawer": "book butterknife candle cd cellphone cloth creditcard dishsponge fork keychain knife "
        "newspaper pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle "
        "spatula spoon spraybottle tissuebox toiletpaper watch",
        "dresser": "alarmclock book bowl box candle cd cellphone cloth creditcard keychain laptop mug "
        "newspaper pen pencil plate remotecontrol spraybottle statue tissuebox toiletpaper "
        "vase watch",
        "fridge": "apple bowl bread cup egg lettuce mug pan plate pot potato tomato",
        "garbagecan": "apple bread cd cloth dishsponge egg lettuce newspaper pen pencil potato soapbar "
        "soapbottle spraybottle tissuebox toiletpaper tomato",
        "microwave": "apple bowl bread cup egg mug plate potato tomato",
        "safe": "cd cellphone creditcard keychain statue vase watch",
        "shelf": "alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge kettle "
        "keychain mug newspaper pen pencil peppershaker plate pot remotecontrol saltshaker "
        "soapbar soapbottle spraybottle statue tissuebox toiletpaper vase watch",
        "sidetable": "alarmclock apple book bowl box bread butterknife candle cd cellphone cloth "
        "creditcard cup dishsponge egg fork kettle keychain knife laptop lettuce mug "
        "newspaper pan pen pencil peppershaker plate pot potato remotecontrol saltshaker "
        "soapbar soapbottle spatula spoon spraybottle statue tissuebox toiletpaper tomato "
        "vase watch",
        "sinkbasin": "apple bowl butterknife cloth cup dishsponge egg fork kettle knife lettuce mug pan "
        "plate pot potato soapbar spatula spoon tomato",
        "sofa": "book box cellphone creditcard keychain laptop newspaper pillow remotecontrol",
        "stoveburner": "kettle pan pot",
        "toilet": "candle cloth dishsponge soapbar soapbottle spraybottle tissuebox toiletpaper",
        "tvstand": "tissuebox",
    }.items()
}

# Object type -> receptacle types, the one where a step of looking finds it most often first (order of the
# rates in ALFWorld's training games; what has to be opened takes two steps).
_PLACES = {
    "alarmclock": "diningtable desk dresser sidetable shelf",
    "apple": "diningtable garbagecan fridge sidetable countertop sinkbasin microwave",
    "book": "bed coffeetable desk countertop diningtable sofa dresser armchair sidetable cabinet",
    "bowl": "desk coffeetable diningtable dresser fridge countertop shelf sidetable sinkbasin cabinet",
    "box": "diningtable coffeetable sofa desk sidetable cabinet shelf",
    "bread": "diningtable countertop fridge",
    "butterknife": "diningtable countertop sidetable sinkbasin drawer",
    "candle": "sidetable countertop toilet coffeetable diningtable shelf cart cabinet drawer",
    "cd": "diningtable dresser desk sidetable garbagecan armchair shelf drawer cabinet",
    "cellphone": "bed diningtable desk dresser coffeetable countertop sofa sidetable armchair safe",
    "cloth": "bathtubbasin countertop sinkbasin cabinet shelf toilet drawer",
    "creditcard": "desk diningtable dresser tvstand countertop sofa coffeetable sidetable armchair shelf",
    "cup": "diningtable sidetable fridge sinkbasin countertop microwave shelf cabinet",
    "desklamp": "sidetable desk dresser shelf",
    "dishsponge": "bathtubbasin diningtable countertop sinkbasin toilet garbagecan shelf sidetable "
    "drawer cabinet",
    "egg": "diningtable sinkbasin garbagecan fridge countertop sidetable microwave",
    "fork": "diningtable countertop sidetable sinkbasin drawer",
    "glassbottle": "diningtable sinkbasin countertop garbagecan fridge shelf cabinet",
    "handtowel": "handtowelholder countertop",
    "kettle": "diningtable stoveburner countertop sinkbasin cabinet",
    "keychain": "desk dresser diningtable tvstand coffeetable sidetable safe sofa armchair shelf",
    "knife": "diningtable countertop sidetable sinkbasin drawer",
    "ladle": "diningtable countertop sinkbasin drawer cabinet",
    "laptop": "bed diningtable desk coffeetable sofa tvstand dresser armchair sidetable",
    "lettuce": "diningtable countertop fridge sidetable sinkbasin garbagecan",
    "mug": "desk dresser coffeemachine diningtable countertop sidetable fridge sinkbasin shelf microwave",
    "newspaper": "diningtable dresser coffeetable sofa sidetable shelf armchair",
    "pan": "countertop stoveburner diningtable fridge cabinet",
    "papertowelroll": "diningtable toilet countertop garbagecan shelf",
    "pen": "diningtable desk dresser coffeetable countertop sidetable shelf garbagecan drawer",
    "pencil": "diningtable desk coffeetable sidetable dresser countertop shelf garbagecan drawer",
    "peppershaker": "diningtable sidetable countertop shelf drawer cabinet",
    "pillow": "bed sofa armchair",
    "plate": "diningtable coffeetable countertop fridge sidetable shelf sinkbasin cabinet",
    "pot": "stoveburner countertop diningtable fridge cabinet",
    "potato": "diningtable fridge countertop sinkbasin sidetable garbagecan microwave",
    "remotecontrol": "desk tvstand coffeetable diningtable dresser sofa sidetable armchair shelf drawer",
    "saltshaker": "diningtable sidetable countertop shelf drawer cabinet",
    "soapbar": "sidetable bathtubbasin countertop toilet sinkbasin shelf garbagecan cabinet drawer",
    "soapbottle": "dresser diningtable toilet countertop sidetable garbagecan shelf cabinet drawer",
    "spatula": "diningtable countertop sinkbasin drawer",
    "spoon": "diningtable countertop sinkbasin sidetable drawer",
    "spraybottle": "sidetable cart countertop toilet dresser diningtable shelf garbagecan cabinet",
    "statue": "diningtable desk coffeetable tvstand dresser countertop sidetable shelf",
    "teddybear": "bed",
    "tissuebox": "countertop desk coffeetable diningtable tvstand shelf sidetable drawer",
    "toiletpaper": "countertop dresser toilet toiletpaperhanger shelf garbagecan cabinet drawer",
    "tomato": "diningtable fridge countertop sidetable garbagecan sinkbasin",
    "towel": "towelholder",
    "vase": "dresser coffeetable diningtable countertop tvstand shelf sidetable cabinet",
    "watch": "tvstand diningtable dresser coffeetable sidetable shelf drawer",
    "wateringcan": "shelf coffeetable",
    "winebottle": "diningtable countertop garbagecan shelf cabinet",
}
PLACES = {kind: _words(places) for kind, places in _PLACES.items()}
