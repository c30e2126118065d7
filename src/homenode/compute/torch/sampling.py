"""Drawing tokens from logits on the device, all rows at once, in the order `SamplingArrays` documents.

Rows with samplers that look at the probabilities of what others left (typical-p, bounds on surprises, XTC), or whose
temperature follows their entropy, are drawn one by one on the host, by the NumPy backend.

Arithmetic after the logits is float64, as in the NumPy backend, and the point of a draw is the same number: equal
logits give equal tokens, but for the last bits of sums taken in another order. Devices without float64 have their
logits copied to the host.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from homenode.compute.ops import NO_TOKEN, FloatArray, IntArray, SampledRows, SamplingArrays
from homenode.compute.reference.sampling import draw

_GOLDEN = 0x9E3779B97F4A7C15
_GREEDY_BELOW = 1e-5  # a smaller temperature would only turn differences into overflow
_HAVE_FLOAT64 = frozenset({"cpu", "cuda"})


def uniform(seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each (seed, counter): the splitmix64 mix of seed + (counter + 1) * golden ratio, top 53
    bits.

    Source of the mix: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014), in Vigna's
    constants.
    """
    z = seeds + (counters + np.uint64(1)) * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def sample_rows(logits: torch.Tensor, how: SamplingArrays, num_logprobs: int) -> SampledRows:
    """See `Backend.sample`."""
    logits = _where_float64(logits)
    edited = _edited(logits, how)
    masked = np.flatnonzero(how.mask_row >= 0)
    nan = torch.isnan(logits).any(dim=1)
    if len(masked):
        edited = _masked(edited, how, masked, nan)
    bad = nan | ~torch.isfinite(edited.amax(dim=1))
    edited = torch.where(bad.unsqueeze(1), 0, edited)  # so that there is something to draw
    tokens = edited.argmax(dim=1)
    random = how.settings["temperature"] >= _GREEDY_BELOW
    chained = random & is_chained(how)
    for row in np.flatnonzero(chained & ~bad.cpu().numpy()).tolist():
        tokens[row] = draw(logits[row].float().cpu().numpy(), how, row)
    drawn = np.flatnonzero(random & ~chained)
    if len(drawn):
        rows = torch.from_numpy(drawn).to(logits.device)
        tokens[rows] = _draw(edited[rows].double(), how, drawn)
    found = torch.where(bad, NO_TOKEN, tokens).cpu().numpy().astype(np.int32)
    if num_logprobs < 0:
        nothing = np.empty((len(found), 0), np.float32)
        return SampledRows(found, np.empty(0, np.float32), nothing.astype(np.int32), nothing)
    return score_rows(logits, found, num_logprobs)


def is_chained(how: SamplingArrays) -> npt.NDArray[np.bool_]:
    """Return which rows are drawn one by one."""
    of = how.settings
    chained = (
        (of["typical_p"] < 1) | (of["max_surprise"] > 0) | (of["xtc_probability"] > 0) | (of["dynatemp_range"] > 0)
    )
    return np.asarray(chained, np.bool_)


def score_rows(logits: torch.Tensor, targets: IntArray, num_logprobs: int) -> SampledRows:
    """Log-probabilities of a target for each row, and the most likely tokens, lower ids first among equals.

    NaN for a row that holds a NaN or has no finite largest value, and for the target `NO_TOKEN`.
    """
    logits = _where_float64(logits)
    none = torch.from_numpy(np.asarray(targets) == NO_TOKEN).to(logits.device)
    bad = none | ~torch.isfinite(logits.amax(dim=1))
    logits = torch.where(bad.unsqueeze(1), 0, logits)
    width = min(max(num_logprobs, 0), logits.shape[1])
    shifted = logits.double() - logits.amax(dim=1, keepdim=True).double()
    scores = shifted - shifted.exp().sum(dim=1, keepdim=True).log()
    wanted = torch.from_numpy(np.maximum(targets, 0).astype(np.int64)).to(logits.device).unsqueeze(1)
    order = torch.sort(scores, dim=1, descending=True, stable=True) if width else None
    tops = torch.zeros((len(logits), 0), device=logits.device) if order is None else order.values[:, :width]
    ids = tops if order is None else order.indices[:, :width]
    logprobs = torch.where(bad, torch.nan, scores.gather(1, wanted)[:, 0])
    return SampledRows(np.asarray(targets, np.int32), _floats(logprobs), _floats(ids).astype(np.int32), _floats(tops))


def _edited(logits: torch.Tensor, how: SamplingArrays) -> torch.Tensor:
    """Logits with biases and penalties: in float64 when there are any, else as they are."""
    if not len(how.bias_token) and not len(how.seen_token):
        return logits
    edited = logits.double() if logits.dtype != torch.float64 else logits.clone()
    if len(how.bias_token):
        rows, tokens, values = _entries(how.bias_start, how.bias_token, how.bias_value, logits.device)
        edited.index_put_((rows, tokens), values, accumulate=True)
    if len(how.seen_token):
        rows, tokens, counts = _entries(how.seen_start, how.seen_token, how.seen_count, logits.device)
        repetition, frequency, presence = (
            torch.from_numpy(how.settings[f"{name}_penalty"].astype(np.float64)).to(logits.device)[rows]
            for name in ("repetition", "frequency", "presence")
        )
        values = edited[rows, tokens]
        values = torch.where(values > 0, values / repetition, values * repetition)
        edited[rows, tokens] = values - (frequency * counts + presence * (counts > 0))
    return edited


