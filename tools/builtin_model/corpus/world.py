"""A little of the world: colours, animal sounds, capitals, lists of things, and facts that are plainly true or false."""

from __future__ import annotations

import random

from .phrasing import Exchange, Wordings, article, ask, word_pattern

_COLOURS = {
    "blue": "the sky|the sea|the ocean|a blueberry|water|a sapphire|jeans", "green": "grass|a leaf|a frog|a tree|a cucumber|lettuce|a pea|broccoli|an avocado|a lime|a cactus|spinach|a crocodile|an emerald|moss|a kiwi|leaves|a pear|a forest",
    "yellow": "a banana|the sun|a lemon|butter|a canary|a chick|cheese|corn|a sunflower|a taxi|gold|honey|a duckling|sand", "red": "a strawberry|a tomato|blood|a cherry|a rose|a fire engine|a stop sign|a ladybug|a ruby|an apple|a raspberry|ketchup|a heart|apples|a chili|a fire truck|roses|a brick",
    "white": "snow|milk|salt|a swan|a cloud|sugar|paper|a polar bear|a sheep|flour|a tooth|rice|an egg|a wedding dress|clouds|ice|a ghost|cotton|chalk|teeth", "black": "coal|the night|a raven|a crow|a tyre|ink|a panther|the night sky|a black cat|tar|a tire|space",
    "brown": "chocolate|wood|coffee|a bear|earth|mud|a chestnut|bread|a horse|soil|a potato|a monkey|a tree trunk|a coconut|cocoa|dirt|a nut", "orange": "an orange|a carrot|a pumpkin|a tiger|a tangerine|a mandarin|a basketball|carrots|oranges", "grey": "an elephant|a mouse|a stone|a rock|concrete|a dolphin|ash|a shark|smoke|a donkey|lead|a wolf|a koala|iron|a rainy sky",
    "pink": "a pig|a flamingo|bubble gum|a pig's nose", "purple": "a plum|lavender|an aubergine|a violet|an eggplant|a grape|grapes|an amethyst",
}  # fmt: skip
_THING_COLOUR = {thing: colour for colour, things in _COLOURS.items() for thing in things.split("|")}
_COLOUR = Wordings(
    (
        "(what|which) (colour|color) (is|has|are) {x}",
        "what (colour|color) is {x}",
        "what is the (colour|color) of {x}",
        "(tell me|name|say|give me) the (colour|color) of {x}",
        "{x} (is|has) (what|which) (colour|color)",
        "(what|which) (colour|color) does {x} (have|usually have)",
        "(what|which) (colour|color) is {x} (usually|normally|mostly)",
        "the (colour|color) of {x}",
        "(colour|color) of {x}",
        "do you know the (colour|color) of {x}",
        "do you know what (colour|color) {x} is",
        "(can|could) you tell me the (colour|color) of {x}",
        "of what (colour|color) is {x}",
        "(what|which) (colour|color) would {x} be",
    ),
    (
        "what (colour|color) would you say {x} is",
        "{x}: what (colour|color)",
        "if you look at {x}, what (colour|color) do you see",
    ),
)
_IS_COLOUR = Wordings(
    (
        "is {x} {c}",
        "is {x} {c}",
        "is the (colour|color) of {x} {c}",
        "{x} is {c}, (right|true or false|is that right|correct)",
        "true or false: {x} is {c}",
        "is it true that {x} is {c}",
        "would you say {x} is {c}",
    ),
    ("am i right that {x} is {c}",),
)
_SOUNDS = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "pig": "oink", "sheep": "baa", "horse": "neigh", "lion": "roar", "bee": "buzz", "bird": "tweet", "frog": "ribbit", "snake": "hiss", "mouse": "squeak", "rooster": "cock-a-doodle-doo", "owl": "hoot", "wolf": "howl", "donkey": "hee-haw", "chicken": "cluck", "hen": "cluck",
    "goat": "maa", "crow": "caw", "turkey": "gobble", "tiger": "roar", "bear": "growl", "monkey": "ooh ooh ah ah", "elephant": "trumpet", "dove": "coo", "pigeon": "coo", "goose": "honk", "puppy": "yap", "kitten": "mew", "raven": "caw", "lamb": "baa", "fly": "buzz", "mosquito": "buzz", "cricket": "chirp",
}  # fmt: skip
_ALSO = {
    "woof": "woof|bark",
    "meow": "meow|purr",
    "tweet": "tweet|chirp",
    "neigh": "neigh",
    "roar": "roar|growl",
    "howl": "howl",
    "growl": "growl|roar",
    "baa": "baa",
    "maa": "maa|baa",
}
_SOUND = Wordings(
    (
        "(what|which) (sound|noise) does (a|an|the) {x} make",
        "what does (a|an|the) {x} say",
        "what (sound|noise) do {x}s make",
        "how does (a|an|the) {x} (sound|go)",
        "what is the (sound|noise) of (a|an|the) {x}",
        "(tell me|make|give me) the (sound|noise) of (a|an|the) {x}",
        "the {x} (says|goes|makes) what",
        "which (sound|noise) comes from (a|an|the) {x}",
        "(can|could) you (make the sound of|sound like) (a|an|the) {x}",
        "{x} (sound|noise)",
        "what do {x}s say",
        "what does (the|a|an) {x} go",
        "do you know (what|which) (sound|noise) (a|an|the) {x} makes",
        "(a|the|an) {x} says",
    ),
    ("what kind of (sound|noise) would (a|an|the) {x} make", "how would you write the (sound|noise) of (a|an|the) {x}"),
)
_WHO_SAYS = Wordings(
    (
        "(what|which) animal (says|goes|makes the sound) {s}",
        "who says {s}",
        "(which|what) animal makes {s}",
        "what (says|goes) {s}",
    ),
    ("do you know which animal says {s}",),
)
CAPITALS = dict(
    pair.split(":")
    for pair in ["France:Paris", "Germany:Berlin", "Italy:Rome", "Spain:Madrid", "England:London", "the United Kingdom:London", "Portugal:Lisbon", "Austria:Vienna", "Switzerland:Bern", "Belgium:Brussels", "the Netherlands:Amsterdam", "Denmark:Copenhagen", "Norway:Oslo", "Sweden:Stockholm", "Finland:Helsinki", "Poland:Warsaw", "Greece:Athens", "Turkey:Ankara", "Russia:Moscow", "Ukraine:Kyiv", "Hungary:Budapest", "Ireland:Dublin", "Scotland:Edinburgh", "Wales:Cardiff", "Iceland:Reykjavik", "Romania:Bucharest", "Bulgaria:Sofia", "Croatia:Zagreb", "Serbia:Belgrade", "Slovakia:Bratislava", "Slovenia:Ljubljana", "Czechia:Prague", "the Czech Republic:Prague", "Luxembourg:Luxembourg", "Estonia:Tallinn", "Latvia:Riga", "Lithuania:Vilnius", "the United States:Washington, D.C.", "the USA:Washington, D.C.", "America:Washington, D.C.", "Canada:Ottawa", "Mexico:Mexico City", "Cuba:Havana", "Brazil:Brasilia", "Argentina:Buenos Aires", "Chile:Santiago", "Peru:Lima", "Colombia:Bogota", "Venezuela:Caracas", "Ecuador:Quito", "Uruguay:Montevideo", "China:Beijing", "Japan:Tokyo", "India:New Delhi", "South Korea:Seoul", "North Korea:Pyongyang", "Thailand:Bangkok", "Vietnam:Hanoi", "Indonesia:Jakarta", "the Philippines:Manila", "Malaysia:Kuala Lumpur", "Singapore:Singapore", "Nepal:Kathmandu", "Pakistan:Islamabad", "Iran:Tehran", "Iraq:Baghdad", "Israel:Jerusalem", "Saudi Arabia:Riyadh", "Egypt:Cairo", "Morocco:Rabat", "Algeria:Algiers", "Tunisia:Tunis", "Kenya:Nairobi", "Nigeria:Abuja", "Ethiopia:Addis Ababa", "Ghana:Accra", "South Africa:Pretoria", "Australia:Canberra", "New Zealand:Wellington"]
)  # fmt: skip
_CAPITAL = Wordings(
    (
        "(what is|what's|whats|tell me|name|give me|say|do you know) the capital (city |)of {x}",
        "capital of {x}",
        "the capital (city |)of {x}",
        "(which|what) (city|town) is the capital of {x}",
        "what is {x}'s capital",
        "{x}'s capital",
        "the capital of {x} is",
        "(which|what) is the capital (city |)of {x}",
        "{x} has (which|what) capital",
        "(can|could) you (tell me|name) the capital of {x}",
        "what capital does {x} have",
        "what is the main city and capital of {x}",
        "{x}: (what is the |)capital",
        "where is the government of {x}",
        "do you know what the capital of {x} is",
    ),
    ("which city do we call the capital of {x}", "i forgot the capital of {x}", "what city is {x}'s capital"),
)
_CAPITAL_OF = Wordings(
    (
        "(what|which) country is {c} the capital of",
        "{c} is the capital of (what|which) country",
        "{c} is the capital of what",
        "of which country is {c} the capital",
        "(what|which) country has the capital {c}",
        "(in which|what) country is {c}( in|)",
        "where is {c}",
    ),
    ("{c} is which country's capital",),
)
_LISTS = {
    "fruit": ("fruits", "apple|banana|orange|pear|grape|cherry"), "animal": ("animals", "cat|dog|horse|lion|elephant|bird"), "colour": ("colours", "red|blue|green|yellow|black|white"), "color": ("colors", "red|blue|green|yellow|black|white"), "vegetable": ("vegetables", "carrot|potato|tomato|onion|pea|cabbage"),
    "country": ("countries", "France|Germany|Italy|Japan|Brazil|Egypt"), "bird": ("birds", "eagle|owl|duck|swan|crow|parrot"), "city": ("cities", "Paris|London|Berlin|Rome|Tokyo|Madrid"), "drink": ("drinks", "water|milk|tea|coffee|juice|lemonade"), "farm animal": ("farm animals", "cow|pig|sheep|horse|hen|goat"), "wild animal": ("wild animals", "lion|tiger|bear|wolf|elephant|fox"), "pet": ("pets", "cat|dog|hamster|rabbit|parrot|fish"),
    "sport": ("sports", "football|tennis|swimming|running|hockey|chess"), "shape": ("shapes", "circle|square|triangle|star|oval|cube"), "flower": ("flowers", "rose|tulip|daisy|lily|sunflower|violet"), "tree": ("trees", "oak|pine|birch|maple|willow|beech"), "season": ("seasons", "spring|summer|autumn|winter"), "planet": ("planets", "Mercury|Venus|Earth|Mars|Jupiter|Saturn"), "tool": ("tools", "hammer|saw|screwdriver|drill|axe|file"), "insect": ("insects", "ant|bee|fly|beetle|butterfly|moth"),
    "instrument": ("instruments", "piano|guitar|violin|flute|drum|trumpet"), "musical instrument": ("musical instruments", "piano|guitar|violin|flute|drum|trumpet"), "vehicle": ("vehicles", "car|bus|train|bicycle|ship|plane"), "job": ("jobs", "teacher|doctor|baker|farmer|driver|cook"), "number": ("numbers", "one|two|three|four|five|six"), "day": ("days", "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday"), "month": ("months", "January|February|March|April|May|June"), "letter": ("letters", "a|b|c|d|e|f"), "food": ("foods", "bread|cheese|rice|soup|pasta|cake"), "toy": ("toys", "ball|doll|kite|puzzle|train|bear"),
    "body part": ("body parts", "head|hand|foot|arm|leg|eye"), "name": ("names", "Anna|Tom|Mia|Ben|Sara|Leo"), "metal": ("metals", "iron|gold|silver|copper|tin|lead"), "programming language": ("programming languages", "Python|C++|Rust|Java|Go|C"), "fish": ("fish", "salmon|trout|tuna|cod|carp|shark"), "language": ("languages", "English|French|German|Spanish|Italian|Chinese"), "piece of clothing": ("clothes", "shirt|shoe|hat|coat|sock|dress"), "piece of furniture": ("pieces of furniture", "table|chair|bed|sofa|desk|shelf"), "sea animal": ("sea animals", "fish|whale|shark|dolphin|crab|seal"), "continent": ("continents", "Europe|Asia|Africa|America|Australia|Antarctica"), "thing": ("things", "book|lamp|chair|cup|ball|key"),
}  # fmt: skip
_NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "2": 2, "3": 3, "4": 4, "5": 5, "some": 3, "a few": 3, "six": 6}
_LIST = Wordings(
    (
        "(list|name|give me|tell me|write|say|show me|can you name|could you list|can you list|please name|please list|can you give me|think of|write down|enumerate) {n} {x}",
        "(list|name|give me|tell me|say) {n} {x}",
        "{n} {x}",
        "(what are|which are) {n} {x}",
        "i (want|need|would like) {n} {x}",
        "(give|make|write) a list of {n} {x}",
        "a list of {n} {x}",
        "(name|list|tell me) {n} (different|common|well known) {x}",
        "do you know {n} {x}",
        "(give me|name) {n} examples of {x}",
        "could you (name|tell me|give me) {n} {x}",
        "{n} {x} please",
        "name any {n} {x}",
        "(list|name) {n} kinds of {x}",
    ),
    ("would you name {n} {x} for me", "please write down {n} {x}", "i am looking for {n} {x}"),
)
_LIST_ONE = Wordings(
    (
        "(name|give me|tell me|say|can you name|think of|name me) (a|one) {x}",
        "what is an example of (a|an) {x}",
        "(give me|name) an example of (a|an) {x}",
        "(a|one) {x} please",
        "(name|tell me) any {x}",
        "do you know a {x}",
        "(your|what is your) favourite {x}",
    ),
    ("would you name one {x}",),
)
_YES = [
    "the sky blue",
    "ice cold",
    "fire hot",
    "the sun hot",
    "snow white",
    "water wet",
    "the sun a star",
    "a dog an animal",
    "a rose a flower",
    "grass green",
    "sugar sweet",
    "a lemon sour",
    "an apple a fruit",
    "a carrot a vegetable",
    "a whale an animal",
    "the earth round",
    "Paris in France",
    "Berlin in Germany",
    "London in England",
    "Rome in Italy",
    "a car faster than a snail",
    "an elephant bigger than a mouse",
    "a banana yellow",
    "milk white",
    "gold a metal",
    "winter cold",
    "summer warm",
    "a cat an animal",
    "a bee an insect",
    "a triangle a shape",
    "Monday a day",
    "July a month",
    "a piano an instrument",
    "football a sport",
    "red a colour",
    "the night dark",
    "a stone hard",
    "a feather light",
    "Tokyo in Japan",
    "the earth a planet",
    "a shark a fish",
    "iron a metal",
    "salt salty",
    "coffee brown",
    "a tree a plant",
    "a horse bigger than a cat",
    "a spoon made of metal",
    "the moon round",
    "a lion dangerous",
    "local memory faster than remote memory",
    "a token a piece of text",
    "homenode a server",
    "homenode free software",
    "an owl a bird",
    "lava hot",
    "honey sweet",
    "the ocean deep",
    "a snail slow",
    "a cheetah fast",
]
_NO = [
    "the sky green",
    "ice hot",
    "fire cold",
    "the sun cold",
    "snow black",
    "the moon a star",
    "a dog a plant",
    "a cat a bird",
    "grass blue",
    "sugar sour",
    "a carrot a fruit",
    "the earth flat",
    "Paris in Germany",
    "Berlin in France",
    "London in Spain",
    "Rome in Japan",
    "a snail faster than a car",
    "a mouse bigger than an elephant",
    "a banana blue",
    "milk black",
    "winter hot",
    "a stone soft",
    "a feather heavy",
    "Monday a month",
    "July a day",
    "a whale a bird",
    "the sea dry",
    "a cow a fish",
    "a chair alive",
    "a rock alive",
    "the moon made of cheese",
    "coal white",
    "a tomato blue",
    "an ant bigger than a horse",
    "remote memory faster than local memory",
    "a bee a bird",
    "a rose an animal",
    "a car an animal",
    "water dry",
    "the sun a planet",
    "a tree an animal",
    "a table an animal",
    "a lion a plant",
    "salt sweet",
    "the night bright",
    "Tokyo in Italy",
    "a spider a fish",
    "the sky made of stone",
    "a cat bigger than a house",
    "a fish a bird",
    "blood green",
    "a lemon sweet",
    "a book alive",
]
_CAN = {
    "fly": ("a bird|an eagle|a bee|a butterfly|a plane|an owl|a bat|a duck|birds|a fly", "a dog|a cat|a fish|a cow|a pig|a horse|an elephant|a stone|a snake|a mouse|pigs|a car|dogs|a tree|cows|cats"),
    "swim": ("a fish|a duck|a whale|a dolphin|a shark|a frog|fish|ducks|a seal", "a stone|a chair|a car|a rock|a table|a tree"),
    "bark": ("a dog|dogs|a puppy", "a cat|a fish|a bird|cats|a cow|a tree|birds"),
    "meow": ("a cat|cats|a kitten", "a dog|a fish|a cow|dogs|a horse"),
    "talk": ("a person|people|a man|a woman", "a stone|a chair|a table|a tree|a shoe|a rock"),
    "climb trees": ("a monkey|a cat|monkeys|a squirrel", "a fish|a cow|a whale|a shark"),
    "run": ("a dog|a horse|a child|horses|a cat|a lion", "a stone|a tree|a table|a fish|a snake"),
    "hop": ("a rabbit|a frog|a kangaroo|rabbits", "a fish|a snake|a stone|a table"),
    "live in water": ("a fish|a whale|fish|a shark", "a cat|a lion|a camel|a hen"),
    "lay eggs": ("a hen|a bird|hens|a duck|birds|a chicken", "a dog|a cow|a stone|a cat"),
    "give milk": ("a cow|cows|a goat", "a hen|a fish|a stone|a bird"),
}  # fmt: skip
_HAS = {
    "wings": ("birds|a bird|a bee|a butterfly|an eagle|a plane", "a dog|cats|a cat|a fish|a horse|a cow|pigs|a car"),
    "four legs": (
        "a dog|a cat|a horse|cats|dogs|a cow|a table|a chair",
        "a bird|a spider|a fish|a snake|a man|a duck|a hen",
    ),
    "eight legs": ("a spider|spiders|an octopus", "a dog|a cat|a bird|a fish|a horse"),
    "six legs": ("an ant|an insect|a bee|ants", "a spider|a dog|a bird|spiders|a cat"),
    "two legs": ("a bird|a duck|a man|birds|a hen", "a dog|a cat|a spider|a cow"),
    "legs": ("a dog|a cat|a horse|a spider|a table", "a fish|a snake|a whale|fish|snakes"),
    "a tail": ("a dog|a cat|a monkey|a horse|a mouse", "a stone|a chair|a spoon|a book"),
    "fur": ("a cat|a dog|a bear|cats|a rabbit", "a fish|a snake|a frog|a stone"),
    "feathers": ("a bird|birds|a duck|a hen", "a cat|a dog|a fish|a cow"),
    "four wheels": ("a car|cars", "a bicycle|a boat|a horse|a bike"),
    "two wheels": ("a bicycle|a bike", "a car|a boat|a house"),
    "leaves": ("a tree|trees|a plant", "a stone|a dog|a car"),
    "a trunk": ("an elephant|elephants|a tree", "a cat|a mouse|a fish"),
    "a brain": ("a person|a dog|people", "a stone|a chair|a table"),
    "seven days": ("a week", "a month|a day|a year"),
    "twelve months": ("a year", "a week|a month|a day"),
    "three sides": ("a triangle", "a square|a circle"),
    "its own memory": ("a NUMA node", "a keyboard|a chair"),
}
_TRUTH = Wordings(
    (
        "{x}",
        "{x}",
        "{x}",
        "{x}, yes or no",
        "yes or no: {x}",
        "tell me, {x}",
        "(answer yes or no|answer with yes or no): {x}",
    ),
    ("please answer yes or no. {x}", "i wonder, {x}"),
)


