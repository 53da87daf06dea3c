//! An upscaler with its weights.

use std::ops::ControlFlow;

use candle_core::DType;
use kiln_media::{DecodedImage, Filter, Gray8Image, Rgb8Image, Rgba8Image};
use kiln_mempool::Category;
use kiln_nn::ops::Target;
use kiln_request::OpenUpscaler;
use kiln_upscale::{StripRows, Upscaler};
use kiln_weights::Placement;

use super::bytes::{to_image, to_tensor};
use super::strips::{TileRows, fewer};
use kiln_setup::error::{Error, Result, proceed};
use kiln_setup::host_memory;
use kiln_setup::memory::MemoryOptions;
use kiln_setup::room::{DeviceMemory, Room};
use kiln_setup::setup::{ResolvedDevice, Setup};

/// An upscaler that is ready to enlarge images.
pub struct Enlarger {
    upscaler: OpenUpscaler,
    loaded: Option<Loaded>,
    tile: TileRows,
}

/// Where a network's weights are.
struct Loaded {
    place: ResolvedDevice,
    memory: MemoryOptions,
    /// Bytes of the budget that other weights take.
    taken: usize,
}

/// News while an image is enlarged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EnlargerEvent {
    /// So much of the image is done, from 0 to 1.
    Progress(f32),
    /// There was no memory. The network runs again, with strips of so many rows.
    FewerRows(usize),
    /// Values overflowed the type. The network runs again in f32, and so it does for all images that follow.
    Again {
        /// The type that was too narrow: `f16` or `bf16`.
        from: &'static str,
    },
}

/// Hears [`EnlargerEvent`]s and says whether to go on.
type Watch<'a> = dyn FnMut(EnlargerEvent) -> ControlFlow<()> + 'a;

/// Colors, and alpha where a pixel is not opaque.
pub(super) enum Enlarged {
    Rgb(Rgb8Image),
    Rgba(Rgba8Image),
}

impl Enlarger {
    /// Opens the device and reads the weights; nothing of this for a filter.
    ///
    /// # Errors
    /// [`Error::Device`], and [`Error::Weights`] where the file cannot be read.
    pub fn load(upscaler: OpenUpscaler, setup: &Setup, tile: TileRows) -> Result<Self> {
        match upscaler.is_network() {
            true => Self::load_sharing(upscaler, setup.resolve()?, setup.memory.clone(), 0, tile),
            false => Ok(Self { upscaler, loaded: None, tile }),
        }
    }

    /// Loads on a device that is open, if other weights take `taken` bytes of the budget.
    ///
    /// # Errors
    /// See [`Self::load`].
    pub fn load_sharing(
        upscaler: OpenUpscaler,
        place: ResolvedDevice,
        memory: MemoryOptions,
        taken: usize,
        tile: TileRows,
    ) -> Result<Self> {
        let loaded = match upscaler.upscaler() {
            None => None,
            Some(network) => {
                read_weights(network, &place)?;
                Some(Loaded { place, memory, taken })
            }
        };
        Ok(Self { upscaler, loaded, tile })
    }

    /// The upscaler.
    pub fn upscaler(&self) -> &OpenUpscaler {
        &self.upscaler
    }

    /// On what a network runs, and in which type: "f32 on the CPU".
    pub fn place(&self) -> Option<String> {
        self.loaded.as_ref().map(|Loaded { place, .. }| {
            // Upscalers run on the CPU if the device is not candle's.
            let device = if place.device.is_cuda() { "the GPU" } else { "the CPU" };
            format!("{} on {device}", place.dtype.as_str())
        })
    }

    /// An image with sides of `width` and `height`. A network runs over its own result while that is smaller, up to three
    /// times; then the result is resized by Lanczos, if it has another size (AUTOMATIC1111's `modules/upscaler.py`).
    ///
    /// # Errors
    /// [`Error::Memory`] if nothing fits, [`Error::Interrupted`] where `watch` stopped it, [`Error::NotANumber`],
    /// [`Error::Media`] for impossible sizes.
    pub fn enlarge(
        &mut self,
        image: &Rgb8Image,
        width: usize,
        height: usize,
        watch: &mut Watch<'_>,
    ) -> Result<Rgb8Image> {
        let (w, h) = image.size();
        let passes = self.upscaler.passes([w, h], [width, height]);
        let passes = passes.map_err(kiln_media::Error::Size)?.len();
        let mut enlarged = None;
        for pass in 0..passes {
            let part = |part| (pass as f32 + part) / passes as f32;
            let mut watch = |event| match event {
                EnlargerEvent::Progress(done) => watch(EnlargerEvent::Progress(part(done))),
                other => watch(other),
            };
            enlarged = Some(self.pass(enlarged.as_ref().unwrap_or(image), &mut watch)?);
        }
        let filter = self.upscaler.filter().unwrap_or(Filter::Lanczos3);
        match enlarged {
            Some(enlarged) if enlarged.size() == (width, height) => Ok(enlarged),
            Some(enlarged) => Ok(enlarged.resize(width, height, filter)?),
            None => Ok(image.resize(width, height, filter)?),
        }
    }

