"""POST /v1/systemone and POST /v1/decisions: questions with a fixed set of answers, and the probability of each."""
