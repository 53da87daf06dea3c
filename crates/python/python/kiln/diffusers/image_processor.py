"""Changes of images and masks before and after a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.diffusers.arguments import shown
from kiln.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

#: A region of an image: left, top, right, bottom.
Region = tuple[int, int, int, int]


class VaeImageProcessor:
    """Resizes and blurs images of PIL, cuts regions out of them, and puts results back."""

    def __init__(self, vae_scale_factor: int = 8, **options: Any) -> None:
        for name in options:
            raise RequestError(f"`{name}` of VaeImageProcessor is not taken, expected vae_scale_factor alone", name)
        self.vae_scale_factor = vae_scale_factor

    @staticmethod
    def blur(image: Image, blur_factor: int = 4) -> Image:
        """The image blurred by a Gaussian of this radius."""
        from PIL import ImageFilter

        return image.filter(ImageFilter.GaussianBlur(blur_factor))

    @staticmethod
    def get_crop_region(mask_image: Image, width: int, height: int, pad: int = 0) -> Region:
        """The region of the mask that is not black, enlarged by `pad` pixels, and then in one direction to the shape of
        `width` and `height`."""
        box = mask_image.convert("L").getbbox()
        if box is None:
            raise RequestError("`mask_image` is black, expected a white part that is made again", "mask_image")
        sides = [mask_image.width, mask_image.height]
        begins = [max(box[axis] - pad, 0) for axis in (0, 1)]
        ends = [min(box[axis + 2] + pad, sides[axis]) for axis in (0, 1)]
        shape = width / height
        sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
        # The axis that is too short for the shape.
        axis = 1 if sizes[0] / sizes[1] > shape else 0
        wanted = sizes[0] / shape if axis == 1 else sizes[1] * shape
        more = int(wanted - sizes[axis])
        begin, end = begins[axis] - more // 2, ends[axis] + more - more // 2
        if end >= sides[axis]:
            begin, end = begin - (end - sides[axis]), sides[axis]
        if begin < 0:
            begin, end = 0, end - begin
        begins[axis], ends[axis] = begin, min(end, sides[axis])
        return begins[0], begins[1], ends[0], ends[1]

    def resize(self, image: Image, height: int, width: int, resize_mode: str = "default") -> Image:
        """The image in another size: `default` stretches it, `fill` repeats its edges, `crop` keeps its middle."""
        from PIL import Image as pil

        filter = pil.Resampling.LANCZOS
        if resize_mode == "default":
            return image.resize((width, height), resample=filter)
        if resize_mode not in ("fill", "crop"):
            raise RequestError(f"`resize_mode` is {shown(resize_mode)}, expected default, fill or crop", "resize_mode")
        wide = width / height > image.width / image.height
        # The side that decides on the scale: of `fill` the one that has to fit, of `crop` the one that has to be covered.
        by_height = wide if resize_mode == "fill" else not wide
        inner = (image.width * height // image.height, height) if by_height else (width, image.height * width // image.width)
        resized = image.resize(inner, resample=filter)
        result = pil.new("RGB", (width, height))
        left, top = width // 2 - inner[0] // 2, height // 2 - inner[1] // 2
        result.paste(resized, (left, top))
        if resize_mode == "fill" and top > 0:
            result.paste(resized.crop((0, 0, width, 1)).resize((width, top)), (0, 0))
            bottom = height - top - inner[1]
            edge = resized.crop((0, inner[1] - 1, width, inner[1]))
            result.paste(edge.resize((width, max(bottom, 1))), (0, top + inner[1]))
        elif resize_mode == "fill" and left > 0:
            result.paste(resized.crop((0, 0, 1, height)).resize((left, height)), (0, 0))
            right = width - left - inner[0]
            edge = resized.crop((inner[0] - 1, 0, inner[0], height))
            result.paste(edge.resize((max(right, 1), height)), (left + inner[0], 0))
        return result

    def cropped(self, image: Image, region: Region, height: int, width: int) -> Image:
        """A region of an image in this size."""
        return self.resize(image.crop(region), height, width, "fill")

    def apply_overlay(self, mask: Image, init_image: Image, image: Image, crop_coords: Region | None = None) -> Image:
        """The result with the original around the mask; `crop_coords` is the region that the result is of."""
        from PIL import Image as pil
        from PIL import ImageOps

        size = (init_image.width, init_image.height)
        around = pil.new("RGBa", size)
        around.paste(init_image.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(mask.convert("L")))
        if crop_coords is not None:
            left, top, right, bottom = crop_coords
            whole = pil.new("RGB", size)
            whole.paste(self.resize(image, bottom - top, right - left, "crop"), (left, top))
            image = whole
        result = image.convert("RGBA")
        result.alpha_composite(around.convert("RGBA"))
        return result.convert("RGB")
