"""Effects: plans made true on this machine with plain system calls, read back from the kernel, and undone on
request."""
