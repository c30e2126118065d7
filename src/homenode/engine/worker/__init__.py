"""The worker that computes a part of the model: its sequences, its batches, its sampler, and the process it may live
in.
"""
