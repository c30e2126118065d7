"""The things that an engine needs beside its other parts to hand KV over: whether its settings allow it, and the facts
others must agree with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from homenode.dtypes import BY_NAME
from homenode.engine.binding import Replica
from homenode.engine.config import EngineConfig
from homenode.engine.problems import require_none
from homenode.errors import UnsupportedError, UserError
from homenode.transfer.setup.checks import EngineFacts, check_transfer
from homenode.transfer.setup.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from homenode.compute.ops import KvGeometry  # brings NumPy, which the front does not need
    from homenode.model.weights.layout import MatrixLayout, WeightLayout


def transfer_problems(
    config: EngineConfig,
    replica: Replica | None,
    geometry: KvGeometry | None = None,
    memory: int | None = None,
    workers: Sequence[str] = (),
) -> list[UserError]:
    """Everything that keeps this engine from handing KV over as its settings say; empty as well where they do not ask
    for it.

    `geometry`: of its KV memory, None while the model is not known. `memory`: bytes that may be taken beside the
    weights. `workers`: the devices of those that compute apart from the engine's own process.
    """
    facts = EngineFacts(
        block_bytes=geometry.block_bytes if geometry else 0,
        block_size=geometry.block_size if geometry else 0,
        kv_shapes=_kv_shapes(geometry) if geometry else 1,
        memory=memory,
        backend=config.compute.backend,
        tensor_parallel_size=config.parallel.tensor_parallel_size,
        engines=_engines(config, replica),
        workers=tuple(workers),
        executor=config.parallel.executor,
    )
    here = read_surroundings(config.transfer) if config.transfer.on else Surroundings()
    return check_transfer(config.transfer, here, facts, config.net)


def _kv_shapes(geometry: KvGeometry) -> int:
    """Return how many shapes of layers cannot be handed over as one; those that are cells alike
    (`model.kv_cells`) can.
    """
    return 1 if geometry.is_even else len(geometry.shapes)


def _engines(config: EngineConfig, replica: Replica | None) -> int | None:
    """Return how many divide the ports of these settings: one of several has its own already
    (`plan.replica_assignments`).
    """
    if replica is not None:
        return 1
    return config.parallel.data_parallel_size if config.placement.numa not in ("auto", "replicate") else None


def require_transfer(config: EngineConfig, replica: Replica | None, geometry: KvGeometry, memory: int) -> None:
    """Raises UserError with all of `transfer_problems`."""
    require_none(transfer_problems(config, replica, geometry, memory))


def refuse_transfer(config: EngineConfig, where: str) -> None:
    """UnsupportedError where KV is to be handed over by an engine that nobody can reach."""
    if config.transfer.on:
        raise UnsupportedError(
            f"pd_role (--pd-role) is for `homenode serve`; {where} has no address that another engine could be told",
            param="pd_role",
        )


def targets_of(whole: WeightLayout, parts: Sequence[WeightLayout] = ()) -> dict[str, int]:
    """Return how many matrices of a model are kept in each format, in words. A matrix that its parts do not keep as a
    whole model would, in another format or cut within blocks, has a format like no other: its products have other
    values.
    """
    pieces: dict[str, list[MatrixLayout]] = {}
    for piece in (piece for part in parts for piece in part.matrices):
        pieces.setdefault(piece.name, []).append(piece)
    return dict(Counter(_kept(matrix, pieces.get(matrix.name, [])) for matrix in whole.matrices))


def _kept(matrix: MatrixLayout, pieces: Sequence[MatrixLayout]) -> str:
    if others := {piece.target for piece in pieces} - {matrix.target}:
        return "/".join([matrix.target, *sorted(others)])
    block = BY_NAME[matrix.target].block
    if any(piece.columns != matrix.columns and piece.columns % block for piece in pieces):
        return f"{matrix.target} of {'+'.join(str(piece.columns) for piece in pieces)}"
    return matrix.target


def kept_as(config: EngineConfig, targets: dict[str, int]) -> str:
    """Return how weights are kept in memory, in words: the formats of the matrices, with how many have each."""
    formats = ", ".join(f"{count} {name}" for name, count in sorted(targets.items()))
    return f"{config.model.quantize or config.model.dtype}: {formats}"
