"""Sums, differences, small products, comparing, counting and neighbours of numbers."""

from __future__ import annotations

import random

from .phrasing import Exchange, Wordings, ask, word_pattern

_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
    "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_THINGS = (
    "apples",
    "pears",
    "eggs",
    "books",
    "coins",
    "cats",
    "balls",
    "cookies",
    "pens",
    "cards",
    "stones",
    "candies",
    "oranges",
    "birds",
    "dogs",
    "toys",
    "threads",
    "cups",
    "flowers",
    "fish",
    "cakes",
    "pencils",
    "marbles",
    "cars",
)
_WHO = ("Anna", "Tom", "Ben", "Mia", "Sara", "Max", "Lily", "John", "Mary", "Emma", "Leo", "Sam")

_ADD = Wordings(
    (
        "(what is|what's|whats|how much is|calculate|compute|work out|tell me|find|how much are|what does) {a} + {b}",
        "{a} + {b}",
        "{a}+{b}",
        "{a} + {b} =",
        "{a}+{b}=",
        "(what is|what's|how much is|calculate|compute|work out|tell me) {a} plus {b}",
        "{a} plus {b}",
        "{a} plus {b} is (what|how much)",
        "{a} plus {b} equals",
        "add {a} and {b}",
        "add {b} to {a}",
        "(what|how much) do you get (if|when) you add {a} and {b}",
        "(what is|find|give me|calculate|tell me|compute|work out) the sum of {a} and {b}",
        "sum of {a} and {b}",
        "the sum of {a} and {b} is (what|how much)",
        "(what|how much) (is|are) {a} and {b} (together|added together|added up|in total)",
        "(can you|could you|please) (add|sum) {a} and {b}",
        "(what is|what's|calculate|compute|how much is) {a}+{b}",
        "what (does|do) {a} (plus|+) {b} (make|equal|equals|give|come to)",
        "(solve|answer|evaluate): {a} + {b}",
        "(solve|evaluate|answer|do the sum|sum) {a} + {b}",
        "if i have {a} {t} and (get|buy|find|am given) {b} more, how many {t} do i have",
        "{w} has {a} {t} and (gets|buys|finds|is given) {b} more. how many {t} does {w} have( now|)",
        "i have {a} {t}. i (get|buy|find) {b} more. how many (do i have|{t} do i have|have i got)( now|)",
        "there are {a} {t} and {b} more {t}. how many are there( in total| altogether|)",
        "(what is|what's) {a} more than {b}",
        "what is the (result|answer|value) of {a} + {b}",
        "{a} and {b} makes (what|how much)",
        "how (many|much) is {a} plus {b}",
        "do you know what {a} (plus|+) {b} is",
        "(do|make) (the|this) (sum|addition): {a} + {b}",
        "what number is {a} + {b}",
        "(what is|what's) the total of {a} and {b}",
    ),
    (
        "what do {a} and {b} add up to",
        "would you add {a} to {b}",
        "i need the result of {a} + {b}",
        "what is the sum {a} + {b}",
        "please work out what {a} plus {b} is",
        "{w} had {a} {t} and got {b} more. how many are there now",
    ),
)
_SUBTRACT = Wordings(
    (
        "(what is|what's|whats|how much is|calculate|compute|work out|tell me|find|what does) {a} - {b}",
        "{a} - {b}",
        "{a}-{b}",
        "{a} - {b} =",
        "{a}-{b}=",
        "(what is|what's|how much is|calculate|compute|work out|tell me) {a} minus {b}",
        "{a} minus {b}",
        "{a} minus {b} is (what|how much)",
        "{a} minus {b} equals",
        "subtract {b} from {a}",
        "take {b} (away |)from {a}",
        "take away {b} from {a}",
        "(what|how much) do you get (if|when) you (subtract|take) {b} from {a}",
        "(what is|find|give me|calculate|tell me|compute) the difference (between|of) {a} and {b}",
        "the difference (between|of) {a} and {b}",
        "(can you|could you|please) (subtract|take) {b} from {a}",
        "(what is|what's|calculate|compute|how much is) {a}-{b}",
        "what (does|do) {a} (minus|-) {b} (make|equal|equals|give|come to)",
        "(solve|answer|evaluate): {a} - {b}",
        "(solve|evaluate|answer) {a} - {b}",
        "if i have {a} {t} and (lose|eat|give away|sell) {b}, how many {t} (do i have|are left|do i have left)",
        "{w} has {a} {t} and (loses|eats|gives away|sells) {b}. how many {t} (does {w} have|are left|does {w} have left)",
        "i have {a} {t}. i (lose|give away|sell) {b}. how many (are left|do i have|do i have left|remain)",
        "there are {a} {t} and {b} (are taken away|go away|are lost). how many are left",
        "{a} take away {b}",
        "(what is|what's) {b} less than {a}",
        "what is the (result|answer|value) of {a} - {b}",
        "what is left (if|when) you take {b} from {a}",
        "how (many|much) is {a} minus {b}",
        "do you know what {a} (minus|-) {b} is",
        "what is {a} take away {b}",
        "what number is {a} - {b}",
        "what remains (if|when) {b} is (taken|subtracted) from {a}",
    ),
    (
        "what remains of {a} after taking {b}",
        "would you subtract {b} from {a}",
        "i need the result of {a} - {b}",
        "please work out what {a} minus {b} is",
        "{w} had {a} {t} and lost {b}. how many are there now",
    ),
)
_MULTIPLY = Wordings(
    (
        "(what is|what's|how much is|calculate|compute|work out|tell me) {a} (times|x|*|multiplied by) {b}",
        "{a} (times|x|*) {b}",
        "{a}*{b}",
        "{a} (x|*|times) {b} =",
        "multiply {a} (by|and|with) {b}",
        "(what is|find) the product of {a} and {b}",
        "what do you get when you multiply {a} (by|and) {b}",
    ),
    ("please multiply {a} and {b}", "i need {a} times {b}"),
)
_BIGGER = Wordings(
    (
        "(which|what) (one |number |)is ({big}|the {big} one|the {big} number)(,|:| :) {a} or {b}",
        "(which|what) (number |)is {big}, {a} or {b}",
        "is {a} or {b} {big}",
        "(which|what) of {a} and {b} is (the |){big}",
        "what is {big}, {a} or {b}",
        "{a} or {b}, (which|what) is {big}",
        "{a} or {b}: (which|what) (one |)is {big}",
        "tell me which is {big}: {a} or {b}",
        "compare {a} and {b}. which is {big}",
        "(which|what) number is {big}, {a} or {b}",
        "{big}: {a} or {b}",
        "find the {big} (number|one) of {a} and {b}",
        "(which|what) is the {big} (number|one|of the two)(,|:) {a} or {b}",
        "between {a} and {b}, which (one |number |)is {big}",
        "of {a} and {b}, which is {big}",
        "(say|choose|pick) the {big} number: {a} or {b}",
    ),
    (
        "which would be {big}, {a} or {b}",
        "out of {a} and {b} which one is {big}",
        "can you tell me if {a} or {b} is {big}",
        "name the {big} of {a} and {b}",
    ),
)
_IS_BIGGER = Wordings(
    (
        "is {a} {big} than {b}",
        "is {a} {big} than {b}",
        "(would you say|is it true that|do you think) {a} is {big} than {b}",
        "is the number {a} {big} than {b}",
        "{a} is {big} than {b}, (right|correct|true or false|is that right|isn't it)",
        "true or false: {a} is {big} than {b}",
        "is {a} {big} than {b}, yes or no",
        "yes or no: is {a} {big} than {b}",
        "(tell me|check) (if|whether) {a} is {big} than {b}",
    ),
    ("am i right that {a} is {big} than {b}", "could you check if {a} is {big} than {b}"),
)
_COUNT = Wordings(
    (
        "count (from |){a} to {b}",
        "count from {a} (up |down |)to {b}",
        "count (up|down|backwards|forward) from {a} to {b}",
        "(can|could|would) you count (from |){a} to {b}",
        "(list|give me|write|say|print|tell me|show) the numbers from {a} to {b}",
        "(list|give me|write|say|tell me) (all |)numbers (from|between) {a} (to|and) {b}",
        "numbers from {a} to {b}",
        "start at {a} and count to {b}",
        "(start|begin) at {a} and (stop|end) at {b}",
        "count {a} to {b}",
        "(please |)count from {a} until {b}",
        "which numbers are (there |)from {a} to {b}",
        "i want you to count from {a} to {b}",
        "let us count from {a} to {b}",
        "counting from {a} to {b}",
        "count: {a} to {b}",
        "write down the numbers {a} to {b}",
        "{a} to {b}, count",
        "count all numbers from {a} to {b}",
    ),
    (
        "say all the numbers starting at {a} up to {b}",
        "go from {a} to {b} one by one",
        "would you please count from {a} to {b} for me",
    ),
)
_COUNT_TO = Wordings(
    (
        "count to {b}",
        "count up to {b}",
        "(can|could|would) you count (up |)to {b}",
        "(list|give me|write|say) the numbers (up |)to {b}",
        "count (till|until) {b}",
        "please count to {b}",
        "let us count to {b}",
        "(say|list) the first {b} numbers",
        "how do you count to {b}",
        "do you know how to count to {b}",
    ),
    ("i would like you to count up to {b}", "show me how you count to {b}"),
)
_COUNT_DOWN = Wordings(
    (
        "count down from {a}",
        "count backwards from {a}",
        "(do|give me|start|make) a countdown from {a}",
        "countdown from {a}",
        "(can|could) you count (down|backwards) from {a}",
        "please count down from {a}",
    ),
    ("i would like a countdown from {a}",),
)
_NEXT = Wordings(
    (
        "(what|which) (number |)(comes|is|follows|goes) (right |directly |just |)after {a}",
        "(what|which) number (comes|is) next after {a}",
        "(what|which) (number |)(follows|comes next after|is next after) {a}",
        "what is the (next|following) number (after|to|from) {a}",
        "what is the number after {a}",
        "the number after {a}",
        "(next|following) number after {a}",
        "after {a} comes (what|which number)",
        "tell me the number (that comes |)after {a}",
        "(give me|say|name) the number after {a}",
        "what is the successor of {a}",
        "what comes next: {a}",
        "which is the next number after {a}",
        "what number do you say after {a}",
        "what is one more than {a}",
        "when i count, what comes after {a}",
    ),
    (
        "i am at {a}, what is the next number",
        "could you tell me what number comes after {a}",
        "what would be the number following {a}",
    ),
)
_PREVIOUS = Wordings(
    (
        "(what|which) (number |)(comes|is|goes) (right |directly |just |)before {a}",
        "(what|which) number (comes|is) (just |)before {a}",
        "(what|which) (number |)precedes {a}",
        "what is the previous number (before|to|of|from) {a}",
        "what is the number before {a}",
        "the number before {a}",
        "previous number (before|to|of) {a}",
        "before {a} comes (what|which number)",
        "tell me the number (that comes |)before {a}",
        "(give me|say|name) the number before {a}",
        "what is the predecessor of {a}",
        "what number do you say before {a}",
        "what is one less than {a}",
        "when i count, what comes before {a}",
    ),
    ("could you tell me what number comes before {a}", "what would be the number preceding {a}"),
)
_EVEN = Wordings(
    (
        "is {a} (even or odd|odd or even)",
        "is {a} {p}",
        "is the number {a} {p}",
        "is {a} an {p} number",
        "{a}: (even or odd|odd or even)",
        "(tell me if|check if|say whether) {a} is (even or odd|odd or even|{p})",
        "even or odd: {a}",
    ),
    ("would you call {a} {p}", "what is {a}, even or odd"),
)


