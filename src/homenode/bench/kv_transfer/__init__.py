"""KV handed over between two processes, against the bare system calls."""
