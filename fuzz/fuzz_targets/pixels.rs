//! The bytes of an image file, and all that is computed on the way to the values of a tensor.
#![no_main]

use kiln_media::{
    AlphaRule, Borders, DecodeOptions, Filter, ResizeMode, StillFormat, ValueRange, decode, encode, extend, fill_masked,
};
use libfuzzer_sys::fuzz_target;

const OPTIONS: DecodeOptions =
    DecodeOptions { max_pixels: 1 << 18, max_side: 1 << 14, max_memory: 16 << 20, max_file: 1 << 20 };

fuzz_target!(|data: &[u8]| {
    let Ok(image) = decode(data, "input", &OPTIONS) else { return };
    let (width, height) = (image.width(), image.height());
    assert!(width > 0 && height > 0 && width * height <= 1 << 18);
    let mask = image.to_mask();
    assert_eq!(mask.size(), (width, height));
    if let Some(region) = mask.bounding_box() {
        let region = region.padded(3, width, height).expanded((24, 16), (width, height));
        let part = image.rgb().crop(region).expect("the region lies inside of the image");
        assert_eq!(part.size(), (region.width(), region.height()));
    }
    let filters = [Filter::Nearest, Filter::Box, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos3];
    let filter = filters[data.len() % filters.len()];
    let resized = image.resize(20, 12, filter).expect("20x12 pixels");
    let mask = resized.to_mask().opencv_gaussian_blur(1.5, 2.0).expect("a small sigma");
    for (rule, mode) in [
        (AlphaRule::Drop, ResizeMode::Stretch),
        (AlphaRule::FlattenOnWhite, ResizeMode::Crop),
        (AlphaRule::FlattenOnWhite, ResizeMode::Fill),
    ] {
        let rgb = image.clone().into_rgb(rule);
        // A long and thin image has too many pixels before it is cropped: an error.
        let Ok(rgb) = rgb.resize_to(mode, 20, 12, filter) else { continue };
        let filled = fill_masked(&rgb, &mask).expect("sizes that agree");
        let (larger, border) =
            extend(&filled, Borders { top: 1, left: 2, bottom: 3, right: 0 }).expect("small borders");
        let values = larger.to_planes(ValueRange::MinusOneToOne);
        assert_eq!(values.len(), 3 * 22 * 16);
        assert!(values.iter().all(|v| (-1.0..=1.0).contains(v)));
        assert_eq!(border.to_unit().len(), 22 * 16);
        let written = encode(&larger, StillFormat::Png).expect("a PNG file");
        assert_eq!(decode(&written, "output", &OPTIONS).expect("what was written").rgb(), &larger);
    }
});
