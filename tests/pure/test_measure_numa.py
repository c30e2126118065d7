"""tools/measure_numa.py: policies take turns, failures are told in their place, nothing private is kept, and what was
measured is never lost.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from homenode.numa_policy import PLANNED_POLICIES as PREDICTED
from tools.measure_numa import POLICIES, main, summary, table, turns

# Stands for homenode: writes down how it was called, and answers as each command does. Mirror does not fit, and local
# is the slowest.
FAKE = """
import json, pathlib, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
policy = words[words.index("--numa") + 1] if "--numa" in words else ""
if words[:2] == ["host", "record"]:
    pathlib.Path(words[2]).write_text(json.dumps({{"format": "homenode-host/1", "files": {{}}}}))
elif words[:2] == ["bench", "nodes"]:
    pathlib.Path(words[words.index("--out") + 1]).write_text(json.dumps({{"format": "homenode-nodes/1", "barrier_us": 0.5}}))
elif policy == "mirror":
    print("homenode: error: a copy of {folder}/secret.gguf on each node needs 8GiB, node 1 has 2GiB", file=sys.stderr)
    if "--json" in words and words[0] == "plan":
        print(json.dumps({{"error": {{"code": "does_not_fit", "message": "{folder}/secret.gguf needs more"}}}}))
    sys.exit(2)
elif words[0] == "plan":
    print(json.dumps({{"policy": policy, "why": "asked for", "parameters": {{"a": 1}}}}))
else:
    rate = {{"local": 10.0, "shard": 18.0, "auto": 18.0}}.get(policy, 12.0)
    results = [{{"test": "prefill", "batch": 1, "tok_s": 100 * rate}}, {{"test": "decode", "batch": 4, "tok_s": rate}}]
    print(json.dumps({{"model": "{folder}/secret.gguf", "results": results}}))
"""


@pytest.fixture
def fake(tmp_path: Path) -> tuple[str, Path]:
    """The command, and the log of its calls."""
    script, log = tmp_path / "fake.py", tmp_path / "calls"
    script.write_text(FAKE.format(log=str(log), folder=str(tmp_path)))
    return f"{sys.executable} {script}", log


def measured(fake: tuple[str, Path], tmp_path: Path, *more: str) -> dict[str, Any]:
    out = tmp_path / "numa.json"
    code = main(["--model", str(tmp_path / "secret.gguf"), "--out", str(out), "--homenode", fake[0], *more])
    assert code == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def calls(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_everything_is_in_one_file(fake: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(fake, tmp_path, "--rounds", "2", "--policies", "local,shard,mirror,auto")
    assert found["format"] == "homenode-numa-runs/1" and found["host"]["format"] == "homenode-host/1"
    assert found["nodes"]["barrier_us"] == 0.5
    assert found["plans"]["shard"] == {"policy": "shard", "why": "asked for"}, "without the rows of every matrix"
    assert found["plans"]["mirror"]["error"]["code"] == "does_not_fit"
    assert [(r["round"], r["policy"]) for r in found["runs"]] == turns(("local", "shard", "mirror", "auto"), 2)
    assert found["summary"]["shard"] == {"prefill": 1800.0, "decode, batch 4": 18.0}
    assert "8GiB" in found["runs"][2]["failed"] and "mirror" not in found["summary"]
    printed = capsys.readouterr().out
    assert "18.0 tok/s (1.80x)" in printed and "numa.json" in printed


def test_nothing_private_is_kept(fake: tuple[str, Path], tmp_path: Path) -> None:
    text = json.dumps(measured(fake, tmp_path, "--rounds", "1", "--policies", "local,mirror"))
    assert str(tmp_path) not in text and "secret.gguf" in text


def test_auto_is_given_the_measurement_and_the_bench_its_wishes(fake: tuple[str, Path], tmp_path: Path) -> None:
    measured(fake, tmp_path, "--rounds", "1", "--policies", "shard,auto", "--batch", "2", "--gen-tokens", "7")
    runs = [words for words in calls(fake[1]) if words[:2] == ["bench", "model"]]
    assert ["--numa-measured" in words for words in runs] == [False, True]
    for words in runs:
        assert (
            words[words.index("--batch") + 1] == "2"
            and words[words.index("--gen-tokens") + 1] == "7"
            and words[-1] == "--json"
        )


def test_every_round_has_each_policy_once_and_begins_with_another() -> None:
    made = turns(("a", "b", "c"), 4)
    rounds = [[policy for number, policy in made if number == at] for at in range(4)]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert [names[0] for names in rounds] == ["a", "b", "c", "a"]


def test_when_nothing_runs_the_file_says_why_and_the_exit_code_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "numa.json"
    code = main(["--out", str(out), "--homenode", str(tmp_path / "none"), "--rounds", "1", "--policies", "local"])
    assert code == 1
    found = json.loads(out.read_text())
    assert "No such file" in found["runs"][0]["failed"] and found["host"]["failed"] and found["nodes"]["failed"]
    assert "No run succeeded" in capsys.readouterr().out


def test_what_was_measured_before_an_interruption_is_kept(
    fake: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tools.measure_numa as tool

    whole = tool.run

    def interrupted(record: tool.Record, policy: str, folder: Path) -> dict[str, Any]:
        if policy == "shard":
            raise KeyboardInterrupt
        return whole(record, policy, folder)

    monkeypatch.setattr(tool, "run", interrupted)
    out = tmp_path / "numa.json"
    with pytest.raises(KeyboardInterrupt):
        main(
            [
                "--model",
                str(tmp_path / "m"),
                "--out",
                str(out),
                "--homenode",
                fake[0],
                "--rounds",
                "1",
                "--policies",
                "local,shard",
            ]
        )
    assert [r["policy"] for r in json.loads(out.read_text())["runs"]] == ["local"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.json", "--policies", "local,best"], "unknown policy 'best'"),
        (["--out", "x.json", "--rounds", "0"], "'0' is no number from 1 on"),
        ([], "--out"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_refused_before_anything_runs(
    fake: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(tmp_path / "no" / "x.json"), "--homenode", fake[0]]) == 2
    assert "no file can be made" in capsys.readouterr().err and not fake[1].exists()


def test_medians_and_multiples() -> None:
    runs = [
        {"policy": "local", "result": {"results": [{"test": "decode", "batch": 1, "tok_s": rate}]}}
        for rate in (1.0, 9.0, 2.0)
    ]
    assert summary([*runs, {"policy": "shard", "failed": "x"}]) == {"local": {"decode, batch 1": 2.0}}
    shown = table({"shard": {"prefill": 30.0}, "local": {"prefill": 20.0, "decode, batch 1": 5.0}})
    assert "1.50x" in shown and "-" in shown.splitlines()[1]


def test_the_policies_are_those_that_are_predicted_and_auto() -> None:
    assert set(POLICIES) == {*PREDICTED, "auto"}
