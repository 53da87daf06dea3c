//! How many rows of an image a network computes at once.

use std::str::FromStr;

use candle_core::DType;
use kiln_nn::ops::Target;
use kiln_upscale::{StripRows, Upscaler};

use kiln_files::ByteSize;

use kiln_setup::error::{Error, Result};
use kiln_setup::room::Room;

/// The rows of an image that a network computes at once. On the CPU it changes no bit of the result, on a GPU no more
/// than a sum's order does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TileRows {
    /// The fastest that fit into the memory.
    #[default]
    Auto,
    /// So many rows of the network's input, rounded down to an even number, at least 2.
    Rows(usize),
}

/// More rows than any image has.
const MOST: usize = 1 << 20;

impl FromStr for TileRows {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => match text.parse() {
                Ok(rows @ 1..=MOST) => Ok(Self::Rows(rows)),
                Ok(_) => Err(format!("expected auto or a number from 1 to {MOST}")),
                Err(_) => Err("expected auto or a whole number of rows".into()),
            },
        }
    }
}

impl TileRows {
    /// The strips for images `(b, h, w)`. `room` is what there is besides the weights, if that is known.
    ///
    /// # Errors
    /// [`Error::Memory`] where not even the smallest strips fit, or those that were asked for do not.
    pub(super) fn strips(
        self,
        upscaler: &Upscaler,
        shape: [usize; 3],
        (dtype, target): (DType, Target),
        room: Option<Room>,
    ) -> Result<StripRows> {
        let [_, h, w] = shape;
        // The image and the result as bytes and as f32 of some rows, which no footprint of a network counts.
        let images = 3 * h * w * (upscaler.scale().pow(2) + 1 + size_of::<f32>());
        let left = room.map(|room| room.bytes.saturating_sub(images));
        let least = StripRows::Rows(2);
        let (strips, smallest) = match (self, left) {
            (Self::Rows(rows), _) => {
                let [map_height, _] = upscaler.map_size([h, w]);
                let strips = StripRows::Rows((rows * map_height / h.max(1)).max(2));
                (Some(strips), strips)
            }
            (Self::Auto, None) => (Some(upscaler.fastest([h, w], target)), least),
            (Self::Auto, Some(bytes)) => (upscaler.fitting(shape, dtype, target, bytes)?, least),
        };
        let fits = |strips| -> Result<bool> {
            let Some(bytes) = left.filter(|_| self != Self::Auto) else { return Ok(true) };
            Ok(upscaler.footprint(shape, dtype, target, strips)? <= bytes)
        };
        match strips {
            Some(strips) if fits(strips)? => Ok(strips),
            _ => {
                let footprint = upscaler.footprint(shape, dtype, target, smallest)?;
                let what = match smallest {
                    StripRows::Rows(rows) => format!("an image of {w}x{h} pixels in strips of {rows} rows"),
                    StripRows::Whole => format!("an image of {w}x{h} pixels"),
                };
                let needed = ByteSize(footprint.saturating_add(images));
                Err(Error::Memory { what, needed, available: ByteSize(room.map_or(0, |room| room.bytes)) })
            }
        }
    }
}

/// The next strips that take less memory for an image of this height.
pub(super) fn fewer(strips: StripRows, height: usize) -> Option<StripRows> {
    let rows = match strips {
        StripRows::Whole => height.div_ceil(2),
        StripRows::Rows(rows) => rows / 2,
    };
    (rows >= 2).then_some(StripRows::Rows(rows))
}

#[cfg(test)]
mod tests {
    use kiln_testkit::fixtures;

    use super::*;

    const CPU: (DType, Target) = (DType::F32, Target::Cpu { threads: 2 });

    fn strips(name: &str, tile: TileRows, bytes: usize) -> Result<StripRows> {
        let upscaler = Upscaler::open(&fixtures("upscale").join(name)).unwrap();
        tile.strips(&upscaler, [1, 400, 300], CPU, Some(Room::given(bytes)))
    }

    #[test]
    fn strips_fit_into_the_room() {
        let of = |bytes| strips("compact_x4.safetensors", TileRows::Auto, bytes);
        let StripRows::Rows(most) = of(1 << 30).unwrap() else { panic!("strips on the CPU") };
        assert!(most >= 8);
        // The result alone is 23 MB in f32 and 6 MB in bytes.
        let message = of(20 << 20).unwrap_err().to_string();
        assert!(message.starts_with("an image of 300x400 pixels in strips of 2 rows needs "), "{message}");
        let least = (20..100).find_map(|mib| of(mib << 20).ok()).unwrap();
        assert!(matches!(least, StripRows::Rows(rows) if rows < most), "{least:?}");
    }

    #[test]
    fn rows_are_those_of_the_image() {
        let of = |name, rows| strips(name, TileRows::Rows(rows), 4 << 30).unwrap();
        assert_eq!(of("compact_x4.safetensors", 16), StripRows::Rows(16));
        assert_eq!(of("compact_x4.safetensors", 1), StripRows::Rows(2));
        assert_eq!(of("params_ema_x2.pth", 16), StripRows::Rows(8), "squares of 2 pixels are one of the map");
        assert!(strips("compact_x4.safetensors", TileRows::Rows(400), 1 << 20).is_err());
        assert_eq!(
            [fewer(StripRows::Whole, 9), fewer(StripRows::Rows(5), 9)],
            [5, 2].map(|n| Some(StripRows::Rows(n)))
        );
        assert_eq!(fewer(StripRows::Rows(3), 9), None);
    }

    #[test]
    fn tiles_are_auto_or_a_number() {
        assert_eq!("auto".parse(), Ok(TileRows::Auto));
        assert_eq!("64".parse(), Ok(TileRows::Rows(64)));
        for text in ["0", "-1", "", "all", "1048577", "1.5"] {
            assert!(text.parse::<TileRows>().is_err(), "{text}");
        }
    }
}
