"""The page that a browser shows of a server, and what it asks for besides the APIs."""