def _masked(edited: torch.Tensor, how: SamplingArrays, masked: npt.NDArray[np.intp], nan: torch.Tensor) -> torch.Tensor:
    """-inf for the tokens that the masks of the rows `masked` do not have; 0 for the only token of a mask."""
    words = np.ascontiguousarray(how.masks[how.mask_row[masked]]).astype("<u4", copy=False)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : edited.shape[1]].astype(np.bool_)
    rows = torch.from_numpy(masked).to(edited.device)
    allowed = torch.from_numpy(bits).to(edited.device)
    only = (allowed.sum(dim=1, keepdim=True) == 1) & ~nan[rows].unsqueeze(1)
    edited = edited.clone()
    edited[rows] = torch.where(only & allowed, 0.0, edited[rows]).masked_fill(~allowed, -torch.inf)
    return edited


def _entries(
    starts: IntArray, tokens: IntArray, values: IntArray | FloatArray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row, token and value (float64) of each pair of a list in CSR form."""
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    given = rows, tokens.astype(np.int64), values.astype(np.float64)
    row, token, value = (torch.from_numpy(part).to(device) for part in given)
    return row, token, value


def _draw(logits: torch.Tensor, how: SamplingArrays, rows: npt.NDArray[np.intp]) -> torch.Tensor:
    """A token for each of the rows `rows` of the step; logits float64 [rows, vocabulary], edited."""
    device = logits.device
    temperature, sigmas, min_p, top_p = (
        torch.from_numpy(how.settings[name][rows].astype(np.float64)).to(device).unsqueeze(1)
        for name in ("temperature", "top_n_sigma", "min_p", "top_p")
    )
    if (how.settings["top_n_sigma"][rows] > 0).any():
        logits = _within_sigmas(logits, sigmas)
    logits = logits / temperature
    weights = torch.exp(logits - logits.amax(dim=1, keepdim=True))
    kept = (weights >= min_p) & (logits > -torch.inf)
    top_k = how.settings["top_k"][rows]
    shortened = np.flatnonzero((top_k > 0) | (how.settings["top_p"][rows] < 1))
    if len(shortened):
        some = torch.from_numpy(shortened).to(device)
        kept[some] &= _shortlist(logits[some], weights[some], top_k[shortened], top_p[some])
    cumulative = torch.where(kept, weights, 0).cumsum(dim=1)
    points = torch.from_numpy(uniform(how.seed[rows], how.counter[rows])).to(device).unsqueeze(1) * cumulative[:, -1:]
    found = torch.searchsorted(cumulative, points, right=True)[:, 0]
    last = logits.shape[1] - 1 - kept.flip(1).to(torch.int8).argmax(dim=1)
    return torch.minimum(found, last)


def _within_sigmas(logits: torch.Tensor, sigmas: torch.Tensor) -> torch.Tensor:
    """-inf for logits below the largest - sigmas * standard deviation of a row, -inf not counted. Rows of sigmas <= 0
    stay.
    """
    counted = logits > -torch.inf
    count = counted.sum(dim=1, keepdim=True)
    mean = torch.where(counted, logits, 0).sum(dim=1, keepdim=True) / count
    variance = torch.where(counted, logits - mean, 0).square().sum(dim=1, keepdim=True) / count
    least = (logits.amax(dim=1, keepdim=True) - sigmas * variance.sqrt()).float().double()
    return logits.masked_fill((logits < least) & (sigmas > 0), -torch.inf)


def _shortlist(logits: torch.Tensor, weights: torch.Tensor, top_k: IntArray, top_p: torch.Tensor) -> torch.Tensor:
    """Return which tokens top-k and then top-p leave, bool [rows, vocabulary]: the most likely, lower ids first
    among equals.
    """
    vocabulary = logits.shape[1]
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices
    most = torch.from_numpy(np.where(top_k > 0, top_k, vocabulary).astype(np.int64)).to(logits.device).unsqueeze(1)
    within = torch.arange(vocabulary, device=logits.device) < most
    ordered = torch.where(within, weights.gather(1, order), 0)
    reached = ordered.cumsum(dim=1)
    # The shortest beginning that reaches top_p: a token stays as long as those before it do not.
    before = torch.cat([torch.zeros_like(reached[:, :1]), reached[:, :-1]], dim=1) / reached[:, -1:]
    stays = within & ((before < top_p) | (top_p >= 1))
    stays[:, 0] = True
    return torch.zeros_like(stays).scatter_(1, order, stays)


def _where_float64(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.device.type in _HAVE_FLOAT64 else logits.cpu()


def _floats(values: torch.Tensor) -> FloatArray:
    return np.ascontiguousarray(values.cpu().numpy().astype(np.float32))
