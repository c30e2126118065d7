"""The OpenAI API: chat completions, text completions and the list of models. What both endpoints share is here."""
