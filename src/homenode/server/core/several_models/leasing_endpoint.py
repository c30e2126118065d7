"""An endpoint of a server of several models: the models that a request uses stay loaded until it is answered, and the
client of a stream hears that it waits for one.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import Endpoint
from homenode.server.http.exchange import ClientGone
from homenode.server.http.failures import failure_of
from homenode.server.models.kept_models import KeptModels
from homenode.server.models.model_exchange import ModelExchange


class LeasingEndpoint(Endpoint[ServerState]):
    """Answers an operation of an API."""

    def __init__(self, state: ServerState, operation: Operation, api: Api) -> None:
        super().__init__(state, operation.handler, admits=operation.admits)
        self._operation, self._api = operation, api

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, request = self._state, Request(scope, receive)
        form, every_s = self._operation.stream_form, state.config.sse_keep_alive
        exchange = request.state.model_exchange = ModelExchange(send, form, self._api.stream_failure, every_s)
        try:
            response = await self._handler(state, request)
            await response(scope, receive, exchange.send)
        except ClientGone:
            raise
        except Exception as error:
            if not exchange.begun:
                raise
            await exchange.fail(failure_of(error, request.state.request_id))
        finally:
            exchange.release()
            if isinstance(state.models, KeptModels):
                state.models.released()
