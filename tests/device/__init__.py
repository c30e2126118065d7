"""What needs an accelerator of CUDA's kind: `pytest tests/device`, skipped where there is none (docs/torch.md says
where it was run).
"""