_SEQUENCE = Wordings(
    (
        "{s}",
        "{s}, (what|which number) (comes|is) next",
        "what (comes|is) next: {s}",
        "(what|which) (is the next number|number comes next|number is next): {s}",
        "{s}. what (comes|is) next",
        "continue( the sequence| the series|): {s}",
        "what comes after {s}",
        "what is the next number after {s}",
        "{s}, ...",
    ),
    ("which number follows in {s}", "finish the sequence {s}"),
)


def _written(rng: random.Random, *numbers: int) -> list[str]:
    """The numbers as digits, or now and then as words."""
    if rng.random() < 0.12 and all(0 <= n <= 20 for n in numbers):
        return [_SMALL[n] for n in numbers]
    return [str(n) for n in numbers]


def add(rng: random.Random, held: bool) -> Exchange:
    """a + b, mostly with both up to 20, sometimes up to 50."""
    top = 20 if held or rng.random() < 0.96 else 50
    a, b = rng.randint(0, top), rng.randint(0, top)
    x, y = _written(rng, a, b)
    question = ask(rng, _ADD.of(held), a=x, b=y, t=rng.choice(_THINGS), w=rng.choice(_WHO))
    return Exchange("add", question, f"{a} + {b} = {a + b}.", rf"(?<!\d){a + b}\.?$")


