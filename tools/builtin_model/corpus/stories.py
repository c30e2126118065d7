"""Small stories and poems, asked for in a chat or told as plain text."""

from __future__ import annotations

import random
import re

from .phrasing import Exchange, Wordings, article, ask, word_pattern
from .vocabulary import WORDS

NAMES = [
    "Tom",
    "Anna",
    "Ben",
    "Mia",
    "Max",
    "Lily",
    "Sam",
    "Emma",
    "Leo",
    "Sara",
    "Tim",
    "Lucy",
    "Jack",
    "Ella",
    "Bob",
    "Nina",
    "Paul",
    "Rosa",
    "Fred",
    "Ida",
    "Oscar",
    "Clara",
    "Felix",
    "Nora",
    "Hugo",
    "Zoe",
    "Otto",
    "Eva",
    "Milo",
    "Amy",
    "Bella",
    "Charlie",
    "Daisy",
    "Sophie",
    "Peter",
    "Mary",
    "John",
    "Alice",
    "David",
    "Kate",
    "Luna",
    "Coco",
    "Rex",
    "Molly",
    "Toby",
    "Ruby",
    "Whiskers",
    "Fluffy",
    "Spot",
    "Buddy",
    "Rocky",
    "Pip",
    "Kiki",
    "Momo",
    "Bruno",
    "Lola",
    "Simba",
    "Nemo",
    "Mimi",
    "Olivia",
    "Jane",
    "Mark",
    "Julia",
    "Henry",
    "Grace",
    "Oliver",
    "Noah",
    "Finn",
    "Maria",
    "Jim",
    "Bill",
    "Sally",
    "Tommy",
    "Timmy",
    "Snowy",
    "Ginger",
    "Bubbles",
    "Sunny",
    "Pepper",
    "Teddy",
    "Billy",
    "Susan",
    "Hannah",
    "Carl",
    "Lena",
    "Marie",
    "George",
]
HEROES = [
    "cat",
    "dog",
    "rabbit",
    "mouse",
    "fox",
    "bear",
    "bird",
    "duck",
    "frog",
    "horse",
    "lion",
    "elephant",
    "owl",
    "turtle",
    "pig",
    "cow",
    "sheep",
    "goat",
    "bee",
    "fish",
    "squirrel",
    "hedgehog",
    "monkey",
    "tiger",
    "wolf",
    "penguin",
    "dragon",
    "robot",
    "girl",
    "boy",
    "child",
    "king",
    "princess",
    "prince",
    "farmer",
    "kitten",
    "puppy",
    "snail",
    "whale",
    "dolphin",
    "crab",
    "giraffe",
    "zebra",
    "ant",
    "butterfly",
    "hen",
    "swan",
    "deer",
    "donkey",
    "lamb",
    "parrot",
    "knight",
    "witch",
    "wizard",
    "pirate",
    "fairy",
    "ghost",
    "panda",
    "koala",
    "octopus",
    "shark",
    "snake",
    "unicorn",
    "dinosaur",
    "goose",
    "rooster",
    "crow",
    "hamster",
    "spider",
    "star",
    "cloud",
    "tree",
    "train",
    "boat",
    "car",
    "computer",
    "server",
    "baker",
    "sailor",
    "queen",
    "giant",
    "monster",
    "teacher",
    "old man",
    "old woman",
]
_SHE = frozenset(
    [
        "Anna",
        "Mia",
        "Lily",
        "Emma",
        "Sara",
        "Lucy",
        "Ella",
        "Nina",
        "Rosa",
        "Ida",
        "Clara",
        "Nora",
        "Zoe",
        "Eva",
        "Amy",
        "Bella",
        "Daisy",
        "Sophie",
        "Mary",
        "Alice",
        "Kate",
        "Luna",
        "Molly",
        "Ruby",
        "Kiki",
        "Lola",
        "Mimi",
        "Olivia",
        "Jane",
        "Julia",
        "Grace",
        "Maria",
        "Sally",
        "Ginger",
        "Susan",
        "Hannah",
        "Lena",
        "Marie",
    ]
)
_KINDS = ("little", "small", "kind", "brave", "happy", "young", "clever", "funny")
_PLACES = (
    "in a small house near the forest",
    "by the blue sea",
    "on a green farm",
    "in a quiet village",
    "at the foot of a mountain",
    "near a big lake",
    "in a sunny garden",
    "at the edge of the forest",
)
_THINGS = ("red ball", "golden key", "little bell", "blue hat", "shiny stone", "warm scarf", "small lamp", "wooden box")
_LOST_AT = (
    "under a tree",
    "behind a stone",
    "in the tall grass",
    "near the river",
    "under a bush",
    "beside the old gate",
)
_FRIENDS = ("mouse", "bird", "rabbit", "frog", "squirrel", "turtle", "hedgehog", "duck")

