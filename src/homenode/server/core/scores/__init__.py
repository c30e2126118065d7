"""What a model says of texts without an answer: scores of pairs, and probabilities of given answers."""
