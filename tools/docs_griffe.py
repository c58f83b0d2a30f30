"""Griffe extension that turns docstrings into Markdown."""

import re
from typing import Any

import griffe

# The start of a type in a docstring, which Markdown would read as HTML.
_TAG = re.compile(r"<(?=[A-Za-z/])")
# Griffe shows `>>>` as code only in "Examples", so "Example" is renamed.
_EXAMPLE = re.compile(r"(?m)^( *)Example:$")
_CODE = re.compile(r"(`+)(.*?)\1", re.DOTALL)


def escape(text: str) -> str:
    """Returns the text with `<float32>` outside of code as `&lt;float32>`."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_TAG.sub("&lt;", text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _TAG.sub("&lt;", text[end:])])


class DocstringsExtension(griffe.Extension):
    """Turns the docstrings of all objects into Markdown."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of an object that was read."""
        if obj.docstring:
            text = escape(obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", text)
