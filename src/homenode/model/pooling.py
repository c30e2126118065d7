"""The way in which a model makes one vector, or scores, of a text in place of further text: which rows of the last
layer count, and what follows them. Plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

# The mean over a text's tokens, the row of its first token, or that of its last one.
PoolingKind = Literal["mean", "cls", "last"]
POOLING_KINDS: tuple[PoolingKind, ...] = get_args(PoolingKind)
HeadActivation = Literal["none", "tanh", "relu", "gelu_erf"]


@dataclass(frozen=True)
class HeadLayer:
    """activation(matrix x + bias) of a row x, then a LayerNorm where `norm` names its weight. `minus`: is taken from
    the matrix. All names are of tensors, "" where there is none.
    """

    matrix: str
    bias: str = ""
    activation: HeadActivation = "none"
    norm: str = ""
    norm_epsilon: float = 1e-5
    minus: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors there are."""
        return tuple(name for name in (self.matrix, self.bias, self.norm, self.minus) if name)


@dataclass(frozen=True)
class TextForm:
    """The form that a text gets before a vector is made of it. `tokens`: that count of it, those around it among them;
    None: all, which then have to fit. `prompt`: stands before each. `lower_case`: its letters are made small.
    """

    tokens: int | None = None
    prompt: str = ""
    lower_case: bool = False

    def of(self, text: str) -> str:
        """The text as it is encoded."""
        whole = self.prompt + text
        return whole.lower() if self.lower_case else whole


@dataclass(frozen=True)
class PoolingSpec:
    """`rows`: what is made one row. It goes through `head`, layer after layer, whose result has `width` elements.
    `labels`: where that is scores of a text, or of a pair of texts, what each is of; none: it is a vector.
    `template`: the text that a pair is read as, with {query} and then {document}; "": what the tokenizer makes of it.
    `text`: what becomes of a text of its own.
    """

    rows: PoolingKind
    width: int
    head: tuple[HeadLayer, ...] = ()
    labels: tuple[str, ...] = ()
    template: str = ""
    text: TextForm = TextForm()

    @property
    def tensors(self) -> frozenset[str]:
        """Names of those of the head."""
        return frozenset(name for layer in self.head for name in layer.names)


# What Qwen3-Reranker was trained with, and the task that its card gives where a user names none.
QWEN3_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def row_name(tensor: str, row: int) -> str:
    """Return what one row of a matrix is called as a tensor of its own."""
    return f"{tensor}#{row}"


def yes_or_no(yes: str, no: str) -> PoolingSpec:
    """A decoder that scores a pair by how much its logit of one word is above that of another. `yes`, `no`: the rows
    that these come from.
    """
    return PoolingSpec("last", 1, (HeadLayer(yes, minus=no),), ("yes",), QWEN3_TEMPLATE)


def pair_texts(template: str, first: str, second: str) -> tuple[str, str]:
    """A pair as `PoolingSpec.template` has it: all up to the end of the second text, and what stands behind."""
    before, _, rest = template.partition("{query}")
    between, _, behind = rest.partition("{document}")
    return f"{before}{first}{between}{second}", behind
