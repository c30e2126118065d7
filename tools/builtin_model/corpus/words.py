"""Letters and words: spelling, first and last letters, lengths, repeating, opposites, plurals, rhymes."""

from __future__ import annotations

import random
import re

from .phrasing import Exchange, Wordings, article, ask, word_pattern
from .vocabulary import WORDS, word

_SPELL = Wordings(
    (
        "spell {x}",
        "spell the word {x}",
        "how (do you|do i|would you|can i|to) spell {x}",
        "how is {x} spelled",
        "how (do you|do i) spell the word {x}",
        "(can|could) you (please |)spell {x}( for me|)",
        "(can|could) you spell the word {x}( for me|)",
        "what is the spelling of {x}",
        "{x}, how is (it|that) spelled",
        "spell out {x}",
        "spell out the word {x}",
        "spelling of {x}",
        "(give me|tell me|write|say|list) the letters (of|in) (the word |){x}",
        "(what|which) letters are in (the word |){x}",
        "write {x} letter by letter",
        "(say|tell me) how to spell {x}",
        "break {x} into letters",
        "spell: {x}",
        "please spell {x}",
    ),
    ("would you please spell the word {x}", "{x} is spelled how", "spell {x} letter by letter"),
)
_FIRST = Wordings(
    (
        "(what is|what's|tell me|give me|say|name) the first letter (of|in) (the word |){x}",
        "(what|which) letter does (the word |){x} (start|begin) with",
        "(what|which) is the first letter (of|in) (the word |){x}",
        "{x} (starts|begins) with (which|what) letter",
        "first letter of {x}",
        "the first letter of (the word |){x}",
        "with (which|what) letter does (the word |){x} (start|begin)",
        "what does (the word |){x} (start|begin) with",
        "how does the word {x} (start|begin)",
        "what letter is first in {x}",
        "which letter comes first in (the word |){x}",
        "do you know the first letter of {x}",
    ),
    (
        "can you name the letter {x} starts with",
        "the word {x} starts with which letter",
        "what would be the first letter of {x}",
    ),
)
_LAST = Wordings(
    (
        "(what is|what's|tell me|give me|say|name) the last letter (of|in) (the word |){x}",
        "(what|which) letter does (the word |){x} end with",
        "{x} ends with (which|what) letter",
        "last letter of {x}",
        "with (which|what) letter does (the word |){x} end",
        "which letter comes last in (the word |){x}",
        "what does (the word |){x} end with",
    ),
    ("can you name the letter {x} ends with",),
)
_LENGTH = Wordings(
    (
        "how many letters (are in|are there in|does|has) (the word |){x}( have|)",
        "how long is the word {x}",
        "count the letters (of|in) {x}",
        "number of letters in {x}",
    ),
    ("what is the number of letters in {x}",),
)
_REPEAT = Wordings(
    (
        "repeat (the word |after me: |){x}",
        "(please |)say {x}",
        "say the word {x}",
        "(can|could) you (say|repeat) (the word |){x}",
        "repeat: {x}",
        "repeat after me: {x}",
        "write (the word |){x}",
        "just say {x}",
        "echo {x}",
        "answer with the word {x}",
        "(reply|respond|answer) (with|only with) {x}",
        "only say {x}",
        "repeat this: {x}",
        "repeat this word: {x}",
        "say exactly: {x}",
        "print {x}",
        "say {x} back to me",
        "type {x}",
    ),
    ("would you repeat the word {x}", "i want you to say {x}", "please repeat {x}"),
)
_REPEAT_TIMES = Wordings(
    (
        "(say|repeat|write) (the word |){x} {n}",
        "repeat {n}: {x}",
        "(can|could) you (say|repeat|write) (the word |){x} {n}",
        "{x}, {n} please",
    ),
    ("please repeat the word {x} {n}",),
)
_TIMES = {
    "twice": 2,
    "two times": 2,
    "three times": 3,
    "3 times": 3,
    "2 times": 2,
    "four times": 4,
    "five times": 5,
    "4 times": 4,
    "5 times": 5,
}

