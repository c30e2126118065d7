"""One host from one source."""

from __future__ import annotations

from homenode.host.topology.allowance import read_allowance
from homenode.host.topology.cpus import read_cpus, read_model
from homenode.host.topology.facts import FactReader
from homenode.host.topology.host import Accelerators, Host
from homenode.host.topology.interrupts import read_interrupts
from homenode.host.topology.memory import read_numa_balancing, read_transparent_huge_pages
from homenode.host.topology.nodes import node_by_cpu, read_nodes
from homenode.host.topology.online import CPU_FOLDER, read_offline, read_online
from homenode.host.topology.pci import read_devices
from homenode.host.topology.source import Source


def read_host(source: Source, *, accelerators: bool = True) -> Host:
    """The whole host. Never raises for what a file says: what makes no sense is left out and noted.

    `accelerators` False: the vendors' tools, which may take seconds, are not run.
    """
    reader = FactReader(source)
    online = read_online(reader)
    nodes = read_nodes(reader, online)
    node_ids = tuple(node.id for node in nodes)
    cpus = read_cpus(reader, online, node_by_cpu(nodes))
    devices = read_devices(reader, online, nodes)
    found = Accelerators()
    if accelerators:
        # Here, as importing it takes longer than all the rest.
        from homenode.host.topology.accelerators.read import read_accelerators

        found = read_accelerators(source, devices, nodes, online)
    return Host(
        machine=source.machine,
        kernel=reader.text("/proc/sys/kernel/osrelease"),
        cpu_model=read_model(reader),
        cpus=cpus,
        offline=read_offline(reader, online),
        nodes=nodes,
        devices=devices,
        interrupts=read_interrupts(reader),
        accelerators=found,
        allowance=read_allowance(reader, online, node_ids, {cpu.id: cpu.core for cpu in cpus}),
        numa_balancing=read_numa_balancing(reader),
        transparent_huge_pages=read_transparent_huge_pages(reader),
        isolated=reader.cpus(f"{CPU_FOLDER}/isolated") or (),
        variables=dict(source.env),
        notes=tuple(reader.notes),
    )
