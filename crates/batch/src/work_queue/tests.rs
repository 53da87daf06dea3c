use kiln_engine::{ModelFolder, Request};

use super::*;

fn queue(groups: &[&[usize]], devices: usize) -> WorkQueue {
    let model = ModelFolder::open(&kiln_testkit::fixtures("models/sd1")).unwrap();
    let request = Request { prompt: "a".into(), width: Some(64), height: Some(64), ..Request::default() };
    let job = Arc::new(request.resolve(&model).unwrap());
    let mut id = 0;
    let mut images = |n: usize| -> Vec<Image> {
        let first = id;
        id += n;
        (first..id).map(|id| (id, job.clone())).collect()
    };
    let models = groups.iter().map(|sizes| sizes.iter().map(|&n| images(n)).collect()).collect();
    WorkQueue::new(models, devices)
}

fn at(model: usize, group: usize) -> At {
    At { model, group }
}

#[test]
fn devices_stay_with_their_models_and_help_others_at_the_end() {
    let queue = queue(&[&[4, 2], &[3]], 2);
    assert_eq!((queue.next(0), queue.next(1)), (Some((at(0, 0), 4)), Some((at(1, 0), 3))));
    assert_eq!(queue.take(1, at(1, 0), (9, LOOK_AHEAD)).len(), 3);
    assert_eq!(queue.next(1), Some((at(0, 1), 2)), "the group of the other model where no one is");
    assert_eq!(queue.take(1, at(0, 1), (9, LOOK_AHEAD)).len(), 2);
    assert_eq!(queue.next(1), Some((at(0, 0), 4)));
    assert_eq!(queue.take(0, at(0, 0), (1, LOOK_AHEAD)).len(), 1);
}

#[test]
fn batches_are_even_over_the_devices() {
    assert_eq!([512, 500, 256, 100, 10, 1].map(|total| even(total, 64, 2)), [64, 63, 64, 50, 5, 1]);
    assert_eq!((even(100, 64, 1), even(9, 2, 4), even(7, 8, 3)), (64, 2, 3));
    let queue = queue(&[&[10]], 2);
    assert_eq!(queue.even(at(0, 0), 8), 5);
    assert_eq!(
        (queue.take(0, at(0, 0), (5, LOOK_AHEAD)).len(), queue.even(at(0, 0), 8)),
        (5, 5),
        "also for the one that comes later"
    );
}

#[test]
fn portions_shrink_towards_the_end() {
    let of = |left, devices| portion(left, (8, LOOK_AHEAD), devices);
    assert_eq!([1000, 100, 32, 10, 8, 5, 1].map(|left| of(left, 2)), [248, 24, 8, 8, 8, 5, 1]);
    assert_eq!([1000, 5].map(|left| of(left, 1)), [512, 5]);
    assert_eq!((portion(1000, (8, 4), 1), portion(1000, (8, 4), 2), portion(20, (8, 4), 1)), (32, 32, 20));
    for (n, devices) in [(1, 2), (3, 4), (8, 3)] {
        let mut left = 500;
        while left > 0 {
            let taken = portion(left, (n, LOOK_AHEAD), devices);
            assert!(taken > 0 && taken <= left, "{taken} of {left}");
            left -= taken;
        }
    }
}

#[test]
fn images_go_to_devices_that_have_not_tried_them() {
    let queue = queue(&[&[2]], 2);
    queue.next(0).unwrap();
    let mut taken = queue.take(0, at(0, 0), (1, LOOK_AHEAD));
    taken.extend(queue.take(0, at(0, 0), (1, LOOK_AHEAD)));
    let [first, second] = &taken[..] else { panic!("{}", taken.len()) };
    assert!(queue.pass_on(0, first.clone(), "no room"));
    assert_eq!(queue.next(0), None, "it has tried that one");
    queue.next(1).unwrap();
    assert_eq!(queue.take(1, at(0, 0), (4, LOOK_AHEAD)).len(), 1);
    assert!(!queue.pass_on(1, first.clone(), "no room"), "no one is left");
    assert!(queue.pass_on(0, second.clone(), "no room"));
    assert_eq!(queue.lose(1, Vec::new(), "lost"), Some(vec![(second.0, "no room".into())]));
}

