"""POST /v1/responses and the responses that are kept: the Responses API of OpenAI."""
