"""The README as a package index shows it, where no path leads into the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = Path(__file__).parent / "README.md"
IMAGE = re.compile(r'!\[([^\]]*)\]\((?!https?:)([^)]+)\)|<img src="(?!https?:)([^"]+)"[^>]*?>')
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def outside(text: str, source: str | None) -> str:
    """Pictures and links by the address of the repository or, while it has none, in words.

    A picture without an address is left out: its caption stands below it.
    """
    if source is None:
        text = IMAGE.sub("", text)
        return LINK.sub(lambda m: f"`{m[2]}`" if m[1] == m[2] else f"{m[1]} (`{m[2]}`)", text)
    at = f"{source.rstrip('/')}/raw/main/"
    text = IMAGE.sub(lambda m: m[0].replace(m[2] or m[3], at + (m[2] or m[3])), text)
    return LINK.sub(lambda m: f"[{m[1]}]({source.rstrip('/')}/blob/main/{m[2]})", text)


class PlainReadme(MetadataHookInterface):
    """Fills in ``readme``; ``Source`` among the project's URLs is the repository's address."""

    def update(self, metadata: dict[str, Any]) -> None:
        source = metadata.get("urls", {}).get("Source")
        text = outside(README.read_text(encoding="utf-8"), source)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
