"""Drawing tokens from logits, one row at a time, in the order `SamplingArrays` documents.

Arithmetic on a row is float64 after the logits, so that this is what a faster sampler is measured against.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import NO_TOKEN, FloatArray, IntArray, SampledRows, SamplingArrays

DoubleArray = npt.NDArray[np.float64]
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_GREEDY_BELOW = 1e-5  # a smaller temperature would only turn differences into overflow
_PENALTIES = ("repetition", "frequency", "presence")
_LANES = 16
_OF_XTC = 0x5CA1AB1E0DDBA11  # the draw of whether XTC takes part is not that of the token


def uniform(seed: int, counter: int) -> float:
    """A number in [0, 1) that depends on (seed, counter) only: the splitmix64 mix of seed + (counter + 1) * golden
    ratio, top 53 bits.

    Source of the mix: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), in Vigna's
    constants.
    """
    z = (seed + (counter + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


def log_softmax(row: FloatArray) -> DoubleArray:
    """Natural logarithms of the softmax of one row of logits."""
    shifted = row.astype(np.float64) - float(row.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float64)


def penalised(row: FloatArray, how: SamplingArrays, i: int) -> DoubleArray:
    """Row i's logits with its bias, its repetition, frequency and presence penalties, and its mask."""
    logits = row.astype(np.float64)
    bias = slice(how.bias_start[i], how.bias_start[i + 1])
    np.add.at(logits, how.bias_token[bias], how.bias_value[bias])
    seen = slice(how.seen_start[i], how.seen_start[i + 1])
    tokens, counts = how.seen_token[seen], how.seen_count[seen]
    repetition, frequency, presence = (float(how.settings[f"{name}_penalty"][i]) for name in _PENALTIES)
    logits[tokens] = np.where(logits[tokens] > 0, logits[tokens] / repetition, logits[tokens] * repetition)
    logits[tokens] -= frequency * counts + presence * (counts > 0)
    if (mask := mask_of(how, i, len(row))) is not None:
        logits[~mask] = -np.inf
    return logits


def mask_of(how: SamplingArrays, i: int, vocabulary: int) -> npt.NDArray[np.bool_] | None:
    """[vocabulary] which tokens row i may draw; None: all."""
    if how.mask_row[i] < 0:
        return None
    words = how.masks[how.mask_row[i]].astype("<u4", copy=False)
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:vocabulary].astype(np.bool_)


def kept(logits: DoubleArray, top_k: int, top_p: float, min_p: float, typical_p: float = 1.0) -> IntArray:
    """Token ids that survive top-k, then typical-p, then top-p, then min-p, most likely first, lower ids first among
    equals.

    top-p keeps the shortest beginning of that order whose probability (within what top-k left) reaches top_p, at least
    one token.
    """
    order = np.argsort(-logits, kind="stable")
    if 0 < top_k < len(order):
        order = order[:top_k]
    weights = np.exp(logits[order] - logits[order[0]])
    if typical_p < 1:
        stays = typical(weights, typical_p)
        order, weights = order[stays], weights[stays] / weights[stays][0]
    if top_p < 1:
        reached = np.cumsum(weights) / weights.sum()
        order = order[: int(np.searchsorted(reached, top_p)) + 1]
    count = int(np.count_nonzero(weights[: len(order)] >= min_p))
    return order[: max(count, 1)].astype(np.int32)


def top_n_sigma_floor(logits: DoubleArray, n: float) -> float:
    """The least logit that top-n-sigma keeps, a float32: the largest - n * standard deviation, -inf not counted.

    Summed in the order of the native core (csrc/sampling/top_n_sigma.cpp), so that both keep the same tokens.
    """

    def summed(values: DoubleArray) -> float:
        rows = np.pad(values, (0, -len(values) % _LANES)).reshape(-1, _LANES)
        return float(np.cumsum(np.cumsum(rows, axis=0)[-1])[-1])

    counted = logits > -np.inf
    count = float(counted.sum())
    mean = summed(np.where(counted, logits, 0.0)) / count
    apart = np.where(counted, logits - mean, 0.0)
    return float(np.float32(logits.max() - n * np.sqrt(summed(apart * apart) / count)))


