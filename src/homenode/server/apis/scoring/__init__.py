"""POST /v1/score, /score, /v1/rerank, /rerank and /v2/rerank."""
