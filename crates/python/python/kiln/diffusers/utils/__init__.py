"""Functions for images that scripts for diffusers import from `diffusers.utils`."""

from kiln.diffusers.utils.grids import make_image_grid
from kiln.diffusers.utils.loading import load_image
from kiln.diffusers.utils.export import export_to_gif
from kiln.diffusers.utils.pil import numpy_to_pil, pt_to_pil

__all__ = ["export_to_gif", "load_image", "make_image_grid", "numpy_to_pil", "pt_to_pil"]
