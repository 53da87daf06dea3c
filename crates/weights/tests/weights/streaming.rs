//! Streams with segments that run in any order, that fail, or that run inside each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use kiln_weights::{
    CopyTimes, Error, Estimate, MapSource, Packing, Param, ParamData, ParamInfo, ParamSource, Placement, Residency,
    Result, SegmentModule, Segments, Stream, StreamConfig,
};

/// Elements of every segment: one of 1024 bytes in f32, one of 2048, ...
const SIZES: [usize; 5] = [256, 512, 128, 640, 256];

struct Network {
    segments: Segments,
    parts: Vec<SegmentModule<Param>>,
    source: Arc<Source>,
}

/// Tensors that contain their segment's number, and that cannot be read after a number of reads.
struct Source {
    tensors: MapSource,
    reads_left: AtomicUsize,
}

impl ParamSource for Source {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.tensors.info(key)
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let left = self.reads_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() { self.tensors.data(key) } else { Ok(None) }
    }

    fn origin(&self, _key: &str) -> String {
        "the test".into()
    }

    fn keys(&self) -> Vec<String> {
        self.tensors.keys()
    }
}

fn cpu() -> Placement {
    Placement::new(Device::Cpu, DType::F32)
}

impl Network {
    fn new() -> Self {
        let mut segments = Segments::default();
        let parts = SIZES.iter().enumerate().map(|(i, &size)| {
            segments.add(format!("part.{i}"), |p| p.pp(i).param("weight", &[size], Packing::AsStored))
        });
        let parts = parts.collect();
        let tensor =
            |(i, size): (usize, &usize)| (format!("{i}.weight"), Tensor::full(i as f32, *size, &Device::Cpu).unwrap());
        let tensors = SIZES.iter().enumerate().map(tensor).collect();
        Self { segments, parts, source: Arc::new(Source { tensors, reads_left: usize::MAX.into() }) }
    }

    fn stream(&self, ring: usize) -> Stream {
        let residency = Residency::none(&self.segments, &cpu(), ring).unwrap();
        self.start(residency).unwrap()
    }

    fn start(&self, residency: Residency) -> Result<Stream> {
        let config = StreamConfig { residency, pinned: None, host_bytes: u64::MAX, copy_stream: true, pool: None };
        Stream::start(&self.segments, self.source.clone(), &cpu(), config)
    }

    #[track_caller]
    fn run(&self, i: usize) {
        let part = self.parts[i].enter().unwrap();
        assert_eq!(part.tensor().unwrap().to_vec1::<f32>().unwrap(), vec![i as f32; SIZES[i]]);
    }
}

#[test]
fn any_order_is_right() {
    let network = Network::new();
    for ring in [2560, 3000, 4096, 8192] {
        let stream = network.stream(ring);
        for i in [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 4, 2, 2, 3, 1, 0, 4, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4] {
            network.run(i);
        }
        let report = stream.report().unwrap();
        assert_eq!(report.resets > 0, ring < 8192, "{report:?}");
        assert!(report.copies >= 5 && report.bytes >= 7168 && report.stall_seconds >= 0.0, "{report:?}");
    }
}

#[test]
fn a_network_that_fits_is_read_once() {
    let network = Network::new();
    let stream = network.stream(7168);
    for _ in 0..3 {
        (0..5).for_each(|i| network.run(i));
    }
    let report = stream.report().unwrap();
    assert_eq!((report.copies, report.bytes, report.resets), (5, 7168, 0));
}

#[test]
fn only_the_ring_is_in_memory() {
    let network = Network::new();
    let stream = network.stream(2560);
    let mut params = Vec::new();
    for i in [0, 1, 2, 3, 4] {
        let active = network.parts[i].enter().unwrap();
        assert!(active.tensor().is_ok());
        params.push(active.clone());
        // A parameter refers to its segment's current slab, so that it finds only what is in memory.
        let there = params.iter().filter_map(|param| param.tensor().ok());
        let bytes: usize = there.map(|tensor| tensor.elem_count() * 4).sum();
        assert!(bytes <= 2560, "{bytes} bytes in a ring of 2560");
    }
    drop(stream);
    assert!(network.segments.iter().all(|segment| !segment.is_loaded()));
    assert!(matches!(network.parts[0].enter(), Err(Error::NotLoaded(_))));
}