def subtract(rng: random.Random, held: bool) -> Exchange:
    """a - b, with the larger first four times out of five."""
    top = 20 if held or rng.random() < 0.95 else 40
    a, b = rng.randint(0, top), rng.randint(0, top)
    if a < b and rng.random() < 0.6:
        a, b = b, a
    x, y = _written(rng, a, b)
    patterns = (
        _SUBTRACT.of(held) if a >= b else [p for p in _SUBTRACT.of(held) if "{t}" not in p and "difference" not in p]
    )
    question = ask(rng, patterns, a=x, b=y, t=rng.choice(_THINGS), w=rng.choice(_WHO))
    return Exchange("subtract", question, f"{a} - {b} = {a - b}.", rf"= {a - b}\.?$")


def multiply(rng: random.Random, held: bool) -> Exchange:
    """a times b up to ten times ten."""
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    x, y = _written(rng, a, b)
    return Exchange("multiply", ask(rng, _MULTIPLY.of(held), a=x, b=y), f"{a} * {b} = {a * b}.", rf"(?<!\d){a * b}\.?$")


def compare(rng: random.Random, held: bool) -> Exchange:
    """The larger or smaller of two numbers up to 100."""
    top = rng.choice((10, 20, 30, 100))
    a, b = rng.sample(range(top + 1), 2)
    up = rng.random() < 0.6
    words = (
        ("bigger", "larger", "greater", "higher", "more", "bigger", "larger")
        if up
        else ("smaller", "less", "lower", "smaller")
    )
    asked = ("the " if rng.random() < 0.04 else "") + rng.choice(words)
    if rng.random() < 0.2 and asked in ("bigger", "larger", "smaller"):
        asked = {"bigger": "the biggest", "larger": "the largest", "smaller": "the smallest"}[asked]
    winner, other = (max(a, b), min(a, b)) if up else (min(a, b), max(a, b))
    x, y = _written(rng, a, b)
    question = ask(rng, _BIGGER.of(held), a=x, b=y, big=asked).replace("the the", "the")
    return Exchange(
        "compare", question, f"{winner} is {'bigger' if up else 'smaller'} than {other}.", rf"(?<!\d){winner} is"
    )


