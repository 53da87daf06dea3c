//! Pasting through a mask and compositing, with Pillow's integer formulas (`libImaging/Paste.c`, `AlphaComposite.c`,
//! `Convert.c` of Pillow 13).

use crate::{Gray8Image, Image8, Result, Rgb8Image, Rgba8Image};

/// `v / 255`, rounded, for `v` up to 255 * 255.
pub(crate) fn div255(v: u32) -> u8 {
    let v = v + 128;
    (((v >> 8) + v) >> 8) as u8
}

/// `over` and `under` mixed: all of `over` at 255. Exact at both ends, so that a mask of 0 and 255 copies bytes.
fn blend(under: u8, over: u8, mask: u8) -> u8 {
    div255(u32::from(over) * u32::from(mask) + u32::from(under) * (255 - u32::from(mask)))
}

impl<const C: usize> Image8<C> {
    /// Pastes `over` through `mask`: its pixels if the mask is 255, this image's bits if it is 0 (Pillow's `paste` with
    /// a mask).
    ///
    /// # Errors
    /// [`crate::Error::Size`] if the three differ in size.
    pub fn paste_through(&mut self, over: &Self, mask: &Gray8Image) -> Result<()> {
        self.check_same_size(over, "the image to paste")?;
        self.check_same_size(mask, "the mask")?;
        for ((under, over), [mask]) in self.pixels_mut().zip(over.pixels()).zip(mask.pixels()) {
            for (under, over) in under.iter_mut().zip(over) {
                *under = blend(*under, *over, *mask);
            }
        }
        Ok(())
    }
}

impl Rgb8Image {
    /// The image with `original` over it where `mask` is below 255: at 0 the original's bytes, at 255 this image's
    /// (`VaeImageProcessor.apply_overlay` of diffusers 0.42: a paste of the premultiplied original through the inverted
    /// mask, then `alpha_composite`).
    ///
    /// # Errors
    /// [`crate::Error::Size`] if the three differ in size.
    pub fn with_overlay(&self, original: &Self, mask: &Gray8Image) -> Result<Self> {
        self.check_same_size(original, "the image to paste")?;
        self.check_same_size(mask, "the mask")?;
        let opaque = |image: &Self| image.map(|[r, g, b]| [r, g, b, 255]);
        let mut over = Rgba8Image::filled(self.width(), self.height(), [0; 4])?;
        over.paste_through(&opaque(original), &mask.invert())?; // already multiplied by alpha
        let mut result = opaque(self);
        result.composite(&over.unpremultiply());
        Ok(result.to_rgb())
    }

    /// The image with `alpha` as its fourth channel.
    ///
    /// # Errors
    /// [`crate::Error::Size`] if they differ in size.
    pub fn with_alpha(&self, alpha: &Gray8Image) -> Result<Rgba8Image> {
        self.check_same_size(alpha, "the alpha channel")?;
        let pixels = self.pixels().zip(alpha.pixels());
        let data = pixels.flat_map(|(&[r, g, b], &[a])| [r, g, b, a]).collect();
        Rgba8Image::new(self.width(), self.height(), data)
    }
}

impl Rgba8Image {
    /// The colors, without alpha.
    #[must_use]
    pub fn to_rgb(&self) -> Rgb8Image {
        self.map(|[r, g, b, _]| [r, g, b])
    }

    /// The fourth channel.
    #[must_use]
    pub fn alpha(&self) -> Gray8Image {
        self.map(|[_, _, _, a]| [a])
    }

    /// The colors on a background, through alpha (AUTOMATIC1111's `images.flatten`).
    #[must_use]
    pub fn flatten(&self, background: [u8; 3]) -> Rgb8Image {
        self.map(|[r, g, b, a]| {
            let [under_r, under_g, under_b] = background;
            [blend(under_r, r, a), blend(under_g, g, a), blend(under_b, b, a)]
        })
    }

    /// The colors multiplied by alpha (Pillow's mode `RGBa`).
    pub(crate) fn premultiply(&self) -> Self {
        let by = |v: u8, a: u8| div255(u32::from(v) * u32::from(a));
        self.map(|[r, g, b, a]| [by(r, a), by(g, a), by(b, a), a])
    }

    /// The reverse of [`Self::premultiply`]: `255 * v / a`, truncated, at most 255.
    pub(crate) fn unpremultiply(&self) -> Self {
        let by = |v: u8, a: u8| (255 * u32::from(v) / u32::from(a)).min(255) as u8;
        self.map(|[r, g, b, a]| if matches!(a, 0 | 255) { [r, g, b, a] } else { [by(r, a), by(g, a), by(b, a), a] })
    }

    /// Composites `over` onto this (Pillow's `alpha_composite`). Both have the same size.
    pub(crate) fn composite(&mut self, over: &Self) {
        for (under, &[r, g, b, a]) in self.pixels_mut().zip(over.pixels()) {
            if a == 0 {
                continue;
            }
            let [a, under_a] = [a, under[3]].map(u32::from);
            let out_a = a * 255 + under_a * (255 - a); // alpha of the result, times 255
            let part = ((a * 255 * 255) << 7) / out_a; // of `over`, with 7 more bits than a byte
            let rest = (255 << 7) - part;
            let mix = |under: u8, over: u8| {
                let v = u32::from(over) * part + u32::from(under) * rest + (0x80 << 7);
                ((((v >> 8) + v) >> 8) >> 7) as u8
            };
            *under = [mix(under[0], r), mix(under[1], g), mix(under[2], b), div255(out_a)];
        }
    }
}