_OPPOSITES = (
    "hot cold|big small|up down|left right|fast slow|happy sad|day night|black white|good bad|high low|long short|old new|open closed|in out|light dark|wet dry|hard soft|rich poor|strong weak|full empty|early late|near far|loud quiet|clean dirty|thick thin|wide narrow|heavy light|tall short|young old|true false|easy difficult|alive dead|always never|before after|first last"
    "|above below|inside outside|love hate|win lose|buy sell|push pull|start stop|come go|give take|yes no|north south|east west|summer winter|sweet sour|smooth rough|safe dangerous|deep shallow|cheap expensive|front back|begin end|laugh cry|awake asleep|more less|many few|right wrong|beautiful ugly|brave afraid|sunrise sunset|warm cool|remote local|large small|top bottom|on off|morning evening|war peace|friend enemy|rise fall|same different|sharp blunt|smart stupid|remember forget|success failure|noisy quiet|simple complicated|hello goodbye|man woman|boy girl|king queen"
    "|little big|slow fast|kind cruel|tight loose|visible invisible|possible impossible|polite rude|public private|question answer|straight crooked|float sink|find lose|arrive leave|accept refuse|maximum minimum|ancient modern|bright dim|calm nervous|lazy busy|over under|huge tiny|everything nothing|together apart|increase decrease|heaven hell|generous selfish|freeze melt|ugly beautiful|lead follow|raw cooked|bitter sweet|sink float|enter leave|throw catch|teach learn|ask answer|close open|shut open|glad sad|quick slow"
)
_OPPOSITE = Wordings(
    (
        "(what is|what's|whats|tell me|give me|name|say|do you know) the opposite (of|to) (the word |){x}",
        "opposite of {x}",
        "the opposite of {x} is (what|which word)",
        "(what|which) word is the opposite of {x}",
        "(what is|what's) the (antonym|contrary|reverse) of {x}",
        "{x} is the opposite of (what|which word)",
        "antonym of {x}",
        "opposite: {x}",
        "(give|find) (an|the) (antonym|opposite) (for|of|to) {x}",
        "what is not {x}, but the opposite",
        "the opposite of {x}",
        "what is opposite to {x}",
        "if it is not {x}, what is the opposite",
        "(can|could) you (tell me|name|give me) the opposite of {x}",
    ),
    (
        "which word means the opposite of {x}",
        "what would you call the opposite of {x}",
        "what has the opposite meaning of {x}",
    ),
)
_IRREGULAR = dict(
    pair.split(" ")
    for pair in [
        "child children",
        "mouse mice",
        "foot feet",
        "tooth teeth",
        "man men",
        "woman women",
        "goose geese",
        "person people",
        "ox oxen",
        "sheep sheep",
        "fish fish",
        "deer deer",
        "leaf leaves",
        "knife knives",
        "wolf wolves",
        "wife wives",
        "life lives",
        "shelf shelves",
        "half halves",
        "calf calves",
        "loaf loaves",
        "thief thieves",
        "potato potatoes",
        "tomato tomatoes",
        "hero heroes",
        "cactus cacti",
        "louse lice",
        "scarf scarves",
        "elf elves",
        "photo photos",
        "piano pianos",
        "radio radios",
        "roof roofs",
        "zoo zoos",
        "die dice",
        "penny pennies",
        "series series",
        "species species",
        "aircraft aircraft",
    ]
)
_NOUNS = WORDS[: WORDS.index("answer")]
_UNCOUNTED = frozenset(
    [
        "bread",
        "broccoli",
        "butter",
        "flour",
        "garlic",
        "milk",
        "rice",
        "water",
        "spinach",
        "wheat",
        "wool",
        "sugar",
        "honey",
        "peas",
        "scissors",
        "jeans",
        "hair",
        "blood",
        "meat",
        "corn",
        "tea",
        "police",
        "money",
        "coffee",
        "air",
        "dust",
        "earth",
        "fog",
        "grass",
        "ice",
        "mud",
        "rain",
        "sand",
        "snow",
        "soil",
        "weather",
        "thunder",
        "lightning",
        "oil",
        "salt",
        "soap",
        "juice",
        "cream",
        "wine",
        "pasta",
        "cheese",
        "beard",
        "news",
        "autumn",
        "spring",
    ]
)
_PLURAL = Wordings(
    (
        "(what is|what's|whats|tell me|give me|say) the plural (form |)(of|for) (the word |){x}",
        "plural of {x}",
        "the plural of {x}",
        "(what|which) is the plural of {x}",
        "one {x}, two (what|...)",
        "one {x}, many what",
        "(how do you|how to) (make|form|write|say) the plural of {x}",
        "{x} in (the |)plural",
        "what do you (call|say for) (more than one|many|two|several) {x}",
        "(can|could) you (tell me|give me) the plural of {x}",
        "what is {x} in the plural",
        "pluralise {x}",
        "make {x} plural",
        "if there is more than one {x}, what do you say",
        "the plural of {x} is what",
    ),
    ("which word is the plural of {x}", "how would you write {x} in the plural", "do you know the plural of {x}"),
)
_RHYMES = "cat hat|house mouse|tree bee|star car|moon spoon|day play|night light|dog frog|bear chair|cake lake|rain train|ring king|sun fun|book cook|boat goat|sky fly|snow go|bed red|ball tall|fish dish|key sea|blue shoe|hand sand|nose rose|sing ring|bell well|fox box|pen hen|time rhyme|door floor|hill mill|note boat|love dove|name game|stone bone|core door"
_RHYME = Wordings(
    ("(what|which word) rhymes (with|on) {x}", "(give me|tell me|find|name|say) a word that rhymes with {x}", "rhyme with {x}", "a rhyme for {x}", "what is a rhyme for {x}", "(can|could) you find a rhyme for {x}"),
    ("do you know a word rhyming with {x}",),
)  # fmt: skip


def _quoted(rng: random.Random, text: str) -> str:
    style = rng.choice(("{}", "{}", '"{}"', '"{}"', "'{}'", "`{}`"))
    return style.format(text)