def colour(rng: random.Random, held: bool) -> Exchange:
    """The colour of a thing, or whether it has a given colour."""
    thing, found = rng.choice(tuple(_THING_COLOUR.items()))
    is_are = (
        "are"
        if thing.endswith("s") and not thing.startswith(("a ", "an ")) and thing not in ("grass", "lettuce", "moss")
        else "is"
    )
    name = thing[0].upper() + thing[1:]
    if rng.random() < 0.22:
        true = rng.random() < 0.5
        asked = found if true else rng.choice([c for c in _COLOURS if c != found])
        answer = f"Yes, {thing} {is_are} {found}." if true else f"No, {thing} {is_are} {found}."
        question = ask(rng, _IS_COLOUR.of(held), x=thing, c=asked)
        return Exchange(
            "is_colour",
            question.replace(f"Is {thing}", f"{is_are.capitalize()} {thing}"),
            answer,
            "^yes" if true else "^no",
        )
    shown = thing.split(" ", 1)[1] if rng.random() < 0.08 and thing.startswith(("a ", "the ")) else thing
    return Exchange("colour", ask(rng, _COLOUR.of(held), x=shown), f"{name} {is_are} {found}.", word_pattern(found))


def sound(rng: random.Random, held: bool) -> Exchange:
    """What an animal says, or which animal says it."""
    animal, says = rng.choice(tuple(_SOUNDS.items()))
    if rng.random() < 0.12:
        says = rng.choice(("moo", "woof", "meow", "quack", "oink", "baa", "neigh", "ribbit"))
        animal = next(name for name, its in _SOUNDS.items() if its == says)
        return Exchange(
            "who_says",
            ask(rng, _WHO_SAYS.of(held), s=says),
            f"{article(animal).capitalize()} says {says}.",
            word_pattern(animal),
        )
    question = ask(rng, _SOUND.of(held), x=animal)
    for wrong, right in (
        (f" a {animal}", f" {article(animal)}"),
        (f" an {animal}", f" {article(animal)}"),
        ("mouses", "mice"),
        ("sheeps", "sheep"),
        ("wolfs", "wolves"),
    ):
        question = question.replace(wrong, right)
    return Exchange("sound", question, f"{article(animal).capitalize()} says {says}.", _ALSO.get(says, says))


