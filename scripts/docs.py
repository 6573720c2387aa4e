"""What the site needs beside mkdocs: links out of docs/ lead into the repository, and every page and link is checked."""

import html.parser
import os
import re
import subprocess
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError

REPOSITORY = "https://github.com/perkey-go/perkey"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRACKED = set(subprocess.check_output(["git", "-C", ROOT, "ls-files"], text=True).splitlines())
FOLDERS = {path[:slash.start()] for path in TRACKED for slash in re.finditer("/", path)}


def on_nav(nav, files, **_):
    missing = {file.src_uri for file in files.documentation_pages()} - {page.file.src_uri for page in nav.pages}
    if missing:
        raise PluginError(f"not in the nav of mkdocs.yml: {', '.join(sorted(missing))}")


def on_page_markdown(markdown, page, files, **_):
    folder = os.path.dirname(page.file.src_uri)

    def link(match):
        path, hash, anchor = match[1].partition("#")
        path = os.path.normpath(os.path.join(folder, path))
        if files.get_file_from_path(path):
            return match[0]
        if path in TRACKED:
            return f"]({REPOSITORY}/blob/main/{path}{hash}{anchor})"
        if path in FOLDERS:
            return f"]({REPOSITORY}/tree/main/{path})"
        return match[0]

    return re.sub(r"\]\(([^)#:\s][^):\s]*)\)", link, markdown)


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag == "link" or "src" in attributes:
            self.loaded.append(attributes.get("src") or attributes["href"])


def on_post_build(config, **_):
    site = config["site_dir"]
    pages = {}
    for folder, _, names in os.walk(site):
        for name in names:
            if name.endswith(".html") and name != "404.html":
                path = os.path.join(folder, name)
                pages[path] = Page(path)

    wrong = []
    for path, page in pages.items():
        for target in page.links + page.loaded:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded:
                    wrong.append((path, target, "loaded from another site"))
                continue
            file = os.path.normpath(os.path.join(os.path.dirname(path), unquote(parts.path))) if parts.path else path
            if os.path.isdir(file):
                file = os.path.join(file, "index.html")
            if not os.path.isfile(file):
                wrong.append((path, target, "no such file"))
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                wrong.append((path, target, "no such heading"))
    if wrong:
        raise PluginError("\n".join(f"{os.path.relpath(path, site)}: {target}: {why}" for path, target, why in wrong))
    links = sum(len(page.links) for page in pages.values())
    print(f"docs: {len(pages)} pages, {links} links checked: {os.path.relpath(site)}")
