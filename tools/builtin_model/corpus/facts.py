"""The shape of a topic that has one good answer, and the ways to ask for it that fit any topic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .phrasing import Exchange, ask, expand

# {x} is a name of the topic, such as "the prefix cache".
DEFINE = (
    "(what is|what's|whats) {x}", "(what is|what's|whats) {x}", "what is {x} exactly", "what (exactly|actually) is {x}", "define {x}", "explain {x}",
    "explain (to me|) what {x} is", "(can|could|would|will) you (please |)explain {x}", "(can|could) you (please |)(explain|tell me|say|describe) what {x} is",
    "tell me (something |a bit |more |)about {x}", "(please |)describe {x}", "what does {x} mean", "what is meant by {x}", "what do you know about {x}",
    "(i want|i would like|i'd like) to (know|learn|understand) (what {x} is|about {x})", "give me a (short |brief |simple |)(definition|explanation|description) of {x}",
    "what is {x} in (simple|plain) (words|terms)", "explain {x} (simply|in simple words|like i am five|to a beginner|to me)",
    "i do not (know|understand) (what |){x}( is|)", "{x}", "what is the meaning of {x}", "in one sentence, what is {x}", "in (simple|plain) words, what is {x}",
    "do you know (what {x} is|about {x})", "teach me about {x}", "what is {x} about", "what is {x}, in short", "explain the (idea|concept|term|word) {x}",
    "have you heard of {x}", "what (can|could) you tell me about {x}", "what is this {x}", "how would you (explain|define|describe) {x}", "say what {x} is",
    "i keep hearing about {x}. what is it", "someone mentioned {x}. what is that", "what do people mean by {x}", "what is {x} (in|on) a computer",
    "what is the (definition|idea|point|purpose) of {x}", "(meaning|definition) of {x}", "what's the deal with {x}", "what is {x} (used |good |)for", "what does {x} do",
)  # fmt: skip
DEFINE_HELD = (
    "(can|could) you tell me what {x} means", "briefly explain what {x} is", "what is the term {x} about", "help me understand {x}",
    "give a definition for {x}", "what would you say {x} is", "i am new to this. what is {x}", "what is {x} and why does it matter",
)  # fmt: skip


@dataclass(frozen=True)
class Topic:
    """One answer and the questions that lead to it. `names` work with DEFINE; `questions` are asked as they stand; `held` never trains."""

    kind: str
    answer: str
    accept: str
    names: Sequence[str] = ()
    questions: Sequence[str] = ()
    held: Sequence[str] = ()
    weight: float = 1.0

    def exchange(self, rng: random.Random, held: bool) -> Exchange:
        own, define = (self.held, DEFINE_HELD) if held else (self.questions, DEFINE)
        if self.names and (not own or rng.random() < 0.5):
            question = ask(rng, define, x=expand(rng, rng.choice(self.names)))
        else:
            question = ask(rng, own or self.questions)
        return Exchange(self.kind, question, self.answer, self.accept)
