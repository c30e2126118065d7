"""The operations of the Ollama API."""

from __future__ import annotations

from homenode.server.apis.ollama import embed, refused
from homenode.server.apis.ollama.answer import OllamaChatAnswer, OllamaGenerateAnswer, ollama_failure
from homenode.server.apis.ollama.chat import chat
from homenode.server.apis.ollama.errors import OllamaError, ollama_error
from homenode.server.apis.ollama.generate import generate
from homenode.server.apis.ollama.models import (
    OllamaModels,
    OllamaRunningModels,
    OllamaShown,
    OllamaVersion,
    ps,
    show,
    tags,
    version,
)
from homenode.server.apis.ollama.openapi import tighten
from homenode.server.apis.ollama.request import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.pooling import generates
from homenode.server.http.sse import LINES

API = Api(
    stream_failure=ollama_failure,
    operations=(
        Operation(
            path="/api/chat",
            method="post",
            summary="Answer a conversation (Ollama).",
            handler=chat,
            answer=OllamaChatAnswer,
            body=OllamaChatRequest,
            streams=OllamaChatAnswer,
            stream_form=LINES,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
        Operation(
            path="/api/generate",
            method="post",
            summary="Answer a prompt (Ollama).",
            handler=generate,
            answer=OllamaGenerateAnswer,
            body=OllamaGenerateRequest,
            streams=OllamaGenerateAnswer,
            stream_form=LINES,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
        Operation(
            path="/api/show",
            method="post",
            summary="One model (Ollama).",
            handler=show,
            answer=OllamaShown,
            body=OllamaShowRequest,
            failures=POST_FAILURES,
        ),
        Operation(path="/api/tags", method="get", summary="The models (Ollama).", handler=tags, answer=OllamaModels),
        Operation(
            path="/api/ps",
            method="get",
            summary="The models that are loaded (Ollama).",
            handler=ps,
            answer=OllamaRunningModels,
        ),
        Operation(
            path="/api/version",
            method="get",
            summary="The release of Ollama whose API this is.",
            handler=version,
            answer=OllamaVersion,
        ),
        *embed.OPERATIONS,
        *refused.OPERATIONS,
    ),
    tighten=tighten,
    prefix="/api/",
    error_shape=ollama_error,
    error_body=OllamaError,
)
