"""Everything that goes over a connection between two engines: messages, frames, payloads, and the lane through shared
memory."""
