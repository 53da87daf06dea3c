//! The bytes of an image file as the input and as the mask of a request, up to the tensors that a job begins with.
#![no_main]

use std::io::Write;
use std::sync::LazyLock;

use kiln_request::{InpaintArea, MaskContent, Request, ResizeChoice, Rule};
use libfuzzer_sys::fuzz_target;

/// A valid image to go with the one that is tried.
static VALID: LazyLock<tempfile::NamedTempFile> = LazyLock::new(|| {
    let pixels: Vec<u8> = (0..24 * 16 * 3).map(|i: usize| (i * i / 5 % 256) as u8).collect();
    let png = kiln_media::encode_png((24, 16), &pixels, &[]).expect("a small image");
    written(&png)
});

fn written(data: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(data).expect("space for a small file");
    file
}

fuzz_target!(|data: &[u8]| {
    let file = written(data);
    let (tried, valid) = (Some(file.path().to_path_buf()), Some(VALID.path().to_path_buf()));
    let small = Request { width: Some(24), height: Some(16), ..Request::default() };
    for (i, (init, mask)) in [(&tried, &None), (&tried, &valid), (&valid, &tried)].into_iter().enumerate() {
        let masked = mask.is_some();
        let choice = data.len() + i;
        let request = Request {
            init: init.clone(),
            mask: mask.clone(),
            rule: Some([Rule::Diffusers, Rule::Automatic1111, Rule::Comfy][choice % 3]),
            resize_mode: [None, Some(ResizeChoice::Crop), Some(ResizeChoice::Fill)][choice / 3 % 3],
            inpaint_area: (masked && choice % 3 < 2 && choice.is_multiple_of(2)).then_some(InpaintArea::Masked),
            mask_content: (masked && choice.is_multiple_of(5)).then_some(MaskContent::Fill),
            ..small.clone()
        };
        if let Ok(Some(prepared)) = request.prepare_input(8) {
            prepared.init.check(24, 16).expect("tensors of the requested size");
            let image = prepared.init.image().expect("an image").pixels();
            let values = image.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("values in f32");
            assert!(values.iter().all(|v| (-1.0..=1.0).contains(v)));
        }
    }
});
