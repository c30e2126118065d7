"""The lab: small virtual machines with several NUMA nodes, in which tests/lab runs. See docs/lab.md."""
