"""Conversations in which answers repeat more or less of what stood before, by the kind of work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NOTE: Final = (
    "The harbour office keeps a book of all arrivals. On 3 March 1911 the barque Alma came in with 212 tonnes of "
    "timber from Viborg; her master was Captain Lund. On 9 March the steamer Tern landed 48 passengers and 1,150 "
    "sacks of mail. The dredger Mole worked the north channel from 11 to 26 March and lifted 5,400 cubic metres of "
    "silt. A storm on 28 March broke two piles of the east pier, which cost 640 crowns to mend. "
)
_FILE: Final = '''class Ledger:
    """Amounts by account."""

    def __init__(self):
        self.amounts = {}

    def add(self, account, amount):
        if amount < 0:
            raise ValueError("an amount is not below 0")
        self.amounts[account] = self.amounts.get(account, 0) + amount

    def take(self, account, amount):
        if self.amounts.get(account, 0) < amount:
            raise ValueError("the account holds less than that")
        self.amounts[account] -= amount

    def total(self):
        return sum(self.amounts.values())
'''
_ORDERS: Final = "\n".join(
    f"Order {number}: {name} of {town} wants {count} {thing} by {day} May at {price} euro each."
    for number, name, town, count, thing, day, price in (
        (1041, "Ida Holm", "Aarhus", 4, "oak chairs", 12, 85),
        (1042, "Piet Bakker", "Delft", 1, "round table", 14, 410),
        (1043, "Noor Haddad", "Lille", 6, "brass lamps", 15, 62),
        (1044, "Jan Kowal", "Gdynia", 2, "book shelves", 19, 130),
    )
)
_PASSAGES: Final = "\n".join(
    f"[{number}] {text}"
    for number, text in enumerate(
        (
            "Sea water freezes at about -1.8 degrees because of the salt in it.",
            "The salt that is dissolved in sea water is mostly sodium chloride.",
            "New ice is soft and salty; after a summer most of its brine has drained away.",
            "Icebergs come from glaciers on land and hold hardly any salt.",
        ),
        1,
    )
)
_CALL: Final = '{"name": "read_file", "arguments": {"path": "src/ledger.py", "first": 1, "last": 40}}'

WORKLOADS: Final[Mapping[str, str]] = {
    "edit": "Rewrite this file with the class renamed to Account, otherwise unchanged:\n```python\n" + _FILE + "```",
    "summary": "Summarise this text, and quote the sentence that each point rests on word for word:\n" + _NOTE,
    "retrieval": "Answer from these passages, and repeat each passage that you use with its number.\n"
    + _PASSAGES
    + "\n\nWhy are icebergs not salty?",
    "extraction": "Write these orders as a JSON list of objects with the keys number, name, town, count, item, day and "
    "price:\n" + _ORDERS,
    "agent": "You have the tool read_file(path, first, last) and call it by a line of JSON. So far:\n"
    f"call: {_CALL}\nresult:\n{_FILE}\ncall: {_CALL.replace('40', '80')}\nresult:\n{_FILE}\n"
    "Call it again for lines 41 to 80, then for lines 81 to 120, and repeat what the class is called.",
    "chat": "Tell me a short story about a heron who could not swim.",
    "code": "Write a Python function that finds the longest word of a text, and tests for it.",
}
