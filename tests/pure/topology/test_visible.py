"""Lists of visible devices, as each vendor's runtime understands them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Demand
from homenode.host.plan.select import make_plan
from homenode.host.topology.accelerators.nvidia import parse_list
from homenode.host.topology.accelerators.visible import see, visible_devices
from homenode.host.topology.host import Accelerator, Accelerators
from homenode.host.topology.source import CommandResult
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import examples
from tests.recorded import recording

UUIDS = ("GPU-1aa0a5f2-11", "GPU-1aa0b000-22", "GPU-9c00ffee-33", "GPU-9d00ffee-44")


def host(kind: str, count: int = 4) -> Accelerators:
    return Accelerators(
        tuple(Accelerator(kind, index, "x", uuid=UUIDS[index] if kind != "npu" else "") for index in range(count))
    )


NPUS, GPUS, AMD = host("npu"), host("cuda"), host("rocm")
NOTHING = Accelerators()
MIG = Accelerators(
    (
        Accelerator("cuda", 0, "x", uuid=UUIDS[0], mig_instances=("MIG-0aaa1111-22",)),
        Accelerator("cuda", 1, "x", uuid=UUIDS[1], mig_instances=("MIG-5c89852c-d268", "MIG-7bbb2222-33")),
    )
)
BROKEN = Accelerators(errors=(PlacementError("npu_map_empty", "m", seen="s", wanted="w", remedy="r"),))
RT, CUDA, HIP, ROCR = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("accelerators", "env", "given_text", "expected"),
    [
        (NPUS, {}, None, None),
        (NPUS, {RT: "3,1"}, None, (3, 1)),  # the order is the user's
        (NPUS, {RT: " 0 , 2 "}, None, (0, 2)),
        (NPUS, {RT: "3,1"}, "0", (0,)),  # the flag wins
        (NPUS, {RT: ""}, None, ()),
        (NPUS, {RT: "-1"}, None, ()),
        (NPUS, {RT: "1,-1,x"}, None, (1,)),
        (NPUS, {CUDA: "0"}, None, None),  # another vendor's variable
        (NPUS, {RT: "9"}, None, (9,)),  # whether it runs is for the policy to say
        (NPUS, {}, "2,9", (2, 9)),
        (BROKEN, {RT: "1"}, None, (1,)),  # the trouble with the map is told by who needs the map
        (NOTHING, {RT: "x", CUDA: "x"}, None, None),  # left over in the shell of a host without accelerators
        (NOTHING, {}, "1", (1,)),
        (GPUS, {CUDA: "2,1"}, None, (2, 1)),
        (GPUS, {CUDA: ""}, None, ()),
        (GPUS, {CUDA: "NoDevFiles"}, None, ()),
        (GPUS, {CUDA: "-1"}, None, ()),
        (GPUS, {CUDA: "0,2,-1,1"}, None, (0, 2)),  # CUDA's list ends there
        (GPUS, {CUDA: "0,-1,x"}, None, (0,)),
        (GPUS, {CUDA: "GPU-9c,GPU-1aa0b,0"}, None, (2, 1, 0)),
        (GPUS, {CUDA: "gpu-9c"}, "GPU-9D00FFEE", (3,)),
        (GPUS, {CUDA: "MIG-GPU-9c00ffee-33/1/0"}, None, (2,)),
        (GPUS, {CUDA: "MIG-GPU-9c00ffee-33/1/0,MIG-GPU-9c00ffee-33/2/0"}, None, (2,)),
        (host("cuda", 1), {CUDA: "MIG-41b36624-aaaa"}, None, (0,)),  # there is one GPU it can be part of
        (AMD, {HIP: "3,0"}, None, (3, 0)),
        (AMD, {CUDA: "1"}, None, (1,)),  # HIP reads it too
        (AMD, {HIP: "2", CUDA: "1"}, None, (2,)),
        (AMD, {ROCR: "3,1"}, None, (3, 1)),
        (AMD, {ROCR: "3,1", HIP: "1,0"}, None, (1, 3)),  # HIP counts within what ROCR left
        (AMD, {ROCR: "GPU-9c00ffee-33,0", HIP: "0"}, None, (2,)),
        (AMD, {ROCR: ""}, None, ()),
        (AMD, {HIP: "-1"}, None, ()),
        (AMD, {ROCR: "-1"}, None, ()),
        (AMD, {HIP: "2,-1,0"}, None, (2,)),
        (MIG, {CUDA: "MIG-5c89852c"}, None, (1,)),
        (MIG, {CUDA: "MIG-0aaa1111-22,MIG-5c89852c-d268,MIG-7bbb2222-33"}, None, (0, 1)),
        (MIG, {}, "MIG-7bbb2222-33", (1,)),
        (AMD, {ROCR: "3", CUDA: ""}, None, ()),
    ],
)
def test_lists_that_are_understood(
    accelerators: Accelerators, env: dict[str, str], given_text: str | None, expected: tuple[int, ...] | None
) -> None:
    assert visible_devices(accelerators, env, given_text) == expected


@pytest.mark.parametrize(
    ("accelerators", "env", "given_text", "said"),
    [
        (NPUS, {RT: "0-3"}, None, "'0-3'"),
        (NPUS, {RT: "all"}, None, RT),
        (NPUS, {RT: "0,,1"}, None, RT),
        (NPUS, {RT: "0,0"}, None, "twice"),
        (NPUS, {RT: "\u0661"}, None, RT),
        (NPUS, {RT: "9" * 5000}, None, RT),
        (NPUS, {}, "", "empty"),
        (NPUS, {}, " ", "empty"),
        (NPUS, {}, "GPU-1aa0", "--visible-devices"),
        (BROKEN, {RT: "0-3"}, None, RT),
        (NOTHING, {}, "0-3", "--visible-devices"),
        (GPUS, {CUDA: "0-1"}, None, CUDA),
        (GPUS, {CUDA: "0,4"}, None, "no device 4"),
        (GPUS, {}, "4", "no device 4"),
        (GPUS, {}, "0,-1", "--visible-devices"),
        (GPUS, {CUDA: "GPU-1aa"}, None, "fits 2 devices"),
        (GPUS, {CUDA: "GPU-"}, None, "fits no device"),
        (GPUS, {CUDA: "GPU-9c,2"}, None, "twice"),
        (GPUS, {CUDA: "MIG-41b36624-aaaa"}, None, "by number"),
        (MIG, {CUDA: "MIG-ffff"}, None, "fits no device"),
        (AMD, {HIP: "7"}, None, HIP),
        (AMD, {ROCR: "2", HIP: "2"}, None, "no device 2"),
        (AMD, {ROCR: "1,x", HIP: "0"}, None, ROCR),
    ],
)
def test_lists_that_are_refused(
    accelerators: Accelerators, env: dict[str, str], given_text: str | None, said: str
) -> None:
    with pytest.raises(PlacementError) as caught:
        visible_devices(accelerators, env, given_text)
    error = caught.value
    assert error.code == "bad_visible_devices" and said.strip("'") in str(error)
    assert error.seen and error.wanted and error.remedy and len(error.seen) <= 120
    assert error.param == (
        "--visible-devices" if given_text is not None else next(name for name in (*env,) if name in error.summary)
    )


texts = st.one_of(
    st.none(),
    st.text(max_size=30),
    st.lists(st.sampled_from(["0", "3", "-1", "GPU-9c", "MIG-", "MIG-GPU-", "NoDevFiles", " ", "9" * 5000, "²"])).map(
        ",".join
    ),
)


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(st.sampled_from([NPUS, GPUS, AMD, NOTHING, BROKEN]), texts, texts, texts, texts, texts)
def test_any_text(
    accelerators: Accelerators, rt: str | None, cuda: str | None, hip: str | None, rocr: str | None, flag: str | None
) -> None:
    env = {name: text for name, text in ((RT, rt), (CUDA, cuda), (HIP, hip), (ROCR, rocr)) if text is not None}
    try:
        found = visible_devices(accelerators, env, flag)
    except PlacementError as error:
        assert error.code == "bad_visible_devices" and len(str(error)) < 1000
        return
    assert found is None or len(set(found)) == len(found)
    if accelerators.kind in ("cuda", "rocm"):
        assert found is None or set(found) <= {0, 1, 2, 3}


HANGING = Accelerators(
    errors=(PlacementError("tool_timeout", "`npu-smi info -m` did not answer", seen="s", wanted="w", remedy="r"),)
)


@pytest.mark.parametrize(
    ("accelerators", "env", "hidden_by"),
    [
        (GPUS, {CUDA: ""}, CUDA),
        (GPUS, {CUDA: " -1 "}, CUDA),
        (GPUS, {CUDA: "-1,0"}, CUDA),
        (GPUS, {CUDA: "NoDevFiles"}, CUDA),
        (AMD, {HIP: ""}, HIP),
        (AMD, {HIP: "-1", ROCR: "0"}, HIP),
        (AMD, {ROCR: "-1", HIP: ""}, ROCR),
        (AMD, {CUDA: ""}, CUDA),
        (NPUS, {RT: ""}, RT),
        (NPUS, {RT: "-1"}, RT),
        (BROKEN, {RT: ""}, RT),  # nobody needs the map then
        (HANGING, {RT: ""}, RT),
    ],
)
def test_no_device_on_purpose_leaves_a_host_without_accelerators(
    accelerators: Accelerators, env: dict[str, str], hidden_by: str
) -> None:
    seen = see(accelerators, env, None)
    assert (seen.accelerators, seen.devices) == (Accelerators(hidden_by=hidden_by), None)
    assert seen.findings == ()
    assert see(accelerators, env, "1").devices == (1,)  # the flag wins


@pytest.mark.parametrize("strategy", ["fair", "numa-bind", "cpu-threads"])
def test_no_device_on_purpose_is_planned_as_cpu_workers(strategy: str) -> None:
    bare = read_host(synthetic("2s/2n/16c"))
    plan = make_plan(strategy, replace(bare, accelerators=see(GPUS, {CUDA: ""}, None).accelerators), Demand())
    assert plan.workers == make_plan(strategy, bare, Demand()).workers
    if strategy != "cpu-threads":
        assert [CUDA in one.message for one in plan.findings if one.code == "no_accelerators"] == [True]


@pytest.mark.parametrize("strategy", ["ascend", "global-slice", "topo-affinity"])
def test_an_ascend_binding_without_a_visible_npu_is_refused_as_that(strategy: str) -> None:
    host = replace(read_host(synthetic("2s/2n/64c/arm")), accelerators=Accelerators(hidden_by=RT))
    with pytest.raises(PlacementError) as refused:
        make_plan(strategy, host, Demand(before_start=True))
    assert refused.value.code == "no_visible_device" and RT in refused.value.summary


def test_mig_instances_of_unknown_gpus_restrict_nothing_and_that_is_told() -> None:
    for text in ("MIG-5c89852c-d268", "MIG-5c89852c-d268,MIG-GPU-9c00ffee-33/1/0"):
        seen = see(GPUS, {CUDA: text}, None)
        assert (seen.accelerators, seen.devices, [one.code for one in seen.findings]) == (
            GPUS,
            None,
            ["mig_gpu_unknown"],
        )
    plan = make_plan("fair", read_host(synthetic("2s/2n/16c/gpu=2")), Demand(findings=seen.findings))
    assert "mig_gpu_unknown" in {finding.code for finding in plan.findings}
    assert see(MIG, {CUDA: "MIG-5c89852c-d268"}, None).devices == (1,)


LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1aa0a5f2-11)
  MIG 3g.40gb     Device  0: (UUID: MIG-0aaa1111-22)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1aa0b000-22)
  MIG 1g.10gb+me  Device  0: (UUID: MIG-5c89852c-d268)
  MIG 1g.10gb     Device  1: (UUID: MIG-GPU-1aa0b000-22/3/0)
"""


def test_the_drivers_list_of_mig_instances() -> None:
    assert parse_list(LISTING) == {0: ("MIG-0aaa1111-22",), 1: ("MIG-5c89852c-d268", "MIG-GPU-1aa0b000-22/3/0")}
    assert parse_list("  MIG 3g (UUID: MIG-1)\nNo devices found.\nGPU 0: x") == {}


def test_the_list_is_asked_for_where_a_variable_names_an_instance() -> None:
    base = recording("xeon-224cpu-2gpu-mig")
    listing = LISTING.replace("MIG-5c89852c-d268", base.env[CUDA])
    source = replace(base, commands={**base.commands, "nvidia-smi -L": CommandResult(listing)})
    found = read_host(source).accelerators
    assert [len(chip.mig_instances) for chip in found.chips] == [1, 2]
    assert see(found, source.env, None).devices == (1,)
    assert see(read_host(base).accelerators, base.env, None).findings  # the recording was made without it
    assert read_host(replace(source, env={})).accelerators.chips[1].mig_instances == ()
