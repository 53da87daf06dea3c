//! Images on their way to Python and from there.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use kiln_engine::GeneratedImage;
use kiln_media::{Image8, Rgb8Image, StillFormat, encode_png, encode_with_settings};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::elements::Elements;
use crate::error::refused;

/// An image that was made.
#[pyclass(frozen, module = "kiln._kiln")]
pub struct Generated {
    index: usize,
    seed: u64,
    width: usize,
    height: usize,
    /// Kiln's settings in JSON, and AUTOMATIC1111's; empty for an image that no request made.
    settings: String,
    parameters: String,
    pixels: Py<Elements>,
    latents: Option<Py<Elements>>,
}

impl Generated {
    /// Takes the pixels and the latents without a copy. Without `has_settings` the image has no settings: they would not make it again.
    pub(crate) fn of(image: GeneratedImage, has_settings: bool) -> kiln_engine::Result<Self> {
        let (values, shape) = image.latents()?;
        let GeneratedImage { index, seed, width, height, rgb, parameters, settings, .. } = image;
        let (parameters, settings) = if has_settings { (parameters, settings) } else { Default::default() };
        let latents = Elements::of_f32(values, &shape);
        let pixels = Elements::of_bytes(rgb, &[height, width, 3]);
        let made = Python::attach(|py| Ok::<_, PyErr>((Py::new(py, pixels)?, Py::new(py, latents)?)));
        let (pixels, latents) =
            made.map_err(|error| kiln_engine::Error::output(std::io::Error::other(error.to_string())))?;
        Ok(Self { index, seed, width, height, settings, parameters, pixels, latents: Some(latents) })
    }

    /// An image without settings, `width` pixels wide, row by row.
    pub(crate) fn of_pixels(py: Python<'_>, (width, height): (usize, usize), rgb: Vec<u8>) -> PyResult<Self> {
        let pixels = Py::new(py, Elements::of_bytes(rgb, &[height, width, 3]))?;
        let (settings, parameters) = (String::new(), String::new());
        Ok(Self { index: 0, seed: 0, width, height, settings, parameters, pixels, latents: None })
    }
}

#[pymethods]
impl Generated {
    #[getter]
    fn index(&self) -> usize {
        self.index
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.seed
    }

    #[getter]
    fn settings(&self) -> &str {
        &self.settings
    }

    #[getter]
    fn parameters(&self) -> &str {
        &self.parameters
    }

    #[getter]
    fn pixels(&self, py: Python<'_>) -> Py<Elements> {
        self.pixels.clone_ref(py)
    }

    #[getter]
    fn latents(&self, py: Python<'_>) -> Option<Py<Elements>> {
        self.latents.as_ref().map(|latents| latents.clone_ref(py))
    }

    /// The bytes of a file of this ending: png with all settings; jpg and jpeg, of a quality from 1 to 100, and webp, which is
    /// lossless, with AUTOMATIC1111's settings.
    fn file<'py>(&self, py: Python<'py>, ending: &str, quality: u8) -> PyResult<Bound<'py, PyBytes>> {
        let format = match ending {
            "png" => return self.png(py),
            "jpg" | "jpeg" => StillFormat::Jpeg(quality),
            "webp" => StillFormat::WebPLossless,
            _ => return Err(refused("path", ending, "a name that ends in .png, .jpg, .jpeg or .webp")),
        };
        let rgb = self.pixels.get().bytes();
        let file = py.detach(|| {
            let image = Rgb8Image::new(self.width, self.height, rgb)?;
            match self.parameters.as_str() {
                "" => kiln_media::encode(&image, format),
                parameters => encode_with_settings(&image, format, parameters),
            }
        });
        let file = file.map_err(|error: kiln_media::Error| PyValueError::new_err(error.to_string()))?;
        Ok(PyBytes::new(py, &file))
    }

    /// The bytes of a PNG file with the settings.
    fn png<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let rgb = self.pixels.get().bytes();
        let texts = [("parameters", self.parameters.as_str()), (kiln_request::settings::KEY, self.settings.as_str())];
        let texts: Vec<_> = texts.into_iter().filter(|(_, text)| !text.is_empty()).collect();
        let png = py.detach(|| encode_png((self.width, self.height), &rgb, &texts));
        let png = png.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyBytes::new(py, &png))
    }
}

/// A pickled image again.
#[pyfunction]
#[pyo3(signature = (index, seed, settings, parameters, pixels, latents = None))]
pub fn generated(
    py: Python<'_>,
    index: usize,
    seed: u64,
    settings: String,
    parameters: String,
    pixels: Py<Elements>,
    latents: Option<Py<Elements>>,
) -> PyResult<Generated> {
    let shape: Vec<usize> = pixels.bind(py).getattr("shape")?.extract()?;
    match (&shape[..], pixels.bind(py).getattr("dtype")?.extract::<String>()?.as_str()) {
        (&[height, width, 3], "uint8") => {
            Ok(Generated { index, seed, width, height, settings, parameters, pixels, latents })
        }
        _ => Err(refused("pixels", format!("{shape:?}"), "uint8 of the shape (height, width, 3)")),
    }
}

/// Writes pixels of 1, 3 or 4 channels, row by row in 8 bits, as a PNG file, which exists in the caller's folder alone.
#[pyfunction]
pub fn write_png(
    py: Python<'_>,
    path: PathBuf,
    pixels: PyBuffer<u8>,
    size: (usize, usize),
    channels: usize,
) -> PyResult<()> {
    let data = pixels.to_vec(py)?;
    py.detach(|| {
        let file = BufWriter::new(File::create(path)?);
        match channels {
            1 => write::<1>(file, size, data),
            3 => write::<3>(file, size, data),
            4 => write::<4>(file, size, data),
            _ => Err(refused("channels", channels, "1, 3 or 4")),
        }
    })
}

fn write<const C: usize>(file: BufWriter<File>, (width, height): (usize, usize), data: Vec<u8>) -> PyResult<()> {
    let image = Image8::<C>::new(width, height, data).map_err(|error| PyValueError::new_err(error.to_string()))?;
    kiln_media::write_png(file, &image, &[]).map_err(|error| PyValueError::new_err(error.to_string()))
}
