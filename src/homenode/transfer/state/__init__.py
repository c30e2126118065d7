"""State machines of handing KV over: pure, without I/O, clock or threads."""
