# SPDX-License-Identifier: Apache-2.0
"""Hook of mkdocs: the README is the site's front page, and files of the repository that a page links are in the site.
In the repository pages link them as ../PATH, so that the links work there too."""
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#]*)(#[^)]*)?\)")


def front_page():
    """The README, with links as those of a page of docs/."""
    def moved(match):
        path = match[2]
        return match[1] + (path[5:] if path.startswith("docs/") else "../" + path) + (match[3] or "") + ")"
    return LINK.sub(moved, (ROOT / "README.md").read_text())


def markdown_of(path):
    return front_page() if path == "index.md" else (ROOT / "docs" / path).read_text()


def on_files(files, config):
    linked = set()
    for page in files.documentation_pages():
        linked |= {match[2][3:] for match in LINK.finditer(markdown_of(page.src_path)) if match[2].startswith("../")}
    for path in sorted(linked - {"README.md"}):
        files.append(File(path, str(ROOT), config["site_dir"], config["use_directory_urls"]))
    return files


def on_page_markdown(markdown, page, config, files):
    def inside(match):
        path = match[2]
        if path == "../README.md":
            path = "index.md"
        return match[1] + (path[3:] if path.startswith("../") else path) + (match[3] or "") + ")"
    return LINK.sub(inside, front_page() if page.file.src_path == "index.md" else markdown)
