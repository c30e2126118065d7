"""The meaning of a failed fetch, in words that say what to do."""

from __future__ import annotations

import errno

from homenode.errors import CapacityError, HomenodeError, HostError, UserError

NAMES = "give a folder, a .gguf file, or a Hub id such as Qwen/Qwen3-0.6B or org/name:Q4_K_M"


def explain_failure(error: Exception, repository: str, revision: str | None, offline: bool) -> HomenodeError:
    """The Hub library's error as one that says what to do. Its text is kept out where it could hold addresses with
    tokens.
    """
    from huggingface_hub import errors

    name = f"{repository} (revision {revision})" if revision else repository
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError) or (
        status in (401, 403) and not isinstance(error, errors.RepositoryNotFoundError)
    ):
        todo = f"accept its terms at https://huggingface.co/{repository} and give a token: `hf auth login`, or HF_TOKEN"
        return UserError(f"model {name}: the Hub refuses access; {todo}", param="model")
    if isinstance(error, errors.RepositoryNotFoundError):
        todo = "check the spelling; for a private one give a token: `hf auth login`, or HF_TOKEN"
        return UserError(f"model {name}: no such repository on the Hub, and no such path here; {todo}", param="model")
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(
            f"model {name}: the repository has no such revision; give a branch, tag or commit of it", param="revision"
        )
    if isinstance(error, errors.LocalEntryNotFoundError):
        if offline or hub_is_offline():
            todo = (
                "fetch it once with `homenode generate` where the network is reached, without HF_HUB_OFFLINE, or give "
                "a local path"
            )
            return UserError(
                f"model {name}: not (completely) in the Hub cache of this machine, and offline; {todo}", param="model"
            )
        todo = "check the connection and any proxy, or give a local path"
        return UserError(
            f"model {name}: the Hub cannot be reached, and the cache of this machine does not hold it; {todo}",
            param="model",
        )
    if isinstance(error, errors.HfHubHTTPError):
        return UserError(
            f"model {name}: the Hub answered with HTTP status {status}; try again later, or give a local path",
            param="model",
        )
    if isinstance(error, ValueError) and "too large" in str(error):
        from homenode.installation import install_command

        todo = f"install hf_xet, with which huggingface_hub fetches such files: {install_command('hf_xet')}"
        return UserError(
            f"model {name}: it has a file of more than 50 GB, too large for a plain download; {todo}", param="model"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        todo = "make room, or set HF_HOME to a folder on another disk; files that came whole are kept"
        return CapacityError(f"model {name}: the disk of the cache is full ({error.strerror}); {todo}", param="model")
    if isinstance(error, ValueError):
        return UserError(f"model {name}: not a name the Hub accepts; {NAMES}", param="model")
    # The errors of HTTP clients are OSErrors too, but without a number.
    if isinstance(error, OSError) and error.errno is not None:
        return HostError(
            f"model {name}: fetching failed: {error}; check free space and permissions of the cache folder"
        )
    return UserError(
        f"model {name}: fetching failed ({type(error).__name__}: {error}); check the connection and any proxy",
        param="model",
    )


def hub_is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
