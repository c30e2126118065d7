"""The OpenAI API: chat completions and text completions."""
