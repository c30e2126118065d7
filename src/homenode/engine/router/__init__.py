"""Several engines behind one client: which of them gets a request, and what follows when one is lost."""
