"""Days of the week and months."""

from __future__ import annotations

import random

from .phrasing import Exchange, Wordings, ask, word_pattern

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)

_AFTER = Wordings(
    (
        "(what|which) {unit} (comes|is|follows|goes) (right |directly |)after {x}",
        "(what|which) {unit} follows {x}",
        "what is the (next |)(day|{unit}) after {x}",
        "what (comes|is) after {x}",
        "the {unit} after {x}",
        "after {x} comes (what|which {unit})",
        "tell me the {unit} (that comes |)after {x}",
        "(name|give me|say) the {unit} (that follows|after|following) {x}",
        "what is the next {unit} after {x}",
        "{x} is followed by (what|which {unit})",
        "which {unit} is next after {x}",
        "what {unit} do we have after {x}",
        "do you know which {unit} (comes|is) after {x}",
        "which {unit} comes next after {x}",
        "next {unit} after {x}",
        "what follows {x}",
    ),
    (
        "could you name the {unit} following {x}",
        "what {unit} would it be after {x}",
        "once {x} is over, what {unit} is it",
    ),
)
_BEFORE = Wordings(
    (
        "(what|which) {unit} (comes|is|goes) (right |directly |just |)before {x}",
        "(what|which) {unit} precedes {x}",
        "what is the {unit} before {x}",
        "what (comes|is) before {x}",
        "the {unit} before {x}",
        "before {x} comes (what|which {unit})",
        "tell me the {unit} (that comes |)before {x}",
        "(name|give me|say) the {unit} (that precedes|before|preceding) {x}",
        "what is the previous {unit} (before|to) {x}",
        "{x} is preceded by (what|which {unit})",
        "what {unit} do we have before {x}",
        "do you know which {unit} (comes|is) before {x}",
        "previous {unit} before {x}",
        "{x} comes after which {unit}",
    ),
    ("could you name the {unit} preceding {x}", "what {unit} is it right before {x}"),
)
_TODAY = (
    ("(if |)today is {x}(,|.) (what|which day) is (it |)tomorrow", "(if |)today is {x}(,|.) what day (is|will be|will it be) tomorrow", "it is {x} today. what (day |)is tomorrow", "what day is tomorrow if today is {x}", "(if |)yesterday was {x}, what (day |)is (it |)today"),
    ("(if |)today is {x}(,|.) (what|which) day was (it |)yesterday", "(if |)today is {x}(,|.) what was yesterday", "what day was yesterday if today is {x}", "(if |)tomorrow is {x}, what (day |)is (it |)today"),
)  # fmt: skip
_ALL = Wordings(
    (
        "(list|name|tell me|give me|say|write|what are|which are) (all |)the {units}( of the {whole}| in a {whole}| in order|)",
        "(list|name|tell me|give me|say) (all |the |)(seven|twelve|) {units}( of the {whole}| in order|)",
        "(what|which) {units} are there( in a {whole}|)",
        "can you (list|name|say) (all |)the {units}( of the {whole}|)",
        "{units} of the {whole}",
        "the {units} of the {whole}",
        "(do|can) you (know|say) the {units}( of the {whole}|)",
    ),
    ("would you list all {units} of the {whole}", "go through the {units} of the {whole}"),
)
_HOW_MANY = {
    "days are in a week": "A week has 7 days.", "days does a week have": "A week has 7 days.", "months are in a year": "A year has 12 months.", "months does a year have": "A year has 12 months.", "months are there( in a year|)": "A year has 12 months.", "days are there in a week": "A week has 7 days.", "days are (there |)in a year": "A year has 365 days.", "days does a year have": "A year has 365 days.", "days has a year": "A year has 365 days.", "days has a week": "A week has 7 days.", "months has a year": "A year has 12 months.",
    "hours are (there |)in a day": "A day has 24 hours.", "hours does a day have": "A day has 24 hours.", "minutes are (there |)in an hour": "An hour has 60 minutes.", "minutes does an hour have": "An hour has 60 minutes.", "seconds are (there |)in a minute": "A minute has 60 seconds.", "seconds does a minute have": "A minute has 60 seconds.", "weeks are (there |)in a year": "A year has 52 weeks.", "weeks does a year have": "A year has 52 weeks.", "seasons are (there|in a year)": "A year has 4 seasons.", "seasons does a year have": "A year has 4 seasons.",
    "legs does a (dog|cat|horse|cow) have": "It has 4 legs.", "legs does a (spider) have": "It has 8 legs.", "legs does a bird have": "It has 2 legs.", "legs does an (ant|insect|bee) have": "It has 6 legs.", "wheels does a car have": "It has 4 wheels.", "wheels does a (bike|bicycle) have": "It has 2 wheels.", "fingers (are|does|are there) on a hand": "A hand has 5 fingers.", "fingers does a hand have": "A hand has 5 fingers.", "letters are (there |)in the alphabet": "The alphabet has 26 letters.", "letters does the alphabet have": "The alphabet has 26 letters.",
    "sides does a triangle have": "A triangle has 3 sides.", "sides does a square have": "A square has 4 sides.", "eyes does a (cat|dog|person|man) have": "It has 2 eyes.",
}  # fmt: skip
_SEASONS = {
    "spring": "March, April and May",
    "summer": "June, July and August",
    "autumn": "September, October and November",
    "winter": "December, January and February",
}


