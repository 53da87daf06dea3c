"""The images of a call: a list that notebooks show."""

from __future__ import annotations

import base64
from typing import Any

from kiln.image import Image

#: The width of an image in a notebook, in pixels of the page.
_SHOWN = 256


class ImageList(list[Image]):
    """A list of images. A notebook shows them side by side."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return ImageList(found) if isinstance(place, slice) else found

    def _repr_html_(self) -> str:
        cells = []
        for image in self:
            data = base64.b64encode(image.png()).decode("ascii")
            size = f"max-width:{min(image.width, _SHOWN)}px"
            cells.append(f'<img alt="seed {image.seed}" style="{size}" src="data:image/png;base64,{data}">')
        return f'<div style="display:flex;flex-wrap:wrap;gap:4px">{"".join(cells)}</div>'