def is_bigger(rng: random.Random, held: bool) -> Exchange:
    """Yes or no: is a bigger (or smaller) than b?"""
    top = rng.choice((10, 20, 30, 100))
    a, b = rng.sample(range(top + 1), 2)
    up = rng.random() < 0.6
    true = (a > b) == up
    asked = rng.choice(("bigger", "larger", "greater", "more", "higher") if up else ("smaller", "less", "lower"))
    x, y = _written(rng, a, b)
    word = "bigger" if up else "smaller"
    answer = f"Yes, {a} is {word} than {b}." if true else f"No, {a} is not {word} than {b}."
    return Exchange("is_bigger", ask(rng, _IS_BIGGER.of(held), a=x, b=y, big=asked), answer, "^yes" if true else "^no")


def count(rng: random.Random, held: bool) -> Exchange:
    """Counting up or down between two numbers, to a number, or down from one."""
    form = rng.random()
    if form < 0.25:
        a, b = 1, rng.randint(2, 20)
        question = ask(rng, _COUNT_TO.of(held), b=_written(rng, b)[0])
    elif form < 0.4:
        a, b = rng.randint(2, 15), 1
        question = ask(rng, _COUNT_DOWN.of(held), a=_written(rng, a)[0])
    else:
        length = rng.randint(2, 13)
        a = rng.randint(0, 20) if rng.random() < 0.8 else rng.randint(20, 80)
        b = a + length if rng.random() < 0.6 or a < length else a - length
        x, y = _written(rng, a, b)
        patterns = [p for p in _COUNT.of(held) if a <= b or "up " not in p]
        question = ask(rng, patterns, a=x, b=y)
        if a > b:
            question = question.replace(" up from", " down from").replace(" forward from", " down from")
        else:
            question = question.replace(" down ", " up ").replace(" backwards ", " up ")
    step = 1 if a <= b else -1
    answer = ", ".join(str(n) for n in range(a, b + step, step))
    return Exchange("count", question, answer + ".", rf"{answer}\.?$")


def neighbour(rng: random.Random, held: bool) -> Exchange:
    """The number after or before another."""
    number = rng.randint(0, 30) if rng.random() < 0.65 else rng.randint(20, 101)
    after = rng.random() < 0.55 or number == 0
    question = ask(rng, (_NEXT if after else _PREVIOUS).of(held), a=_written(rng, number)[0])
    found = number + 1 if after else number - 1
    answer = f"The number {'after' if after else 'before'} {number} is {found}."
    return Exchange("next_number" if after else "previous_number", question, answer, rf"(?<!\d){found}\.?$")


def sequence(rng: random.Random, held: bool) -> Exchange:
    """The next number of a short run up or down."""
    start, step = rng.randint(0, 40), rng.choice((1, 1, 1, 2, -1))
    numbers = [start + 5 + step * place for place in range(rng.randint(3, 5))]
    text = rng.choice((", ", ", ", " ")).join(map(str, numbers))
    found = numbers[-1] + step
    return Exchange(
        "sequence", ask(rng, _SEQUENCE.of(held), s=text), f"The next number is {found}.", rf"(?<!\d){found}\.?$"
    )


def even(rng: random.Random, held: bool) -> Exchange:
    """Is a number even or odd?"""
    number = rng.randint(0, 30) if rng.random() < 0.7 else rng.randint(0, 100)
    kind, other = ("even", "odd") if number % 2 == 0 else ("odd", "even")
    asked = rng.choice((kind, other))
    question = ask(rng, _EVEN.of(held), a=str(number), p=asked)
    either = "odd or even" in question.lower() or "even or odd" in question.lower()
    yes = "" if either else ("Yes, " if asked == kind else "No, ")
    return Exchange("even", question, f"{yes}{number} is {kind}.", word_pattern(kind))
