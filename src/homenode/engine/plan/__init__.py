"""The plan of what an engine is to be, before anything is loaded: its devices, its layers on workers, its CPUs and NUMA
nodes.
"""
