"""The public modules: those that a page of the API documents."""

import re
from pathlib import Path

API = Path(__file__).parents[1] / "docs" / "api"

# Each with its page; legato itself first, so that a name is looked up where users do.
PAGES = {
    module: page.name
    for page in sorted(API.glob("*.rst"))
    for module in re.findall(r"^\.\. (?:public|automodule):: (\S+)", page.read_text("utf-8"), re.M)
}
PAGES = {"legato": PAGES.pop("legato")} | PAGES
