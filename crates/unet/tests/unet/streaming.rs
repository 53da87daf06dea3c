//! The U-Net with streamed weights: the bits are the same for any set of resident segments and any ring size.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_mempool::{PinnedConfig, PinnedPool};
use kiln_nn::ops::device::{OpenDevice, open_gpu};
use kiln_testkit::{Target, fixtures};
use kiln_unet::{AddedConditions, Conditioning, Unet, UnetConfig};
use kiln_weights::{ParamSource, Placement, Residency, Stream, StreamConfig, load, open_component};

/// A network, its device, and its inputs.
struct Case {
    target: Target,
    unet: Unet,
    source: Arc<dyn ParamSource>,
    placement: Placement,
    inputs: (Tensor, Tensor, Conditioning),
    _open: Option<OpenDevice>,
}

impl Case {
    fn open(name: &str) -> Self {
        let mut target = Target::from_env();
        let open = target.device.is_cuda().then(|| open_gpu(0).unwrap());
        if let Some(open) = &open {
            target.device = Device::clone(open); // as in the engine: only a stream orders its copies
        }
        let folder = fixtures("models").join(name).join("unet");
        let config = UnetConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let unet = Unet::new(config.clone());
        let waves = |shape: &[usize], scale: f32| {
            let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i as f32 * scale).sin()).collect();
            target.tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
        };
        let added = config.pooled_dim().map(|dim| AddedConditions {
            text_embeds: waves(&[2, dim], 0.3),
            time_ids: Tensor::new(&[[64f32, 64., 0., 0., 64., 64.]; 2], &target.device).unwrap(),
        });
        let context = waves(&[2, 7, config.context_dim().unwrap()], 0.7);
        let timestep = Tensor::new(&[500f32], &target.device).unwrap();
        let inputs = (
            waves(&[2, config.in_channels, 8, 8], 0.1),
            timestep,
            Conditioning { added, ..Conditioning::of_text(context) },
        );
        let placement = Placement::new(target.device.clone(), target.dtype);
        Self { target, unet, source: Arc::from(open_component(&folder).unwrap()), placement, inputs, _open: open }
    }

    fn run(&self) -> Vec<f32> {
        let (x, timestep, conditioning) = &self.inputs;
        let y = self.unet.forward(x, timestep, conditioning).unwrap();
        y.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    fn resident(&self) -> Vec<f32> {
        load(self.unet.segments(), self.source.as_ref(), &self.placement).unwrap();
        let bits = self.run();
        self.unet.segments().unload();
        bits
    }

    fn start(&self, residency: &Residency, memory: HostMemory, copy_stream: bool) -> Stream {
        let HostMemory { pinned, bytes } = memory;
        let config = StreamConfig { residency: residency.clone(), pinned, host_bytes: bytes, copy_stream, pool: None };
        Stream::start(self.unet.segments(), self.source.clone(), &self.placement, config).unwrap()
    }

    /// Runs two passes, because the first copies ahead for the second.
    #[track_caller]
    fn check(&self, residency: &Residency, memory: HostMemory, copy_stream: bool, expected: &[f32]) {
        let stream = self.start(residency, memory, copy_stream);
        for pass in 0..2 {
            assert!(self.run() == expected, "{residency:?}, pass {pass}: other bits than resident");
        }
        let report = stream.report().unwrap();
        assert_eq!(report.resets, 0, "segments run in the order in which they are declared");
        assert!(report.bytes >= residency.streamed_bytes() as u64);
        drop(stream);
        assert!(self.unet.segments().iter().all(|segment| !segment.is_loaded()));
    }

    /// Memory for all weights, of which up to `cap` bytes are pinned.
    fn pinned(&self, cap: usize) -> HostMemory {
        let config = PinnedConfig::with_cap(cap);
        let pinned = self.target.device.is_cuda().then(|| PinnedPool::new(0, config).unwrap());
        HostMemory { pinned, bytes: u64::MAX }
    }
}

/// The memory of a GPU's weights on the host.
struct HostMemory {
    pinned: Option<PinnedPool>,
    bytes: u64,
}

fn every_configuration_has_the_same_bits(name: &str) {
    let case = Case::open(name);
    let expected = case.resident();
    let segments = case.unet.segments();
    let sizes: Vec<usize> = segments.iter().map(|segment| segment.bytes(case.placement.dtype)).collect();
    let (total, largest) = (sizes.iter().sum::<usize>(), sizes.iter().copied().max().unwrap());
    for ring in [largest, largest + 256, largest * 3 / 2, 2 * largest, total, 2 * total] {
        let all = Residency::none(segments, &case.placement, ring).unwrap();
        case.check(&all, case.pinned(1 << 30), true, &expected);
        case.check(&all.with_pieces(4096), case.pinned(1 << 30), true, &expected);
    }
    for resident in 1..=segments.len() {
        // Either the first segments are resident, or as many spread over the network.
        let first = |i: usize| i < resident;
        let even = |i: usize| (i + 1) * resident / segments.len() > i * resident / segments.len();
        for stays in [&first as &dyn Fn(usize) -> bool, &even] {
            let some = Residency::chosen(segments, &case.placement, largest, stays).unwrap();
            case.check(&some, case.pinned(1 << 30), true, &expected);
        }
    }
    let all = Residency::none(segments, &case.placement, largest).unwrap();
    assert!(Residency::none(segments, &case.placement, largest - 1).is_err());
    for (cap, copy_stream) in [(1 << 30, false), (0, true), (0, false), (largest, true)] {
        case.check(&all, case.pinned(cap), copy_stream, &expected);
    }
    let pageable = || HostMemory { pinned: None, bytes: u64::MAX };
    case.check(&all, pageable(), true, &expected);
    case.check(&all.clone().with_pieces(1), pageable(), true, &expected);
    // Some or all weights are read in every pass.
    for bytes in [0, largest as u64, total as u64 / 2, total as u64 - 1] {
        case.check(&all, HostMemory { bytes, ..case.pinned(1 << 30) }, true, &expected);
        case.check(&all.clone().with_pieces(4096), HostMemory { pinned: None, bytes }, bytes == 0, &expected);
    }
}

#[test]
fn sd1() {
    every_configuration_has_the_same_bits("sd1");
}

#[test]
fn sdxl() {
    every_configuration_has_the_same_bits("sdxl");
}
