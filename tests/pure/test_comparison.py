"""The comparison with other engines reads what they print, counts only pairs of one placement, and its page says what
its records say.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from benchmarks import in_python, llama_cpp
from benchmarks.comparison import Combination, Comparison, Pair, own_rates, row_of
from benchmarks.contender import Command, Measured, Side, Unavailable
from benchmarks.machine import moved_between, without_folders
from benchmarks.others import Others, disturbed, process_seconds, used_seconds
from benchmarks.pair import last_json, run_command, run_pieces
from benchmarks.standing import CommandFailed, Standing
from benchmarks.table import PAGE, SUMMARY, comparison_text, page_of_records, summary_of_records
from benchmarks.tasks import Piece, Task, measured, planned, shown_commands
from benchmarks.turns import Turns
from benchmarks.workload import Workload
from homenode.bench.machine.ceilings import Ceilings
from homenode.bench.machine.fingerprint import Fingerprint
from homenode.bench.machine.repetition import MachineReading

# Recorded from llama.cpp 0c1e570 on a file of the shape of Qwen2.5-0.5B in Q8_0, shortened.
LLAMA_BENCH = """[
  {
    "build_commit": "0c1e570", "build_number": 1, "cpu_info": "AMD EPYC", "backends": "CPU", "n_threads": 2, "type_k": "f16",
    "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ns": 1479096415, "stddev_ns": 0, "avg_ts": 346.157285, "samples_ts": [ 346.157 ]
  }
]
"""
BATCHED_BENCH = """
{"n_kv_max": 8192, "n_batch": 2048, "n_threads": 2, "pp": 16, "tg": 32, "pl": 1, "n_kv": 48, "t_tg": 0.553042, "speed_tg": 57.861790, "t": 0.615136, "speed": 78.031532}
{"n_kv_max": 8192, "n_batch": 2048, "n_threads": 2, "pp": 16, "tg": 32, "pl": 32, "n_kv": 1536, "t_tg": 4.834094, "speed_tg": 211.828735, "t": 6.222608, "speed": 246.841843}

llama_perf_context_print:        load time =     224.60 ms
"""
OPENVINO = '{"version": "2026.4.1.0-3408-ab01d1771e4", "prefill": 1011.72, "batches": {"1": 63.39, "32": 574.17}}\n'
WORK = Workload(batches=(1, 32))
HERE = {"round_trip_ns": [110.0], "read_gb_s": 49.0}
THERE = {"round_trip_ns": [509.0], "read_gb_s": 77.0}


def test_outputs_of_all_engines_are_read() -> None:
    assert llama_cpp.read([LLAMA_BENCH, BATCHED_BENCH]) == Measured(
        {"prefill": 346.157285, "batch 1": 57.86179, "batch 32": 211.828735}, "0c1e570 (1)"
    )
    assert in_python.read([OPENVINO], WORK).rates == {"prefill": 1011.72, "batch 1": 63.39, "batch 32": 574.17}
    with pytest.raises(ValueError, match="nothing about batch 4"):
        in_python.read([OPENVINO], Workload(batches=(1, 4)))


def test_a_workload_is_cut_into_pieces_that_together_are_all_of_it() -> None:
    whole = Workload()
    assert [piece.cases for piece in whole.parts()] == [
        ("prefill",),
        ("batch 1",),
        ("batch 4",),
        ("batch 8",),
        ("batch 32",),
    ]
    assert [piece.cases for piece in Workload(prompt=0, batches=(8,)).parts()] == [("batch 8",)]
    ours = in_python.own_side(Path("m"), Workload(prompt=0, batches=(8,)))
    assert ours.question == {"prompt": 0, "context": 16, "steps": 32, "batches": [8]}
    # One program for all of them.
    assert ours.commands == in_python.own_side(Path("m"), Workload(batches=(1,))).commands


def test_a_move_between_any_two_readings_is_seen_and_none_otherwise() -> None:
    assert moved_between([HERE, HERE, HERE]) is None
    assert "110 to 509 ns" in str(moved_between([HERE, THERE, HERE]))


def test_every_variant_that_exists_is_planned_and_what_is_missing_is_said(tmp_path: Path) -> None:
    programs, models = tmp_path / "programs", tmp_path / "models"
    for name in ("programs/llama-bench", "programs/llama-batched-bench", "models/s-Q4_0.gguf", "models/s-BF16.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    peers = {"llama.cpp": llama_cpp.LlamaCpp(programs), "openvino": in_python.openvino(tmp_path / "venv")}
    tasks, skipped = planned(peers, models, ["s"], ["Q8_0", "Q4_0", "BF16"], WORK)
    assert all([piece.cases for piece in task.pieces] == [("prefill",), ("batch 1",), ("batch 32",)] for task in tasks)
    assert [(t.combination.format, t.combination.variant) for t in tasks] == [
        *(("Q4_0", v) for v in ("default", "huge pages", "--no-repack", "huge pages, --no-repack")),
        *(("BF16", v) for v in ("default", "huge pages")),
    ]
    assert [line.rpartition("/")[2] for line in skipped] == [
        *["s-Q8_0.gguf does not exist"] * 2,
        "s-openvino-int4 does not exist",
        "s-openvino-bf16 does not exist",
    ]
    (prompt,), (decode,) = (tasks[3].pieces[i].theirs.commands for i in (0, 1))
    assert all(command.variables == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} for command in (prompt, decode))
    assert "--no-repack" in decode.argv and prompt.argv[-2:] == ("--repack", "0")
    batched = dict(zip(decode.argv[1::2], decode.argv[2::2], strict=False))
    assert (batched["-npp"], batched["-ntg"], batched["-npl"], batched["-c"]) == ("16", "32", "1", "48")


def reading() -> MachineReading:
    return MachineReading(Fingerprint((110.0,), 49e9), Ceilings(46e9, 2e12, 1e12, 5e11, 4e12))


def says(*texts: str, code: int = 0) -> dict[str, Any]:
    """A side whose commands say this and end."""
    commands = [Command((sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})")) for text in texts]
    return Side("other", "", tuple(commands), llama_cpp.read).to_json()


ANSWERING = """
import json, sys
print("a warning", flush=True)
print(json.dumps({"version": "v"}), flush=True)
for n, line in enumerate(sys.stdin):
    if json.loads(line) == "end": sys.exit("no more")
    print(json.dumps({"version": "v", "asked": json.loads(line), "n": n}), flush=True)