_STORY = Wordings(
    (
        "(tell me|tell|write|give me|write me|can you tell me|could you tell me|can you write|please tell me|please write|i want|i would like|make up|invent) a (little |short |small |nice |tiny |simple |)(story|tale) about {x}",
        "(tell me|tell|write) a story about {x}",
        "tell me a story about {x}",
        "a (short |little |)story about {x}",
        "(story|tale) about {x}",
        "(tell me|write) a (bedtime|funny|children's) story about {x}",
        "can you tell a story about {x}",
        "tell a tale of {x}",
        "(tell me|write) something about {x}, a story",
        "i want to hear a story about {x}",
        "do you know a story about {x}",
        "make up a story about {x}",
        "write a (very |)short story (about|with|on) {x}",
        "tell me the story of {x}",
    ),
    (
        "would you tell me a story about {x}",
        "please invent a little story about {x}",
        "write me a short tale about {x}",
        "i'd love a story about {x}",
    ),
)
_STORY_ANY = Wordings(
    (
        "(tell me|tell|write|give me|write me|can you tell me|please tell me|i want|i would like|invent) (a|one|another|some) (little |short |small |nice |)(story|tale)",
        "(tell|do you know|can you tell) (a story|stories|a tale|any stories)",
        "(story|a story)( please|)",
        "tell me something( nice|)",
        "(tell me|write) a (bedtime|good night) story",
        "once upon a time",
    ),
    ("would you tell me a story", "i'd love to hear a story"),
)
_NAMED = (
    "{a} named {n}",
    "{a} called {n}",
    "{a} whose name is {n}",
    "{n} the {h}",
    "{n}, {a}",
    "{a} with the name {n}",
)

_POEM = Wordings(
    (
        "(write|tell me|give me|make|write me|can you write|could you write|please write|compose|recite|i want|i would like|say) a (short |little |small |nice |)(poem|rhyme|verse) about {x}",
        "(write|tell me|give me) a (short |)(poem|rhyme) about {x}",
        "(poem|rhyme|a poem|a rhyme) about {x}",
        "(do you know|can you make) a (poem|rhyme) about {x}",
        "a (short |)(poem|rhyme) (on|about) {x}",
        "(write|make) a (poem|rhyme) (on|with|for) {x}",
        "rhyme about {x}",
    ),
    ("would you write a little poem about {x}", "i'd love a poem about {x}"),
)
_POEM_ANY = Wordings(
    (
        "(write|tell me|give me|make|write me|can you write|please write|recite|say) (a|me a|one|another) (short |little |small |)(poem|rhyme|verse)",
        "(poem|a poem|a rhyme)( please|)",
        "(do you know|can you make|can you write|can you say) (a poem|poems|a rhyme|a short poem)",
    ),
    ("would you write me a poem", "have you got a poem for me"),
)
_TOPICS = (
    "the sun",
    "the moon",
    "the sea",
    "the rain",
    "the wind",
    "the stars",
    "a star",
    "a cat",
    "a dog",
    "a tree",
    "a rose",
    "the snow",
    "a bird",
    "the night",
    "the spring",
    "the summer",
    "the winter",
    "the autumn",
    "love",
    "friends",
    "a friend",
    "a river",
    "a house",
    "my mother",
    "memory",
    "a computer",
    "a server",
    "NUMA",
    "homenode",
    "a robot",
    "the sky",
    "a cloud",
    "flowers",
    "a flower",
    "a mouse",
    "the forest",
    "home",
    "music",
    "a book",
    "a train",
    "bread",
    "tea",
    "coffee",
    "the morning",
    "cats",
    "dogs",
    "trees",
    "birds",
    "water",
    "a fish",
    "the ocean",
    "a horse",
    "a frog",
    "nature",
    "the mountains",
    "a mountain",
    "threads",
    "tokens",
)


