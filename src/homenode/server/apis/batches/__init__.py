"""The files and batches of the OpenAI API: many requests in a file, computed when nobody else has work."""
