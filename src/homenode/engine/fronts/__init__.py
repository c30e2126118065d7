"""The way to the engine for several front processes: who asked, who is told, and the sockets between them."""
