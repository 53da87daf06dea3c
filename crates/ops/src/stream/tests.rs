use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_mempool::{PinnedConfig, PinnedPool};

use super::*;
use crate::test_support::{TARGET, exact};

/// Two slabs of different values; the second is too large for one staging buffer.
fn slabs(pool: Option<&PinnedPool>) -> [(Tensor, HostSlab); 2] {
    [(1000usize, 1f32), (3 << 20, 2.0)].map(|(elements, start)| {
        let values: Vec<f32> = (0..elements).map(|i| start + (i % 1009) as f32).collect();
        let slab = Tensor::from_vec(values, elements, &Device::Cpu).unwrap();
        (slab.clone(), HostSlab::new(slab, pool).unwrap())
    })
}

#[test]
fn the_cpu_has_no_ring() {
    let slab = HostSlab::new(Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap(), None).unwrap();
    assert!(!slab.is_pinned() && Ring::new(&Device::Cpu, DType::F32, 4, vec![Arc::new(slab)], true).is_err());
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn copies_from_pinned_and_pageable_memory_are_ordered() {
    let device = &TARGET.0;
    let elements = 4 << 20;
    for (cap, own_stream) in [(64 << 20, true), (64 << 20, false), (1 << 10, true)] {
        let pool = PinnedPool::new(0, PinnedConfig::with_cap(cap)).unwrap();
        let [(first, a), (second, b)] = slabs(Some(&pool));
        assert_eq!(a.is_pinned(), cap > 1 << 20);
        let mut ring = Ring::new(device, DType::F32, elements, vec![Arc::new(a), Arc::new(b)], own_stream).unwrap();
        for lap in 0..5 {
            // The same range for both, so that each copy must wait for the sum before it.
            for (slab, expected) in [(0, &first), (1, &second)] {
                let after = if lap == 0 && slab == 0 { vec![] } else { vec![Arc::new(ring.point().unwrap())] };
                // In two parts, of which the second waits for nothing new.
                let bytes = expected.elem_count() * 4;
                ring.copy(slab, 0..1024, 1024, &after).unwrap();
                let copy = ring.copy(slab, 1024..bytes, 2048, &[]).unwrap();
                ring.wait(&copy).unwrap();
                let place = ring.tensor().narrow(0, 256, expected.elem_count()).unwrap();
                let found = (place + 0.0).unwrap();
                let difference = (exact(&found) - exact(expected)).unwrap().abs().unwrap();
                assert_eq!(difference.max_all().unwrap().to_scalar::<f32>().unwrap(), 0.0, "lap {lap}");
                assert!(copy.is_done().unwrap() && copy.seconds().unwrap() > 0.0);
                let point = ring.point().unwrap();
                assert!(copy.seconds_after(&point).unwrap() <= 0.0);
                assert!(after.iter().all(|earlier| point.seconds_after(earlier).unwrap() > 0.0));
            }
        }
        let mut refused = |slab, part, offset| assert!(ring.copy(slab, part, offset, &[]).is_err());
        refused(1, 0..12 << 20, 8 << 20);
        refused(1, 0..(12 << 20) + 1, 0);
        refused(2, 0..4, 0);
    }
}

/// A slab that is read for each copy has the same bytes in each lap, in order with slabs in memory. One that cannot be read, or that has
/// another size, is the error of its copy, and of no other.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn slabs_are_read_anew() {
    let [(first, a), (second, _)] = slabs(None);
    let (bytes, read) = (second.elem_count() * 4, second.clone());
    let b = HostSlab::read_anew(bytes, move || Ok(read.clone()));
    let fails = HostSlab::read_anew(16, || Err("the file is gone".into()));
    let grows = HostSlab::read_anew(16, || Ok(Tensor::zeros(5, DType::F32, &Device::Cpu)?));
    let slabs = [a, b, fails, grows].map(Arc::new).to_vec();
    let mut ring = Ring::new(&TARGET.0, DType::F32, 4 << 20, slabs, true).unwrap();
    for lap in 0..3 {
        for (slab, expected) in [(0, &first), (1, &second)] {
            let after = vec![Arc::new(ring.point().unwrap())];
            let bytes = expected.elem_count() * 4;
            ring.copy(slab, 0..1024, 0, &after).unwrap();
            let copy = ring.copy(slab, 1024..bytes, 1024, &[]).unwrap();
            ring.wait(&copy).unwrap();
            let found = (ring.tensor().narrow(0, 0, expected.elem_count()).unwrap() + 0.0).unwrap();
            let difference = (exact(&found) - exact(expected)).unwrap().abs().unwrap();
            assert_eq!(difference.max_all().unwrap().to_scalar::<f32>().unwrap(), 0.0, "lap {lap}");
        }
        for (slab, expected) in [(2, "the file is gone"), (3, "another size")] {
            let copy = ring.copy(slab, 0..16, 0, &[]).unwrap();
            let message = ring.wait(&copy).err().unwrap().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}

#[test]
fn the_cpu_has_no_link() {
    assert!(LinkSpeed::measure(&Device::Cpu).is_err());
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn the_link_has_plausible_speeds() {
    let LinkSpeed { pinned, pageable, seconds_per_copy, seconds_per_wait } = LinkSpeed::measure(&TARGET.0).unwrap();
    assert!(pinned > 5e8 && pinned < 1e12, "{pinned} bytes per second");
    assert!(pageable > 1e8 && pageable < 1.5 * pinned, "{pageable} bytes per second, pinned {pinned}");
    assert!((0.0..1e-3).contains(&seconds_per_copy) && (0.0..1e-3).contains(&seconds_per_wait));
}
