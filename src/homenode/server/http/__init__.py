"""HTTP without models: which connections are taken, what is a request, how long clients may take, and errors."""