#[test]
fn a_lost_device_leaves_its_images_to_the_others() {
    let queue = queue(&[&[3]], 2);
    queue.next(0).unwrap();
    let held = queue.take(0, at(0, 0), (2, LOOK_AHEAD));
    assert_eq!(queue.lose(0, held, "lost"), Some(Vec::new()));
    assert_eq!((queue.next(0), queue.next(1)), (None, Some((at(0, 0), 3))));
    let held = queue.take(1, at(0, 0), (9, LOOK_AHEAD));
    assert_eq!((held.len(), queue.lose(1, held, "lost")), (3, None), "no device is left");
}

#[test]
fn a_model_that_no_device_can_load_fails() {
    let queue = queue(&[&[2], &[1]], 2);
    queue.next(0).unwrap();
    queue.next(1).unwrap();
    assert_eq!(queue.refuse(0, 0, "damaged"), []);
    let orphans = queue.refuse(1, 0, "damaged");
    assert_eq!(orphans, [(0, "damaged".into()), (1, "damaged".into())]);
    assert_eq!(queue.next(0), Some((at(1, 0), 1)));
}

#[test]
fn a_device_waits_for_what_others_give_back() {
    let queue = queue(&[&[1]], 2);
    queue.next(0).unwrap();
    let held = queue.take(0, at(0, 0), (1, LOOK_AHEAD));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| queue.wait_for_next(1));
        assert!(queue.pass_on(0, held[0].clone(), "no room"));
        assert_eq!(waits.join().unwrap(), Some((at(0, 0), 1)));
    });
    assert_eq!(queue.take(1, at(0, 0), (1, LOOK_AHEAD)).len(), 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| queue.wait_for_next(0));
        assert_eq!(queue.wait_for_next(1), None);
        assert_eq!(waits.join().unwrap(), None);
    });
}

/// Two devices make a set of `images` in batches of `n`, each batch in a second; the second device begins later. Returns when each of them
/// ends, and the images that each has made.
fn simulated(images: usize, n: usize, late: f64) -> ([f64; 2], [usize; 2]) {
    let queue = queue(&[&[images]], 2);
    let (mut clocks, mut made, mut open) = ([0.0, late], [0, 0], [true, true]);
    let mut taken: [VecDeque<Image>; 2] = Default::default();
    while let Some(device) = (0..2).filter(|&device| open[device]).min_by(|&a, &b| clocks[a].total_cmp(&clocks[b])) {
        if taken[device].is_empty() {
            let Some((at, _)) = queue.next(device) else {
                open[device] = false;
                continue;
            };
            let size = queue.even(at, n);
            taken[device] = queue.take(device, at, (size, LOOK_AHEAD)).into();
        }
        let batch = taken[device].len().min(queue.even(at(0, 0), n));
        taken[device].drain(..batch);
        made[device] += batch;
        clocks[device] += 1.0;
    }
    (clocks, made)
}

#[test]
fn two_devices_end_within_a_batch_of_each_other() {
    for (images, n) in [(2048, 64), (512, 64), (192, 16), (128, 6), (100, 1), (7, 4)] {
        for late in [0.0, 0.3, 2.5] {
            let ([one, two], made) = simulated(images, n, late);
            assert_eq!(made.iter().sum::<usize>(), images);
            let has_work_for_both = late < images as f64 / n as f64 / 2.0;
            assert!(!has_work_for_both || (one - two).abs() <= 1.0 + 1e-9, "{images} by {n}, {late}: {one}, {two}");
        }
    }
    let ([one, two], made) = simulated(2048, 64, 0.0);
    assert_eq!((one, two, made), (16.0, 16.0, [1024, 1024]));
}