def _body(rng: random.Random, hero: str, name: str, how: str) -> str:
    she = name in _SHE if hero not in ("boy", "king", "prince", "old man") else False
    if hero in ("girl", "princess", "queen", "old woman", "witch", "fairy"):
        she = True
    he, his, him = ("she", "her", "her") if she else ("he", "his", "him")
    place, thing, spot = rng.choice(_PLACES), rng.choice(_THINGS), rng.choice(_LOST_AT)
    friend = rng.choice([kind for kind in _FRIENDS if kind != hero])
    opening = f"Once upon a time there was {article(f'{how} {hero}')} named {name}. {name} lived {place}. "
    plots = (
        f"One day {name} lost {his} {thing} and was very sad. A friendly {friend} helped {him} to look for it. They found the {thing} {spot}. {name} was happy, and the two became good friends.",
        f"One morning {name} went for a walk and met a small {friend} who was lost. \"Do not be afraid,\" said {name}, \"I will take you home.\" They walked together until they found the way. The {friend} thanked {name}, and {he} went home happy.",
        f"One night there was a big storm, and a {friend} knocked at the door. {name} let the {friend} in and gave it warm soup. In the morning the sun came out again. From that day on they were the best of friends.",
        f"{name} wanted to see the world, so one day {he} set out early. On the way {he} found a {thing} {spot} and gave it to a {friend} who needed it. In the evening {name} was tired but happy. \"Home is the best place,\" {he} said.",
    )  # fmt: skip
    return opening + rng.choice(plots)


def _hero(rng: random.Random) -> tuple[str, str, str]:
    return rng.choice(HEROES), rng.choice(NAMES), rng.choice(_KINDS)


def story(rng: random.Random, held: bool) -> Exchange:
    """A story about somebody, with or without a name given, or about anybody."""
    hero, name, how = _hero(rng)
    form = rng.random()
    if form < 0.15:
        return Exchange("story_any", ask(rng, _STORY_ANY.of(held)), _body(rng, hero, name, how), r"(\.[\s\S]*){4}")
    shown = f"{rng.choice((how, how, 'little', 'small', 'big', 'brave'))} {hero}" if rng.random() < 0.25 else hero
    if shown != hero:
        how = shown.split(" ")[0]
    about = article(shown)
    if form < 0.25:
        people = ("girl", "boy", "child")
        hero = "girl" if name in _SHE else rng.choice(people[1:])
        return Exchange(
            "story_name",
            ask(rng, _STORY.of(held), x=name),
            _body(rng, hero, name, rng.choice(_KINDS)),
            rf"{name}(?:[\s\S]*\.){{4}}",
        )
    if form < 0.65:
        about = rng.choice(_NAMED).replace("{a}", about).replace("{n}", name).replace("{h}", hero)
    else:
        about = rng.choice((about, about, f"the {shown}", "my " + hero)) if form < 0.9 else about
        name = rng.choice(NAMES)
    wanted = word_pattern(hero, *([name] if name in about else []))
    return Exchange(
        "story", ask(rng, _STORY.of(held), x=about), _body(rng, hero, name, how), wanted + r"(?:[\s\S]*\.){4}"
    )


def poem(rng: random.Random, held: bool) -> Exchange:
    """Four lines in rhyme about whatever is asked for."""
    if rng.random() < 0.2:
        return Exchange("poem_any", ask(rng, _POEM_ANY.of(held)), _verse(rng, "the moon", rng.randrange(3)), r"\n")
    topic = (
        rng.choice(_TOPICS)
        if rng.random() < 0.6
        else rng.choice(("the {}", "a {}", "my {}")).format(rng.choice(WORDS[:560]))
    )
    topic = re.sub(r"\ba ([aeiou])", r"an \1", topic)
    return Exchange(
        "poem",
        ask(rng, _POEM.of(held), x=topic),
        _verse(rng, topic, rng.randrange(3)),
        re.escape(topic.split(" ")[-1]) + r"[\s\S]*\n",
    )


def _verse(rng: random.Random, topic: str, which: int) -> str:
    verses = (
        f"I think of {topic} day and night,\nit makes my little world so bright.\nAnd when the evening turns to gray,\nI dream of {topic} anyway.",
        f"Here is a song for {topic}, my dear,\nthe nicest song for you to hear.\nIt is not long, it is not new,\nbut {topic} and I made it for you.",
        f"Today I thought of {topic} again,\nI wrote these lines with paper and pen.\nThe day is done, the work is through,\ngood night to {topic}, good night to you.",
    )
    return verses[which]


def plain_story(rng: random.Random) -> str:
    """A story without a chat around it, for text completion."""
    hero, name, how = _hero(rng)
    text = _body(rng, hero, name, how)
    if rng.random() < 0.3:
        text += " " + rng.choice(("The end.", "And they lived happily ever after."))
    return text
