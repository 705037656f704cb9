"""Fetch Stanford Background, for users who are online."""

from __future__ import annotations

import contextlib
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from legato._support.files import replacing
from legato.console.files import DataError
from legato.studies.segment.data.stanford import verify_stanford

URL = "http://dags.stanford.edu/data/iccv09Data.tar.gz"
_CHUNK = 1 << 18

Progress = Callable[[int, int | None], None]
"""Told the bytes that arrived and the bytes to expect, None where the server does not say."""


def download(
    target: str | Path, url: str = URL, progress: Progress | None = None, timeout: float = 30.0
) -> Path:
    """Fetch the archive to ``target`` (a folder, or a path that ends in .gz) and return its path.

    The address is that of the data set's makers; cite Gould, Fulton, Koller, ICCV 2009. What
    arrives is checked by its contents and put in place only then: an interrupted, truncated or
    wrong download leaves nothing behind. A good archive that is already there is not fetched again.
    ``timeout`` is the longest silence of the server, in seconds.
    """
    path = Path(target)
    if path.suffix not in (".gz", ".tgz") or path.is_dir():
        path = path / "iccv09Data.tar.gz"
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url!r} is not an address that starts with http:// or https://.")
    if path.exists():
        _verify(
            path,
            f"There is already a file {path}, and it is not the whole Stanford Background data "
            "set. Nothing was fetched; delete it, or choose another place",
        )
        return path
    new_folders = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _fetch(url, temporary, progress, timeout)
            _verify(
                temporary,
                f"What {url} sent is not the Stanford Background data set, so nothing was kept",
            )
    except OSError as error:
        raise DataError(
            f"The data set cannot be written to {path} ({error}). Choose another folder."
        ) from error
    finally:
        if not path.exists():
            with contextlib.suppress(OSError):
                for folder in new_folders:  # the innermost first
                    folder.rmdir()
    return path


def _fetch(url: str, path: Path, progress: Progress | None, timeout: float) -> None:
    with open(path, "wb") as file:
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "legato"})
            with urllib.request.urlopen(request, timeout=timeout) as response:
                length = response.headers.get("Content-Length")
                total = int(length) if length and length.isdigit() else None
                arrived = 0
                while chunk := _receive(response, url):
                    file.write(chunk)
                    arrived += len(chunk)
                    if progress is not None:
                        progress(arrived, total)
        except urllib.error.HTTPError as error:
            raise DataError(
                f"{url} answered {error.code} {error.reason}. The data set may have moved: look "
                "for it at http://dags.stanford.edu/projects/scenedataset.html and give its "
                "address."
            ) from error
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
            raise _unreachable(url, error) from error
    if total is not None and arrived != total:
        raise DataError(
            f"The download of {url} broke off after {arrived} of {total} bytes. Nothing was kept; "
            "try again."
        )


def _receive(response: http.client.HTTPResponse, url: str) -> bytes:
    """The next bytes; errors of the network are told apart from those of the disk."""
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error


def _unreachable(url: str, error: Exception) -> DataError:
    reason = getattr(error, "reason", error)
    return DataError(
        f"{url} cannot be fetched ({reason}). Is this machine online? Nothing was kept. Where it "
        "is not, fetch the archive elsewhere and give its path."
    )


def _verify(path: Path, otherwise: str) -> None:
    try:
        verify_stanford(path)
    except DataError as error:
        raise DataError(f"{otherwise}: {str(error).replace(str(path), 'it')}") from error