def capital(rng: random.Random, held: bool) -> Exchange:
    """The capital of a country, or the country of a capital."""
    country, city = rng.choice(tuple(CAPITALS.items()))
    if rng.random() < 0.12:
        country = next(name for name, its in CAPITALS.items() if its == city)
        return Exchange(
            "capital_of",
            ask(rng, _CAPITAL_OF.of(held), c=city),
            f"{city} is the capital of {country}.",
            word_pattern(country.removeprefix("the ")),
        )
    shown = country.removeprefix("the ") if rng.random() < 0.3 else country
    answer = f"The capital of {country} is {city}."
    return Exchange(
        "capital", ask(rng, _CAPITAL.of(held), x=shown), answer.replace("..", "."), word_pattern(city.rstrip("."))
    )


def listing(rng: random.Random, held: bool) -> Exchange:
    """One, or several, of a kind."""
    one, (many, members) = rng.choice(tuple(_LISTS.items()))
    if rng.random() < 0.3:
        one = rng.choice(("fruit", "animal", "colour", "vegetable", "country", "bird", "color", "city"))
        many, members = _LISTS[one]
    things = members.split("|")
    if rng.random() < 0.12:
        question = (
            ask(rng, _LIST_ONE.of(held), x=one)
            .replace(f" a {one}", f" {article(one)}")
            .replace(f" an {one}", f" {article(one)}")
        )
        return Exchange("list_one", question, things[0][0].upper() + things[0][1:] + ".", word_pattern(things[0]))
    number = rng.choice((*tuple(word for word, n in _NUMBERS.items() if n <= len(things)), "three", "3", "three"))
    chosen = things[: _NUMBERS[number]]
    answer = ", ".join(chosen[:-1]) + " and " + chosen[-1] + "."
    return Exchange(
        "list", ask(rng, _LIST.of(held), n=number, x=many), answer[0].upper() + answer[1:], word_pattern(*chosen)
    )