def _cased(rng: random.Random, text: str) -> str:
    return text if rng.random() < 0.8 else rng.choice((text.capitalize(), text.upper(), text.lower()))


def spell(rng: random.Random, held: bool) -> Exchange:
    """A word, letter by letter."""
    asked = word(rng, 0.0 if held else 0.35)
    question = ask(rng, _SPELL.of(held), keep=("x",), x=_quoted(rng, _cased(rng, asked)))
    letters = "-".join(asked.lower())
    return Exchange("spell", question, f"{letters}.", letters)


def letter(rng: random.Random, held: bool) -> Exchange:
    """The first or last letter of a word, or its length."""
    asked = word(rng, 0.0 if held else 0.35)
    form = 0.0 if held else rng.random()
    shown = _quoted(rng, _cased(rng, asked))
    plain = asked.lower()
    if form < 0.65:
        return Exchange(
            "first_letter",
            ask(rng, _FIRST.of(held), keep=("x",), x=shown),
            f'The first letter of "{plain}" is {plain[0]}.',
            rf"\b{plain[0]}\.?$",
        )
    if form < 0.85:
        return Exchange(
            "last_letter",
            ask(rng, _LAST.of(held), keep=("x",), x=shown),
            f'The last letter of "{plain}" is {plain[-1]}.',
            rf"\b{plain[-1]}\.?$",
        )
    answer = f'The word "{plain}" has {len(plain)} letters: {"-".join(plain)}.'
    return Exchange("length", ask(rng, _LENGTH.of(held), keep=("x",), x=shown), answer, str(len(plain)))


def repeat(rng: random.Random, held: bool) -> Exchange:
    """A word or a few words, once or several times."""
    asked = " ".join(word(rng, 0.0 if held else 0.3) for _ in range(rng.choice((1, 1, 1, 2, 3, 4))))
    shown = asked
    if rng.random() < 0.25:
        asked = shown = asked.capitalize()
    if rng.random() < 0.35:
        count = rng.choice(tuple(_TIMES))
        question = ask(rng, _REPEAT_TIMES.of(held), keep=("x",), x=_quoted(rng, shown), n=count)
        answer = " ".join([asked] * _TIMES[count])
        return Exchange("repeat_times", question, answer, rf"^{re.escape(answer)}\.?$")
    question = ask(rng, _REPEAT.of(held), keep=("x",), x=_quoted(rng, shown))
    return Exchange("repeat", question, asked, re.escape(asked))


def opposite(rng: random.Random, held: bool) -> Exchange:
    """The opposite of a word; the first word of each pair decides when a word has several."""
    pairs = [tuple(pair.split(" ")) for pair in _OPPOSITES.split("|")]
    table: dict[str, str] = {}
    for a, b in pairs:
        table.setdefault(a, b)
    for a, b in pairs:
        table.setdefault(b, a)
    asked = rng.choice(tuple(table))
    shown = _quoted(rng, asked) if rng.random() < 0.4 else asked
    return Exchange(
        "opposite",
        ask(rng, _OPPOSITE.of(held), x=shown),
        f"The opposite of {asked} is {table[asked]}.",
        rf"is {table[asked]}\b",
    )


def plural(rng: random.Random, held: bool) -> Exchange:
    """The plural of a noun, regular or not."""
    asked = (
        rng.choice(tuple(_IRREGULAR))
        if rng.random() < 0.45
        else rng.choice([noun for noun in _NOUNS if noun not in _UNCOUNTED])
    )
    found = _IRREGULAR.get(asked) or _regular(asked)
    shown = _quoted(rng, asked) if rng.random() < 0.4 else asked
    return Exchange(
        "plural", ask(rng, _PLURAL.of(held), x=shown), f"The plural of {asked} is {found}.", rf"is {found}\b"
    )


def _regular(noun: str) -> str:
    if noun.endswith("man"):
        return noun[:-3] + "men"
    if re.search(r"(s|x|ch|sh|z)$", noun):
        return noun + "es"
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + "s"


def rhyme(rng: random.Random, held: bool) -> Exchange:
    """A word that rhymes with another."""
    a, b = rng.choice(_RHYMES.split("|")).split(" ")
    if rng.random() < 0.3 and a != "core":
        a, b = b, a
    return Exchange(
        "rhyme", ask(rng, _RHYME.of(held), x=_quoted(rng, a)), f"{b.capitalize()} rhymes with {a}.", word_pattern(b)
    )


def use_in_sentence(rng: random.Random, held: bool) -> Exchange:
    """A short sentence with a given noun."""
    noun = rng.choice([noun for noun in _NOUNS[:520] if noun not in _UNCOUNTED])
    patterns = (
        ("please use {x} in a sentence",)
        if held
        else (
            "(make|write|give me|say|tell me) a (short |)sentence (with|about|using) (the word |){x}",
            "use (the word |){x} in a sentence",
            "(can|could) you (make|write) a sentence with {x}",
        )
    )
    return Exchange(
        "sentence",
        ask(rng, patterns, x=noun),
        f"Here is a sentence: I can see {article(noun)} over there.",
        word_pattern(noun),
    )