    /// Enlarges an image that may have alpha, which is resized by Lanczos or by the filter.
    pub(super) fn enlarge_decoded(
        &mut self,
        image: &DecodedImage,
        [width, height]: [usize; 2],
        watch: &mut Watch<'_>,
    ) -> Result<Enlarged> {
        let alpha = image.alpha().filter(|_| image.is_transparent());
        match (self.upscaler.filter(), alpha) {
            (_, None) => Ok(Enlarged::Rgb(self.enlarge(image.rgb(), width, height, watch)?)),
            (Some(filter), Some(_)) => Ok(Enlarged::Rgba(image.resize(width, height, filter)?.to_rgba())),
            (None, Some(alpha)) => {
                let colors = self.enlarge(image.rgb(), width, height, watch)?;
                let alpha: Gray8Image = alpha.resize(width, height, Filter::Lanczos3)?;
                Ok(Enlarged::Rgba(colors.with_alpha(&alpha)?))
            }
        }
    }

    /// One run of the network, with its own scale.
    fn pass(&mut self, image: &Rgb8Image, watch: &mut Watch<'_>) -> Result<Rgb8Image> {
        let (Some(network), Some(path), Some(loaded)) =
            (self.upscaler.upscaler(), self.upscaler.path(), &mut self.loaded)
        else {
            return Ok(image.clone());
        };
        match loaded.run(network, self.tile, image, watch) {
            Err(Error::NotANumber { .. }) if loaded.place.dtype != DType::F32 => {
                let from = loaded.place.dtype.as_str();
                proceed(watch(EnlargerEvent::Again { from }))?;
                network.segments().unload();
                loaded.place.dtype = DType::F32;
                read_weights(network, &loaded.place)?;
                loaded.run(network, self.tile, image, watch)
            }
            Err(Error::NotANumber { count, .. }) => {
                Err(Error::model(path, format!("gives {count} values that are not numbers; download the file again")))
            }
            other => other,
        }
    }
}

impl Loaded {
    /// Runs the network over an image, with fewer rows at once if there is no memory.
    fn run(&self, network: &Upscaler, tile: TileRows, image: &Rgb8Image, watch: &mut Watch<'_>) -> Result<Rgb8Image> {
        let ResolvedDevice { device, dtype, .. } = &self.place;
        let [channels, _] = network.config().channels();
        let (width, height) = image.size();
        let shape = if channels == 1 { [3, height, width] } else { [1, height, width] };
        let target = self.place.threads.run(|| Target::of(device));
        let mut strips = tile.strips(network, shape, (*dtype, target), self.room(network, target))?;
        loop {
            tracing::info!("{width}x{height} in {}, {strips:?}", dtype.as_str());
            match self.run_strips(network, image, strips, watch) {
                Err(error) if error.is_out_of_memory() => {
                    let [map_height, _] = network.map_size([height, width]);
                    strips = fewer(strips, map_height).ok_or(error)?;
                    let StripRows::Rows(rows) = strips else { continue };
                    proceed(watch(EnlargerEvent::FewerRows(rows * height.div_ceil(map_height))))?;
                }
                other => return other,
            }
        }
    }

    fn run_strips(
        &self,
        network: &Upscaler,
        image: &Rgb8Image,
        strips: StripRows,
        watch: &mut Watch<'_>,
    ) -> Result<Rgb8Image> {
        let [channels, _] = network.config().channels();
        let result = {
            let _activations = Category::Activations.scope();
            let tensor = to_tensor(image, channels, self.place.dtype, &self.place.device)?;
            let forward = |tell: &mut dyn FnMut(f32) -> ControlFlow<()>| network.forward_watched(&tensor, strips, tell);
            self.place.threads.run_watched(forward, &mut |part| watch(EnlargerEvent::Progress(part)))?
        };
        host_memory::log("upscale");
        host_memory::log_card(self.place.pool.as_ref(), "upscale");
        to_image(&result)
    }

    /// The memory that there is besides the weights.
    fn room(&self, network: &Upscaler, target: Target) -> Option<Room> {
        match Room::of_budget(&self.memory, target) {
            Some(room) => {
                let weights = network.segments().bytes(self.place.dtype) + self.taken;
                Some(Room::given(room.bytes.saturating_sub(weights)))
            }
            None => DeviceMemory::of(&self.place.device).map(|memory| memory.free),
        }
    }
}

