//! The size of the second pass.

/// The sizes of hires fix in pixels, width and height: to which the first pass's results are enlarged, and what is cut out of
/// them around the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) enlarged: (usize, usize),
    pub(super) target: (usize, usize),
}

/// The requested size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Asked {
    /// A factor of both sides.
    Scale(f64),
    /// Width and height; 0 stands for a side that follows from the other one.
    Size(usize, usize),
}

impl Sizes {
    /// The sizes for a first pass of `width` by `height` pixels. All are rounded down to multiples of `multiple`, and are one
    /// such at least.
    ///
    /// A size of another shape is covered and cut (`calculate_target_resolution` of AUTOMATIC1111's `modules/processing.py`,
    /// v1.10).
    pub(super) fn new(asked: Asked, (width, height): (usize, usize), multiple: usize) -> Self {
        let rounded = |(w, h): (usize, usize)| (round(w, multiple), round(h, multiple));
        match asked {
            Asked::Scale(scale) => {
                let size = rounded(((width as f64 * scale) as usize, (height as f64 * scale) as usize));
                Self { enlarged: size, target: size }
            }
            Asked::Size(w, 0) => Self::same(rounded((w, w * height / width.max(1)))),
            Asked::Size(0, h) => Self::same(rounded((h * width / height.max(1), h))),
            Asked::Size(w, h) => {
                let is_wider = (width as f64 / height as f64) < w as f64 / h as f64;
                let covering = if is_wider { (w, w * height / width.max(1)) } else { (h * width / height.max(1), h) };
                let (target, (w, h)) = (rounded((w, h)), rounded(covering));
                Self { enlarged: (w.max(target.0), h.max(target.1)), target }
            }
        }
    }

    fn same(size: (usize, usize)) -> Self {
        Self { enlarged: size, target: size }
    }
}

fn round(side: usize, multiple: usize) -> usize {
    (side / multiple * multiple).max(multiple)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of AUTOMATIC1111's formula.
    #[test]
    fn sizes_are_automatic1111s() {
        let of = |asked, first| {
            let Sizes { enlarged, target } = Sizes::new(asked, first, 8);
            (enlarged, target)
        };
        assert_eq!(of(Asked::Scale(2.0), (512, 768)), ((1024, 1536), (1024, 1536)));
        assert_eq!(of(Asked::Scale(1.7), (512, 512)), ((864, 864), (864, 864)), "870 is 108 latents");
        assert_eq!(of(Asked::Size(1024, 0), (512, 768)), ((1024, 1536), (1024, 1536)));
        assert_eq!(of(Asked::Size(0, 1000), (512, 768)), ((664, 1000), (664, 1000)), "666 is 83 latents");
        assert_eq!(of(Asked::Size(1024, 1024), (512, 768)), ((1024, 1536), (1024, 1024)));
        assert_eq!(of(Asked::Size(1280, 1024), (768, 512)), ((1536, 1024), (1280, 1024)));
        assert_eq!(of(Asked::Size(1024, 1024), (512, 512)), ((1024, 1024), (1024, 1024)));
    }
}