#[test]
fn segments_inside_of_one_another_need_room_for_both() {
    let network = Network::new();
    let _stream = network.stream(2560);
    let outer = network.parts[1].enter().unwrap();
    let message = network.parts[3].enter().err().unwrap().to_string();
    assert_eq!(
        message,
        "segment `part.3` cannot run while `part.1` runs: a ring of 2560 bytes does not have room for both"
    );
    network.run(1);
    assert_eq!(outer.tensor().unwrap().to_vec1::<f32>().unwrap(), [1.0; 512]);
    drop(outer);
    network.run(3);
}

#[test]
fn a_failing_source_is_reported_and_retried() {
    let network = Network::new();
    network.source.reads_left.store(6, Ordering::SeqCst);
    let _stream = network.stream(2560);
    (0..5).for_each(|i| network.run(i));
    let failed = (0..5).find_map(|i| network.parts[i].enter().err()).unwrap();
    assert!(failed.to_string().starts_with("the test: tensor `"), "{failed}");
    network.source.reads_left.store(usize::MAX, Ordering::SeqCst);
    for i in [0, 1, 2, 3, 4, 0] {
        // An error from the copies ahead is also reported once.
        let _ = network.parts[i].enter();
        network.run(i);
    }
}

#[test]
fn a_plan_for_other_segments_is_refused() {
    let network = Network::new();
    let needed = Residency::none(&network.segments, &cpu(), 2559).unwrap_err().to_string();
    assert!(needed.contains("at least 2560 bytes") && needed.contains("2559"), "{needed}");
    let other = Residency::all(&network.segments[..2], &cpu());
    let message = network.start(other).err().unwrap().to_string();
    assert!(message.contains("for 2 segments in F32, not for 5 segments in F32"), "{message}");
    network.source.reads_left.store(0, Ordering::SeqCst);
    assert!(network.start(Residency::all(&network.segments, &cpu())).is_err());
    assert!(network.segments.iter().all(|segment| !segment.is_loaded()), "nothing stays half loaded");
}

#[test]
fn a_plan_uses_the_budget_and_never_more() {
    let mut segments = Segments::default();
    for i in 0..40 {
        let size = 1000 + 7919 * i % 5000;
        segments.add(format!("{i}"), |p| p.pp(i).param("weight", &[size], Packing::AsStored));
    }
    let total = segments.bytes(DType::F32);
    let largest = segments.iter().map(|segment| segment.bytes(DType::F32)).max().unwrap();
    let estimate = Estimate { seconds: vec![1e-6; 40], copies: CopyTimes::at(4e9) };
    let plan = |bytes| Residency::plan(&segments, &cpu(), bytes, &estimate);
    assert!(matches!(plan(largest - 1), Err(Error::Budget { .. })));
    let mut last = f64::INFINITY;
    for sixteenths in 1..16 {
        let bytes = largest.max(total * sixteenths / 16);
        let residency = plan(bytes).unwrap();
        assert!(residency.device_bytes() <= bytes, "{residency:?}");
        assert!(residency.device_bytes() + largest >= bytes, "half of the budget is unused: {residency:?}");
        assert_eq!(residency.resident_bytes() + residency.streamed_bytes(), total);
        let seconds = residency.simulate(&estimate).seconds;
        assert!(seconds <= last * 1.05, "more memory made a step slower: {last} to {seconds}");
        last = seconds;
    }
    assert_eq!((plan(total).unwrap().ring_bytes(), plan(total).unwrap().streamed_bytes()), (0, 0));
}