fn read_weights(network: &Upscaler, place: &ResolvedDevice) -> Result<()> {
    let _weights = Category::Weights.scope();
    place.threads.run(|| network.load(&Placement::new(place.device.clone(), place.dtype)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use candle_core::{Device, Tensor};
    use kiln_models::DTypeChoice;
    use kiln_testkit::fixtures;
    use kiln_weights::MapSource;

    use super::*;
    use kiln_setup::setup::DeviceChoice;

    fn image(width: usize, height: usize) -> Rgb8Image {
        let bytes = (0..(3 * width * height) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
        Rgb8Image::new(width, height, bytes.collect()).unwrap()
    }

    fn enlarger(network: Upscaler, dtype: DTypeChoice, tile: TileRows) -> Enlarger {
        let open = OpenUpscaler::of_network(network, PathBuf::from("4x.pth"));
        let setup = Setup { device: DeviceChoice::Cpu, dtype, ..Setup::default() };
        Enlarger::load(open, &setup, tile).unwrap()
    }

    fn from_file(name: &str, tile: TileRows) -> Enlarger {
        enlarger(Upscaler::open(&fixtures("upscale").join(name)).unwrap(), DTypeChoice::F32, tile)
    }

    fn go_on(_: EnlargerEvent) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    #[test]
    fn passes_and_the_last_resize_are_those_of_automatic1111() {
        let (image, mut x2) = (image(20, 13), from_file("compact_x2.pth", TileRows::Auto));
        let once = x2.enlarge(&image, 40, 26, &mut go_on).unwrap();
        let twice = x2.enlarge(&once, 80, 52, &mut go_on).unwrap();
        let mut parts = Vec::new();
        let result = x2.enlarge(&image, 60, 39, &mut |event| {
            if let EnlargerEvent::Progress(part) = event {
                parts.push(part);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(result.unwrap(), twice.resize(60, 39, Filter::Lanczos3).unwrap());
        assert!(parts.is_sorted() && parts[0] > 0.0 && parts.last() == Some(&1.0), "{parts:?}");
        assert!(parts.contains(&0.5), "the first of two passes ends half way: {parts:?}");
    }

    #[test]
    fn strips_change_no_bit() {
        let image = image(20, 40);
        for name in ["compact_x2.pth", "params_ema_x2.pth", "compact_x3_gray.safetensors", "original_x4.pth"] {
            let results = [TileRows::Auto, TileRows::Rows(4), TileRows::Rows(10)].map(|tile| {
                let mut enlarger = from_file(name, tile);
                let scale = enlarger.upscaler().default_scale() as usize;
                enlarger.enlarge(&image, 20 * scale, 40 * scale, &mut go_on).unwrap()
            });
            assert!(results.iter().all(|result| *result == results[0]), "{name}");
        }
    }

    #[test]
    fn a_network_of_one_channel_runs_over_each_color() {
        let gray = image(9, 9).to_gray();
        let mut x3 = from_file("compact_x3_gray.safetensors", TileRows::Auto);
        let result = x3.enlarge(&gray.to_rgb(), 27, 27, &mut go_on).unwrap();
        assert_eq!(result, result.to_gray().to_rgb());
        let color = x3.enlarge(&image(9, 9), 27, 27, &mut go_on).unwrap();
        assert!(color.pixels().any(|[r, g, b]| r != g || g != b));
    }

    #[test]
    fn a_run_can_be_stopped() {
        for name in ["compact_x2.pth", "original_x4.pth"] {
            let mut enlarger = from_file(name, TileRows::Rows(2));
            let mut calls = 0;
            let result = enlarger.enlarge(&image(9, 30), 18, 60, &mut |_| {
                calls += 1;
                if calls == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(matches!(result, Err(Error::Interrupted)), "{name}");
            assert_eq!(calls, 2, "{name}");
        }
    }

    /// Two channels that overflow f16 and whose difference is 0: the result is the image itself, enlarged by nearest.
    #[test]
    fn what_overflows_runs_again_in_f32() {
        let full = |shape: &[usize], value: f32| Tensor::full(value, shape, &Device::Cpu).unwrap();
        let pair = [full(&[12, 1, 3, 3], 1.0), full(&[12, 1, 3, 3], -1.0)];
        let tensors = [
            ("body.0.weight", full(&[2, 3, 3, 3], 60_000.0)),
            ("body.0.bias", full(&[2], 60_000.0)),
            ("body.1.weight", full(&[2], 1.0)),
            ("body.2.weight", Tensor::cat(&pair, 1).unwrap()),
            ("body.2.bias", full(&[12], 0.0)),
        ];
        let source: MapSource = tensors.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect();
        let network = Upscaler::from_source(source, None).unwrap();
        let (image, mut events) = (image(6, 5), Vec::new());
        let mut enlarger = enlarger(network, DTypeChoice::F16, TileRows::Auto);
        assert_eq!(enlarger.place().unwrap(), "f16 on the CPU");
        for _ in 0..2 {
            let result = enlarger.enlarge(&image, 12, 10, &mut |event| {
                events.extend(matches!(event, EnlargerEvent::Again { .. }).then_some(event));
                ControlFlow::Continue(())
            });
            assert_eq!(result.unwrap(), image.resize(12, 10, Filter::Nearest).unwrap());
        }
        assert_eq!(events, [EnlargerEvent::Again { from: "f16" }], "the second image runs in f32 at once");
        assert_eq!(enlarger.place().unwrap(), "f32 on the CPU");
    }
}
