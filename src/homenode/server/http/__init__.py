"""HTTP without models: which connections are taken, what on them is a request, how long clients may take, and errors."""
