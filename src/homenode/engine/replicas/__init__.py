"""Several engines behind one front: where each runs, which of them a request goes to, and what becomes of it when its engine dies."""
