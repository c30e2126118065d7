"""The places where steps are computed: in this process, in worker processes, on a Ray cluster, or scripted
for tests.
"""