def neighbour(rng: random.Random, held: bool) -> Exchange:
    """The day or month after or before another."""
    names, unit = (DAYS, "day") if rng.random() < 0.55 else (MONTHS, "month")
    at, after = rng.randrange(len(names)), rng.random() < 0.55
    found = names[(at + (1 if after else -1)) % len(names)]
    if unit == "day" and rng.random() < 0.2 and not held:
        return Exchange(
            "today",
            ask(rng, _TODAY[0 if after else 1], x=names[at]),
            f"It is {found}." if after else f"It was {found}.",
            word_pattern(found),
        )
    question = ask(rng, (_AFTER if after else _BEFORE).of(held), x=names[at], unit=unit)
    return Exchange(
        f"{unit}_{'after' if after else 'before'}",
        question,
        f"{found} comes {'after' if after else 'before'} {names[at]}.",
        f"^{found}|is {found}",
    )


def whole(rng: random.Random, held: bool) -> Exchange:
    """All days of the week, or all months, in order."""
    names, units, of = rng.choice(((DAYS, "days", "week"), (MONTHS, "months", "year")))
    question = ask(rng, _ALL.of(held), units=units, whole=of)
    answer = ", ".join(names[:-1]) + " and " + names[-1] + "."
    return Exchange("all_" + units, question, f"The {units} of the {of} are {answer}", word_pattern(*names))


def how_many(rng: random.Random, held: bool) -> Exchange:
    """Counts that everybody knows: days in a week, legs of a dog, days in a month."""
    if rng.random() < 0.25:
        at = rng.randrange(12)
        form = rng.choice(("how many days (does {m} have|are in {m}|has {m}|are there in {m})", "how long is {m}"))
        return Exchange(
            "month_length", ask(rng, (form,), m=MONTHS[at]), f"{MONTHS[at]} has {_LENGTHS[at]} days.", str(_LENGTHS[at])
        )
    subject = rng.choice(tuple(_HOW_MANY))
    form = rng.choice(
        ("do you know how many", "can you say how many")
        if held
        else ("how many", "how many", "tell me how many", "how many", "what is the number of how many")
    )
    question = ask(rng, (f"{form.replace('what is the number of ', '')} {subject}",))
    number = next(word for word in _HOW_MANY[subject].split() if word.isdigit())
    return Exchange("how_many", question, _HOW_MANY[subject], word_pattern(number))


def ordinal(rng: random.Random, held: bool) -> Exchange:
    """The n-th month or day, the last one, and the months of a season."""
    if rng.random() < 0.25:
        season, months = rng.choice(tuple(_SEASONS.items()))
        question = ask(
            rng, ("(which|what) months are (in |)(the |){s}", "(name|list) the months of {s}", "when is {s}"), s=season
        )
        return Exchange(
            "season", question, f"{season.capitalize()} is in {months}.", word_pattern(months.split(",")[0])
        )
    names, unit, of = rng.choice(((DAYS, "day", "week"), (MONTHS, "month", "year")))
    at = rng.randrange(len(names))
    word = rng.choice(("last", "final")) if at == len(names) - 1 and rng.random() < 0.5 else _ORDINALS[at]
    patterns = (
        ("would you tell me the {n} {unit} of the {of}",)
        if held
        else (
            "(what|which) is the {n} {unit} (of|in) (the|a) {of}",
            "(what|which) {unit} is the {n}( one|)( of the {of}| in a {of}|)",
            "(name|tell me|say) the {n} {unit}( of the {of}|)",
            "the {n} {unit} of the {of}",
        )
    )
    answer = f"The {'last' if word in ('last', 'final') else word} {unit} of the {of} is {names[at]}."
    return Exchange("ordinal", ask(rng, patterns, n=word, unit=unit, of=of), answer, word_pattern(names[at]))
