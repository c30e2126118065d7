"""Facts about the machine, read only: from /sys, /proc and the vendors' tools, or from a recording of them."""