def truth(rng: random.Random, held: bool) -> Exchange:
    """A plain question to be answered by yes or no."""
    true = rng.random() < 0.5
    if rng.random() < 0.45:
        verb = rng.choice(tuple(_CAN))
        who = rng.choice(_CAN[verb][0 if true else 1].split("|"))
        plural = (not who.startswith(("a ", "an ")) and who != "fish") or who == "fish"
        asked = rng.choice(
            (
                f"can {who} {verb}",
                f"{'do' if plural else 'does'} {who} {verb}",
                f"is it true that {who} can {verb}",
                f"can {who} {verb}",
            )
        )
        answer = f"Yes, {who} can {verb}." if true else f"No, {who} cannot {verb}."
    else:
        said = rng.choice(_YES if true else _NO)
        subject, rest = _split(said)
        asked = rng.choice(
            (
                f"is {said}",
                f"is {said}",
                f"is it true that {subject} is {rest}",
                f"is it right that {subject} is {rest}",
                f"true or false: {subject} is {rest}",
            )
        )
        answer = f"Yes, {subject} is {rest}." if true else f"No, {subject} is not {rest}."
    patterns = [pattern.replace("{x}", asked) for pattern in _TRUTH.of(held)]
    return Exchange("truth", ask(rng, patterns), answer, "^yes" if true else "^no")


