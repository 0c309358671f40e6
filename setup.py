"""The page for PyPI, made of README.md and CHANGELOG.md. Everything else about the package is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup


def without_relative_links(text: str) -> str:
    """Relative links lead nowhere on PyPI: of a link the words stay, of a picture nothing."""
    text = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


if __name__ == "__main__":
    setup(
        long_description=without_relative_links(
            Path("README.md").read_text() + "\n" + Path("CHANGELOG.md").read_text()
        ),
        long_description_content_type="text/markdown",
    )
