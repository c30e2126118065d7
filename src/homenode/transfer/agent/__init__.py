"""The agent of one engine: the thread that joins machine, connections and memory."""