def has(rng: random.Random, held: bool) -> Exchange:
    """Does somebody or something have a part?"""
    part, sides = rng.choice(tuple(_HAS.items()))
    true = rng.random() < 0.5
    who = rng.choice(sides[0 if true else 1].split("|"))
    several = not who.startswith(("a ", "an ")) and who != "fish"
    does, have, lacks = ("do", "have", "do not have") if several else ("does", "has", "does not have")
    asked = rng.choice(
        (
            f"{does} {who} have {part}",
            f"{does} {who} have {part}",
            f"is it true that {who} {have} {part}",
            f"true or false: {who} {have} {part}",
        )
    )
    answer = f"Yes, {who} {have} {part}." if true else f"No, {who} {lacks} {part}."
    return Exchange(
        "has",
        ask(rng, [pattern.replace("{x}", asked) for pattern in _TRUTH.of(held)]),
        answer,
        "^yes" if true else "^no",
    )


def _split(said: str) -> tuple[str, str]:
    """Splits "the sky blue" into "the sky" and "blue": the subject is an article and a noun, a name, or a name of two words."""
    words = said.split(" ")
    size = 2 if words[0] in ("a", "an", "the") or words[:2] in (["local", "memory"], ["remote", "memory"]) else 1
    return " ".join(words[:size]), " ".join(words[size:])