"""


def test_a_pair_keeps_every_output_between_three_readings_and_tells_a_failure() -> None:
    ((one,),) = run_pieces([[says("a"), says("b", "c")]], reading, patience_s=0)["tries"]
    assert one["outputs"] == [["a\n"], ["b\n", "c\n"]]
    assert len(one["readings"]) == 3
    assert one["readings"][0]["ceilings"]["read_gb_s"] == 46.0
    failed = run_pieces([[says("a"), says("b", code=3)]], reading)
    assert "ended with 3" in failed["failed"]


def test_a_program_that_stays_answers_all_questions_and_one_that_ends_says_why() -> None:
    argv = (sys.executable, "-c", ANSWERING)
    with Standing() as standing:
        process = standing.ready(argv, {})
        answers = [json.loads(standing.ask(argv, {"prompt": i})) for i in range(2)]
        assert [(a["asked"], a["n"]) for a in answers] == [({"prompt": 0}, 0), ({"prompt": 1}, 1)]
        assert standing.ready(argv, {}) == process
        assert process_seconds(process) >= 0
        with pytest.raises(CommandFailed, match="ended with 1 instead of answering: no more"):
            standing.ask(argv, "end")
    with Standing(limit_s=0.2) as silent, pytest.raises(CommandFailed, match="instead of answering"):
        silent.ready((sys.executable, "-c", "import time; time.sleep(60)"), {})
    with Standing() as none, pytest.raises(CommandFailed, match="/does/not/exist"):
        none.ready(("/does/not/exist",), {})


def test_a_pair_that_does_not_count_is_measured_again_with_the_same_programs() -> None:
    moving = chain([reading(), replace(reading(), fingerprint=Fingerprint((509.0,), 77e9))], repeat(reading()))
    stays = Side("other", "", (Command((sys.executable, "-c", ANSWERING)),), llama_cpp.read, {"prompt": 7}).to_json()
    (tries,) = run_pieces([[says("a"), stays]], lambda: next(moving), patience_s=5)["tries"]
    assert "110 to 509 ns" in tries[0]["discarded"] and len(tries) > 1
    assert [json.loads(t["outputs"][1][0])["n"] for t in tries] == list(range(1, 1 + len(tries)))  # 0 warmed up


def test_time_that_others_used_is_told_from_that_of_what_was_run() -> None:
    stat = "cpu 1 1 1 1 1 1 1 1 0 0\ncpu0 100 10 20 5000 30 1 2 40 0 0\ncpu1 7 7 7 7 7 7 7 7 0 0\nintr 5\n"
    assert used_seconds(stat, {0}) == (100 + 10 + 20 + 1 + 2 + 40) / os.sysconf("SC_CLK_TCK")
    assert disturbed({"a": 0.01, "b": 0.06}) is None
    beside = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        assert beside.stdout is not None
        beside.stdout.readline()
        with Others() as crowded:
            run_command(says_after(0.5))
        assert crowded.share > 0.06
    finally:
        beside.kill()
        beside.wait()


def says_after(seconds: float) -> dict[str, Any]:
    """A command that computes for so long."""
    return Command(
        (sys.executable, "-c", f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass")
    ).to_json()


def test_a_failing_or_babbling_side_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="out of luck"):
        last_json([sys.executable, "-c", 'print(\'{"failed": "out of luck"}\')'])
    with pytest.raises(Unavailable, match="ended with 7"):
        last_json([sys.executable, "-c", "import sys; sys.exit(7)"])
    task = Task(Combination("s", "Q8_0", "other", ""), (Piece(WORK.cases, side("prints"), side("nothing else")),))
    found = {
        "tries": [
            [{"readings": [HERE] * 3, "outputs": [["hello"], ["hello"]], "others": [0.0, 0.0], "discarded": None}]
        ]
    }
    with pytest.raises(Unavailable, match="could not be read"):
        measured(task, printing(found), 2)


def side(name: str) -> Side:
    return Side(name, "", (Command((name,)),), llama_cpp.read)


def printing(found: dict[str, Any]) -> list[str]:
    """A wrapper that measures nothing."""
    return [sys.executable, "-c", f"print({json.dumps(found)!r})"]


def test_a_task_gives_all_pairs_of_its_pieces_and_of_those_that_do_not_count_only_the_reason() -> None:
    ours = Side(
        "homenode",
        "",
        (Command(("/bin/homenode",)),),
        lambda outputs: Measured({"prefill": float(outputs[0])}, ""),
        {"prompt": 1},
    )
    pieces = tuple(Piece(("prefill",), ours, replace(ours, engine="other")) for _ in range(2))
    task = Task(Combination("s", "Q8_0", "other", ""), pieces)
    good = {"readings": [HERE] * 3, "outputs": [["4"], ["2"]], "others": [0.01, 0.02], "discarded": None}
    bad = {**good, "outputs": [["9"], ["3"]], "discarded": "they moved"}
    one, again, two = measured(task, printing({"tries": [[bad, good], [good]]}), 2)
    assert (one.ours["prefill"], one.theirs["prefill"], one.discarded, one.readings) == (9.0, 3.0, "they moved", [])
    assert (again.ours["prefill"], again.theirs["prefill"], again.discarded, again.readings) == (
        4.0,
        2.0,
        None,
        [HERE] * 3,
    )
    assert two == again
    asked = "homenode <<< '{\"prompt\": 1}'"
    assert shown_commands([task]) == {"homenode": [asked] * 2, "other": [asked] * 2}


def pair(ours: float, theirs: float, moved: str | None = None, format: str = "Q8_0", variant: str = "default") -> Pair:
    combination = Combination("qwen2.5-0.5b", format, "llama.cpp", variant)
    return Pair(
        combination,
        {"prefill": ours, "batch 1": ours},
        {"prefill": theirs, "batch 1": 2 * theirs},
        "v",
        moved,
        [HERE] * 3,
    )


def record(*pairs: Pair) -> Comparison:
    machine = {"processor": "P", "cpus": 2, "kernel": "6", "transparent_hugepage": "madvise"}
    return Comparison(machine, {"homenode": "0.1"}, Workload(batches=(1,)), pairs=list(pairs))


def test_ratios_are_medians_of_the_pairs_that_count() -> None:
    found = record(pair(100, 50), pair(300, 100), pair(100, 20), pair(1, 1000, moved="they moved"))
    (combination,) = found.combinations
    row = row_of(combination, found.counted(combination), found.workload.cases)
    assert row.ratios == {"prefill": 3.0, "batch 1": 1.5}
    assert row.theirs == {"prefill": 50, "batch 1": 100}
    assert own_rates(found.counted(combination), ["prefill", "batch 9"]) == {"prefill": 100}
    assert len(found.counted(combination, ["prefill"])) == 3 and not found.counted(combination, ["batch 9"])


def test_the_record_survives_its_file_and_forgets_what_is_measured_anew(tmp_path: Path) -> None:
    found = record(pair(100, 50), pair(1, 2, moved="they moved"), pair(3, 4, format="BF16"))
    found.save(tmp_path / "new" / "record.json")
    again = Comparison.load(tmp_path / "new" / "record.json")
    assert again == found
    again.skipped = [
        "llama.cpp, qwen2.5-0.5b Q8_0: no file", "llama.cpp, qwen2.5-0.5b Q4_0: no file",
        "qwen2.5-0.5b Q8_0, llama.cpp, default: it fell silent"
    ]  # fmt: skip
    again.forget([pair(0, 1).combination])
    assert [p.combination.format for p in again.pairs] == ["BF16"]
    assert again.skipped == ["llama.cpp, qwen2.5-0.5b Q4_0: no file"]


def test_all_versions_that_pairs_were_measured_with_are_named() -> None:
    found = record(pair(100, 50))
    found.versions = {"homenode": "0.1.0 (a)"}
    for version in ("0.1.0 (a)", "0.1.0 (b)", "0.1.0 (b)"):
        found.measured_with("homenode", version)
    found.measured_with("other", "7")
    assert found.versions == {"homenode": "0.1.0 (a), 0.1.0 (b)", "other": "7"}


def test_the_text_says_first_where_we_are_behind() -> None:
    text = comparison_text(record(pair(100, 80), pair(90, 80, variant="huge pages")))
    assert text.startswith(
        "Behind, that is slower than the other side:\n\n- qwen2.5-0.5b, Q8_0, CPUs on one cache, against "
        "llama.cpp, default: "
        "decode, batch 1 (0.62x)"
    )
    assert "| **Q8_0** | homenode, tok/s | **95** | **95** |" in text
    assert "| | llama.cpp, huge pages | 1.12x (80) | 0.56x (160) |" in text.replace("|  |", "| |")
    assert comparison_text(record(pair(100, 10))).startswith("Behind: in none of the cases below.\n")
    assert comparison_text(record(pair(100, 10, "they moved"))) == "Nothing has been measured yet.\n"


def test_pairs_are_told_apart_by_where_the_cpus_were() -> None:
    near, far, alone = pair(100, 50), replace(pair(300, 100), readings=[THERE] * 3), replace(pair(70, 10), readings=[])
    text = comparison_text(record(near, far, alone))
    titles = [line for line in text.splitlines() if line.startswith("Shape of")]
    assert titles == [
        f"Shape of qwen2.5-0.5b{place}:" for place in (", CPUs on one cache", ", CPUs on several caches", "")
    ]
    for place, rate, cells in (("one", 100, "2.00x (50) | 1.00x (100)"), ("several", 300, "3.00x (100) | 1.50x (200)")):
        table = text.split(f"CPUs on {place} cache")[1].split("Shape of")[0]
        assert f"| **{rate}** | **{rate}** |" in table and f"| {cells} |" in table


def test_paths_of_this_machine_stay_out_of_the_record() -> None:
    assert (
        without_folders('/a/b/llama-bench -m /m/x.gguf {"model": "/m/y"} --x=/q/r/s 3/4')
        == 'llama-bench -m x.gguf {"model": "y"} --x=s 3/4'
    )


def test_what_fails_twice_is_given_up_and_what_counts_is_not_repeated() -> None:
    tries: list[str] = []
    given_up: list[str] = []

    def measure(task: str) -> str:
        tries.append(task)
        if task == "broken" or (tries.count("shaky") == 1 and task == "shaky"):
            raise Unavailable("no luck")
        return "fine"

    def count(task: str) -> int:
        return {"fine": tries.count("fine"), "shaky": tries.count("shaky") - 1, "moving": 0, "broken": 0}[task]

    Turns(str, measure, count, lambda task, reason: given_up.append(f"{task}: {reason}")).run(
        ["fine", "shaky", "moving", "broken"], 2
    )
    assert {task: tries.count(task) for task in set(tries)} == {"fine": 2, "shaky": 3, "moving": 4, "broken": 2}
    assert given_up == ["broken: no luck"]


def test_the_pages_say_what_the_records_say() -> None:
    for file, written in ((PAGE, page_of_records), (SUMMARY, summary_of_records)):
        text = file.read_text(encoding="utf-8")
        assert text == written(text), "run: python -m benchmarks.table"


def test_the_page_of_short_answers_fits_on_two_screens_and_answers_what_is_asked() -> None:
    text = SUMMARY.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["How fast", "Against whom", "On what", "How to check"]
