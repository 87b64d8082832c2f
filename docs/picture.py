"""Draw the comment as GitHub shows it: ``python docs/picture.py demo-out/comment.md docs/images/comment.png``.

GitHub's own renderer converts the markdown to HTML, and headless Chromium takes a picture of the page. The script needs
the dev extra and Chromium.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import cmarkgfm
from cmarkgfm.cmark import Options
from playwright.sync_api import sync_playwright

STYLE = """
body { margin: 0; padding: 20px; background: #f6f8fa; width: 920px; color: #1f2328;
       font: 14px/1.5 -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
main { background: #fff; border: 1px solid #d1d9e0; border-radius: 6px; padding: 4px 16px 14px; }
header { margin: 0 -16px 8px; padding: 8px 16px; background: #f6f8fa; border-bottom: 1px solid #d1d9e0;
         border-radius: 6px 6px 0 0; margin-top: -4px; font-size: 13px; color: #59636e; }
header b { color: #1f2328; }
h3 { font-size: 18px; margin: 14px 0 10px; } h4 { font-size: 15px; margin: 16px 0 6px; }
table { border-collapse: collapse; margin: 10px 0; } th, td { border: 1px solid #d1d9e0; padding: 5px 11px; }
tr:nth-child(2n) td { background: #f6f8fa; } th { font-weight: 600; text-align: left; }
code { background: #818b981f; border-radius: 5px; padding: 2px 5px; font: 12px "DejaVu Sans Mono", monospace; }
pre { background: #f6f8fa; border-radius: 6px; padding: 12px; overflow: hidden; }
pre code { background: none; padding: 0; }
details { margin: 4px 0; } summary { color: #1f2328; } sub { color: #59636e; font-size: 12px; vertical-align: 0; }
"""
PAGE = (
    "<!doctype html><meta charset=utf-8><style>{style}</style>"
    "<main><header><b>regbot</b> commented</header>{body}</main>"
)


def main(comment: Path, picture: Path) -> None:
    body = cmarkgfm.github_flavored_markdown_to_html(comment.read_text(encoding="utf-8"), Options.CMARK_OPT_UNSAFE)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "comment.html"
        page_file.write_text(PAGE.format(style=STYLE, body=body), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 960, "height": 400}, device_scale_factor=1.5)
        page.goto(page_file.as_uri())
        page.screenshot(path=str(picture), full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
