"""What GGUF files of a Gemma say, and what they leave out, which is what their reference reader supposes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec, RopeSpec


@dataclass(frozen=True)
class Gemma:
    """What is so unless a file says otherwise."""

    theta: float
    pattern: int  # each layer of that number sees its whole context, the others a window
    large: int  # layers of the largest model, whose scores are scaled by another length than a head's
    window: int = 4096
    local_theta: float | None = None
    attention_softcap: float | None = None
    logits_softcap: float | None = None


GEMMAS = {
    "gemma2": Gemma(10000.0, 2, 46, attention_softcap=50.0, logits_softcap=30.0),
    "gemma3": Gemma(1e6, 6, 62, local_theta=10000.0),
}


def with_gemma(spec: ModelSpec, gemma: Gemma, fields: Fields) -> ModelSpec:
    """`spec` with the figures only Gemmas have."""
    sliding = tuple((layer + 1) % gemma.pattern != 0 for layer in range(spec.num_layers))
    length = spec.hidden_size / spec.num_heads if spec.num_layers == gemma.large else spec.head_dim
    local = gemma.local_theta and RopeSpec(
        theta=fields.number("rope.freq_base_swa", gemma.local_theta, above=1.0, most=limits.MOST_THETA)
    )
    return replace(
        spec,
        sliding_window=spec.sliding_window if any(sliding) else None,
        sliding_layers=sliding if spec.sliding_window and any(sliding) else (),
        local_rope=local or None,
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=length**-0.5,
        attention_softcap=fields.optional_number("attn_logit_softcapping", least=0.0) or gemma.attention_softcap,
        logits_softcap=fields.optional_number("final_logit_softcapping", least=0.0) or gemma.logits_softcap,
    )
