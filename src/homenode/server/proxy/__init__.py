"""The OpenAI API in front of prefill and decode servers."""
