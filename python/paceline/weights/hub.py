"""From a model's name on the Hugging Face hub to a folder: its cache first, then the network.

Only weights in safetensors, configuration and tokenizer files are asked for; no code is ever fetched.
"""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.errors import UsageError
from paceline.weights.files import CheckpointError, check_folder

_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


class HubError(UsageError):
    """The hub has no such model, or cannot be reached."""


def resolve_hub_name(name: str) -> Path:
    """Give the local folder of model `name`, such as `HuggingFaceTB/SmolLM2-135M-Instruct`. Raises `HubError`.

    A complete snapshot in the hub's cache is used without asking the network, so that a start does not depend on it.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=_PATTERNS, local_files_only=True))
        check_folder(folder)
        return folder
    except (LocalEntryNotFoundError, CheckpointError):
        print(f"paceline: {name} is not a folder and not in the hub's cache; asking the hub", file=sys.stderr, flush=True)
    try:
        return Path(snapshot_download(name, allow_patterns=_PATTERNS))
    except GatedRepoError:
        raise HubError(f"model {name} is gated: accept its terms on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise HubError(f"the hub has no model {name}, or it is private (set HF_TOKEN)") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HubError(
            f"{name} is no folder here and not in the hub's cache, and the hub cannot be reached; "
            f"offline, pass a folder with config.json, tokenizer.json and *.safetensors ({reason})"
        ) from None