def draw(row: FloatArray, how: SamplingArrays, i: int) -> int:
    """The token for row i of the step's sampling parameters. `NO_TOKEN` where the row has a NaN, or no finite largest
    value once biases and penalties are applied.
    """
    logits = penalised(row, how, i)
    if np.isnan(row).any():
        return NO_TOKEN
    mask = mask_of(how, i, len(row))
    if mask is not None and np.count_nonzero(mask) == 1:
        return int(np.argmax(mask))
    if not np.isfinite(logits.max()):
        return NO_TOKEN
    settings = {name: values[i].item() for name, values in how.settings.items()}
    if settings["temperature"] < _GREEDY_BELOW:
        return int(np.argmax(logits))
    if settings["top_n_sigma"] > 0:
        logits[logits < top_n_sigma_floor(logits, settings["top_n_sigma"])] = -np.inf
    logits /= dynamic_temperature(logits, settings)
    ids = np.sort(kept(logits, settings["top_k"], settings["top_p"], settings["min_p"], settings["typical_p"]))
    ids = ids[logits[ids] > -np.inf]
    weights = np.exp(logits[ids] - logits[ids].max())
    ids, weights = without_surprises(ids, weights, settings["max_surprise"])
    if settings["xtc_probability"] > uniform(int(how.seed[i]) ^ _OF_XTC, int(how.counter[i])):
        ids, weights = without_top_choices(ids, weights, settings["xtc_threshold"])
    cumulative = np.cumsum(weights)
    point = uniform(int(how.seed[i]), int(how.counter[i])) * cumulative[-1]
    return int(ids[min(int(np.searchsorted(cumulative, point, side="right")), len(ids) - 1)])


def dynamic_temperature(logits: DoubleArray, settings: Mapping[str, float]) -> float:
    """The temperature of a row: between temperature - range and temperature + range, by the share that the entropy of
    the tokens left has of the largest entropy that so many tokens can have, to the power of the exponent.
    """
    base, reach = settings["temperature"], settings["dynatemp_range"]
    left = logits[logits > -np.inf]
    if reach <= 0 or len(left) < 2:
        return float(base)
    shares = np.exp(left - left.max())
    shares /= shares.sum()
    shown = shares[shares > 0]
    entropy = -float((shown * np.log(shown)).sum()) / float(np.log(len(left)))
    least = max(0.0, base - reach)
    place = min(1.0, max(0.0, entropy)) ** settings["dynatemp_exponent"]
    return float(max(_GREEDY_BELOW, least + (base + reach - least) * place))


def typical(weights: DoubleArray, typical_p: float) -> npt.NDArray[np.bool_]:
    """Return which tokens locally typical sampling keeps: those whose surprise is nearest to the entropy, the shortest
    beginning of that order whose probability reaches typical_p (Meister and others, 2022).
    """
    shares = weights / weights.sum()
    surprise = -np.log(np.maximum(shares, np.finfo(np.float64).tiny))
    order = np.argsort(np.abs(surprise - float((shares * surprise).sum())), kind="stable")
    count = int(np.searchsorted(np.cumsum(shares[order]), typical_p)) + 1
    kept = np.zeros(len(weights), np.bool_)
    kept[order[:count]] = True
    return kept


def without_surprises(ids: IntArray, weights: DoubleArray, bits: float) -> tuple[IntArray, DoubleArray]:
    """Without tokens of more than `bits` of surprise; the most likely one stays."""
    if bits <= 0:
        return ids, weights
    stays = weights >= weights.sum() * 2.0**-bits
    stays[int(np.argmax(weights))] = True
    return ids[stays], weights[stays]


def without_top_choices(ids: IntArray, weights: DoubleArray, threshold: float) -> tuple[IntArray, DoubleArray]:
    """Without all tokens of at least the probability `threshold` but the least likely of them (XTC)."""
    above = np.flatnonzero(weights >= threshold * weights.sum())
    if len(above) < 2:
        return ids, weights
    stays = np.ones(len(ids), np.bool_)
    stays[above] = False
    stays[above[len(above) - 1 - int(np.argmin(weights[above][::-1]))]] = True
    return ids[stays], weights[stays]


def sample_rows(logits: FloatArray, how: SamplingArrays, num_logprobs: int) -> SampledRows:
    """See `Backend.sample`."""
    tokens = np.array([draw(row, how, i) for i, row in enumerate(logits)], np.int32)
    if num_logprobs < 0:
        nothing = np.empty((len(tokens), 0), np.float32)
        return SampledRows(tokens, np.empty(0, np.float32), nothing.astype(np.int32), nothing)
    return score_rows(logits, np.arange(len(tokens), dtype=np.int32), tokens, num_logprobs)


def score_rows(logits: FloatArray, rows: IntArray, targets: IntArray, num_logprobs: int) -> SampledRows:
    """See `Backend.score`."""
    width = min(max(num_logprobs, 0), logits.shape[1])
    logprobs = np.full(len(rows), np.nan, np.float32)
    top_tokens = np.zeros((len(rows), width), np.int32)
    top_logprobs = np.zeros((len(rows), width), np.float32)
    for i, (row, target) in enumerate(zip(rows, targets, strict=True)):
        if target == NO_TOKEN or not np.isfinite(logits[row].max()):
            continue
        scores = log_softmax(logits[row])
        logprobs[i] = scores[target]
        top_tokens[i] = np.argsort(-scores, kind="stable")[:width]
        top_logprobs[i] = scores[top_tokens[i]]
    return SampledRows(np.asarray(targets, np.int32), logprobs, top_tokens, top_logprobs)
