"""homenode: LLM serving for the machines people really have."""

from typing import TYPE_CHECKING

from homenode import errors

if TYPE_CHECKING:
    from homenode.engine.api.llm import LLM
    from homenode.sampling import SamplingParams

__version__ = "0.2.0.dev0"

__all__ = ["LLM", "SamplingParams", "__version__", "errors"]


def __getattr__(name: str) -> object:
    """Import the engine only when it is asked for, so that `import homenode` and the placement toolkit stay light."""
    if name == "LLM":
        from homenode.engine.api.llm import LLM

        return LLM
    if name == "SamplingParams":
        from homenode.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'homenode' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what is public. The modules below may change from one version to the next."""
    return sorted(__all__)
