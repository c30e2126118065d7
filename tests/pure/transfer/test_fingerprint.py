"""What two engines must agree in: it changes with everything keys and values depend on, and with nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from homenode.compute.ops import KvGeometry
from homenode.engine.kv_transfer.fingerprint import Fingerprint, fingerprint_of, hash_seed
from homenode.errors import CheckpointError
from homenode.model.architectures.ministral3 import QueryGrowth
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.formats.safetensors import read_safetensors
from homenode.model.spec import IndexerSpec, MoeSpec, RopeSpec
from homenode.model.weights.weights_identity import weights_digest
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.wire.message import differences
from tests.quantised_folders import FORMS, write_quantised

BUILTIN = Path(__file__).resolve().parents[3] / "src/homenode/builtin"
GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=2, head_dim=8, block_size=64, dtype="f32")
SENDER = TransferConfig(pd_role="sender")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUILTIN, tmp_path / "model"))


def of(
    path: Path, config: TransferConfig = SENDER, geometry: KvGeometry = GEOMETRY, kept: str = "auto: 3 F32"
) -> Fingerprint:
    return fingerprint_of(config, open_checkpoint(path), geometry, kept)


def changed(path: Path, offset: int, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= byte
    path.write_bytes(content)


def test_the_same_model_elsewhere_has_the_same(model: Path) -> None:
    assert of(model) == of(BUILTIN)
    assert differences(of(model), of(BUILTIN)) == []


def test_another_value_of_a_weight_is_noticed_and_named(model: Path) -> None:
    before = of(model)
    entry = min(open_checkpoint(model).tensors.values(), key=lambda each: each.offset)
    changed(entry.file, entry.offset, 1)
    (found,) = differences(before, of(model))
    assert found.startswith("weights is ")


def test_every_tensor_of_a_small_model_is_sampled(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    seen = {weights_digest(checkpoint)}
    for entry in checkpoint.tensors.values():
        changed(entry.file, entry.offset + entry.nbytes - 1, 0x10)
        seen.add(weights_digest(checkpoint))
    assert len(seen) == len(checkpoint.tensors) + 1


def test_a_weight_file_that_ends_early(model: Path) -> None:
    checkpoint = open_checkpoint(model)
    last = max(checkpoint.tensors.values(), key=lambda each: each.offset)
    last.file.write_bytes(last.file.read_bytes()[: last.offset + 10])
    with pytest.raises(CheckpointError, match="ended within tensor"):
        weights_digest(checkpoint)


def test_another_vocabulary_is_named(model: Path) -> None:
    before = of(model)
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text() + " ")
    assert [text.split()[0] for text in differences(before, of(model))] == ["tokenizer"]


@pytest.mark.parametrize("name", ["tekken.json", "tokenizer.model.v3", "tokenizer.model"])
def test_another_vocabulary_of_mistral_is_named(model: Path, name: str) -> None:
    (model / "tokenizer.json").rename(model / name)
    before = of(model)
    (model / name).write_text((model / name).read_text() + " ")
    assert [text.split()[0] for text in differences(before, of(model))] == ["tokenizer"]


@pytest.mark.parametrize(
    ("config", "geometry", "kept", "named"),
    [
        (TransferConfig(pd_role="sender", pd_pull_mode=True), GEOMETRY, "auto: 3 F32", "mode"),
        (TransferConfig(pd_role="sender", transfer_channel="tcp"), GEOMETRY, "auto: 3 F32", "channel"),
        (TransferConfig(pd_role="sender", pd_secret="x" * 16), GEOMETRY, "auto: 3 F32", "secret"),
        (SENDER, replace(GEOMETRY, dtype="bf16"), "auto: 3 F32", "kv_dtype"),
        (SENDER, GEOMETRY, "q8_0: 3 Q8_0", "weights_kept_as"),
    ],
)
def test_settings_that_must_agree(config: TransferConfig, geometry: KvGeometry, kept: str, named: str) -> None:
    (found,) = differences(of(BUILTIN), of(BUILTIN, config, geometry, kept))
    assert found.startswith(f"{named} is ")


def test_what_may_differ() -> None:
    other = TransferConfig(pd_role="receiver", pd_buffer_size=1 << 20, pd_peer_host="127.0.0.2")
    assert differences(of(BUILTIN), of(BUILTIN, other, replace(GEOMETRY, block_size=32))) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_kv_heads": 1}, "kv_heads"),
        ({"head_dim": 4}, "head_dim"),
        ({"num_layers": 1}, "layers"),
        ({"norm_eps": 1e-3}, "rms_norm_eps"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"architecture": "qwen3"}, "architecture"),
        ({"rope": RopeSpec(theta=2e4)}, "rope"),
        ({"local_rope": RopeSpec()}, "local_rope"),
        ({"attention_softcap": 50.0}, "scales"),
        ({"attention_scale": 0.5}, "scales"),
        ({"embedding_scale": 2.0}, "scales"),
        ({"residual_scale": 0.5}, "residual_scale"),
        ({"indexer": IndexerSpec(heads=2, width=16, chosen=8, layers=(0, 1), adjacent=True)}, "indexer"),
    ],
)
def test_every_figure_of_the_architecture_is_told_by_name(change: dict[str, object], named: str) -> None:
    checkpoint = open_checkpoint(BUILTIN)
    other = OpenedCheckpoint(
        checkpoint.path, replace(checkpoint.spec, **change), checkpoint.tensors, checkpoint.metadata
    )  # type: ignore[arg-type]
    ours, theirs = fingerprint_of(SENDER, checkpoint, GEOMETRY, ""), fingerprint_of(SENDER, other, GEOMETRY, "")
    assert [text.split()[0] for text in differences(ours, theirs)] == [named]


def told(checkpoint: OpenedCheckpoint, **changes: object) -> Fingerprint:
    spec = replace(checkpoint.spec, **changes)  # type: ignore[arg-type]
    other = OpenedCheckpoint(checkpoint.path, spec, checkpoint.tensors, checkpoint.metadata)
    return fingerprint_of(SENDER, other, GEOMETRY, "")


def test_figures_that_only_one_architecture_has_must_agree() -> None:
    checkpoint = open_checkpoint(BUILTIN)
    one, other = (told(checkpoint, own=QueryGrowth(growth, 8)) for growth in (0.2, 0.3))
    assert [text.split()[0] for text in differences(one, other)] == ["own"]
    assert "own" not in told(checkpoint), "other architectures tell what they told before"


def test_experts_are_told_as_engines_of_0_1_0_tell_them() -> None:
    assert told(open_checkpoint(BUILTIN), moe=MoeSpec(8, 2, 96, True))["experts"] == (
        "MixtureSpec(num_experts=8, experts_per_token=2, intermediate_size=96, normalise=True, "
        "shared_intermediate_size=0, dense_layers=())"
    )


def test_rope_counts_to_the_last_factor_and_stays_short() -> None:
    checkpoint = open_checkpoint(BUILTIN)

    def with_factors(last: float) -> Fingerprint:
        rope = replace(checkpoint.spec.rope, factors=(*(1.0,) * 4096, last))
        spec = replace(checkpoint.spec, rope=rope)
        return fingerprint_of(
            SENDER, OpenedCheckpoint(checkpoint.path, spec, checkpoint.tensors, checkpoint.metadata), GEOMETRY, ""
        )

    one, two = with_factors(1.0), with_factors(2.0)
    assert one["rope"] != two["rope"]
    assert max(len(value) for value in one.values()) < 1024  # as transfer.published bounds it


def test_longrope_s_factors_in_use_must_agree() -> None:
    """They are those of the longest context, so that engines of different --max-model-len may compute other keys."""
    checkpoint = open_checkpoint(BUILTIN)
    rope = RopeSpec(kind="longrope", original_max_position=64, short_factors=(1.0,) * 8, long_factors=(2.0,) * 8)
    other = OpenedCheckpoint(
        checkpoint.path, replace(checkpoint.spec, rope=rope), checkpoint.tensors, checkpoint.metadata
    )

    def rope_at(length: int | None) -> str:
        return fingerprint_of(SENDER, other, GEOMETRY, "", length)["rope"]

    assert rope_at(64) == rope_at(32) != rope_at(65) == rope_at(None)
    assert fingerprint_of(SENDER, checkpoint, GEOMETRY, "", 32) == fingerprint_of(SENDER, checkpoint, GEOMETRY, "", 65)


@pytest.mark.parametrize("part", ["qweight", "scales", "qzeros"])
def test_a_value_of_a_quantised_folder_is_noticed(tmp_path: Path, part: str) -> None:
    write_quantised(tmp_path, FORMS["gptq with zero points"])
    before, path = weights_digest(open_checkpoint(tmp_path)), tmp_path / "model.safetensors"
    entry = read_safetensors(path)[f"model.layers.1.mlp.down_proj.{part}"]
    data = bytearray(path.read_bytes())
    data[entry.offset] ^= 1
    path.write_bytes(data)
    assert weights_digest(open_checkpoint(tmp_path)) != before


def test_how_a_quantised_folder_is_meant_is_noticed(tmp_path: Path) -> None:
    """Both versions of GPTQ are the same bytes with other values."""
    digests = []
    for version in ("gptq", "gptq_v2"):
        write_quantised(tmp_path, FORMS["gptq with zero points"])
        config = json.loads((tmp_path / "config.json").read_text())
        config["quantization_config"]["checkpoint_format"] = version
        (tmp_path / "config.json").write_text(json.dumps(config))
        digests.append(weights_digest(open_checkpoint(tmp_path)))
    assert digests[0] != digests[1]


def test_versions_need_only_overlap() -> None:
    ours = of(BUILTIN)
    assert differences({**ours, "protocol": "1-3"}, {**ours, "protocol": "2-5"}) == []
    for other in ("4-5", "", "x-y", "1-99999999999"):
        assert len(differences({**ours, "protocol": "1-3"}, {**ours, "protocol": other})) == 1


def test_facts_that_one_side_does_not_tell() -> None:
    ours = of(BUILTIN)
    assert differences(ours, {**ours, "new_fact": "x"}) == ["new_fact is not told here and 'x' there"]
    theirs = dict(ours)
    del theirs["kv_form"]
    assert "kv_form" in differences(ours, theirs)[0]


def test_a_long_value_does_not_make_a_long_message() -> None:
    assert len(differences({"a": "x" * 10_000}, {"a": "y" * 10_000})[0]) < 400


def test_identities_depend_on_the_model_and_the_secret_alone() -> None:
    ours = of(BUILTIN)
    seed = hash_seed(ours, None)
    assert len(seed) == 32
    assert seed == hash_seed(dict(reversed(ours.items())), None)
    assert seed == hash_seed({**ours, "mode": "pull-eager", "channel": "tcp", "protocol": "1-9", "secret": "set"}, None)
    assert (
        len({seed, hash_seed(ours, "a" * 16), hash_seed(ours, "b" * 16), hash_seed({**ours, "weights": "0"}, None)})
        == 4
    )


def test_the_weights_that_count_are_those_that_were_read(model: Path) -> None:
    """Engines whose files were replaced meanwhile hand KV over to those with the weights in their memory."""
    checkpoint = open_checkpoint(model)
    read = weights_digest(checkpoint)
    entry = min(checkpoint.tensors.values(), key=lambda each: each.offset)
    changed(entry.file, entry.offset, 1)
    kept = fingerprint_of(SENDER, open_checkpoint(model), GEOMETRY, "auto: 3 F32", weights=read)
    assert differences(kept, of(BUILTIN)) == []
    (found,) = differences(kept, of(model))
    assert found.startswith("weights is ")
