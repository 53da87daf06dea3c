//! The pending images of a set, from which the engines of several devices take.
//!
//! A device stays with the model that it has loaded, and with a group of images that share all but texts and noise, as long as
//! there are such. The portions become smaller towards the end of a group, so that the devices end together. An image that
//! failed on a device goes to another one that has not tried it. A device that was lost is left out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kiln_engine::Job;
use parking_lot::{Condvar, Mutex};

/// The most batches that a device takes at once: their texts are looked at before they are run.
pub(super) const LOOK_AHEAD: usize = 64;

/// An image by its place in the list of the set's images.
pub(super) type Image = (usize, Arc<Job>);

/// A group of images of a model, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) model: usize,
    pub(super) group: usize,
}

/// The queue that all devices share.
pub(super) struct WorkQueue {
    state: Mutex<State>,
    changed: Condvar,
}

/// Images that no device can make any more, with the reason.
pub(super) type Orphans = Vec<(usize, String)>;

struct State {
    groups: Vec<(At, VecDeque<Image>)>,
    /// How many images each group had at the start.
    totals: HashMap<At, usize>,
    devices: Vec<Device>,
    /// The group of each image that was taken.
    homes: HashMap<usize, At>,
    /// The devices that could not make an image, with the last reason.
    tried: HashMap<usize, (Vec<usize>, String)>,
    stopped: bool,
}

#[derive(Default, Clone)]
struct Device {
    at: Option<At>,
    /// Whether it may still give images back.
    works: bool,
    is_lost: bool,
    /// Models that it could not load.
    refused: Vec<usize>,
}

impl Device {
    fn may_load(&self, model: usize) -> bool {
        !self.is_lost && !self.refused.contains(&model)
    }
}

impl WorkQueue {
    /// The groups of each model, for so many devices. None of the groups is empty.
    pub(super) fn new(models: Vec<Vec<Vec<Image>>>, devices: usize) -> Self {
        let mut all = Vec::new();
        for (model, groups) in models.into_iter().enumerate() {
            for (group, images) in groups.into_iter().enumerate() {
                all.push((At { model, group }, images.into()));
            }
        }
        let (homes, tried) = (HashMap::new(), HashMap::new());
        let totals = all.iter().map(|(at, images): &(At, VecDeque<Image>)| (*at, images.len())).collect();
        let devices = vec![Device { works: true, ..Device::default() }; devices];
        let state = State { groups: all, totals, devices, homes, tried, stopped: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The group that a device continues with, and how many images of it there are; `None` if there is none at the moment.
    pub(super) fn next(&self, device: usize) -> Option<(At, usize)> {
        self.state.lock().next(device)
    }

    /// The next group for a device that holds no image. It waits while others may give images back.
    pub(super) fn wait_for_next(&self, device: usize) -> Option<(At, usize)> {
        let mut state = self.state.lock();
        loop {
            if let Some(next) = state.next(device) {
                return Some(next);
            }
            state.devices[device].works = false;
            if state.stopped || !state.devices.iter().any(|device| device.works) {
                self.changed.notify_all();
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// The first image of a group that this device may make.
    pub(super) fn first(&self, device: usize, at: At) -> Option<Image> {
        let state = self.state.lock();
        let (_, images) = state.groups.iter().find(|(known, _)| *known == at)?;
        images.iter().find(|(id, _)| !state.has_tried(device, *id)).cloned()
    }

    /// The size of batches of at most `n` images with which all devices have as many batches of a group, of equal size: with
    /// another size for the last ones a GPU would record steps once more.
    pub(super) fn even(&self, at: At, n: usize) -> usize {
        let state = self.state.lock();
        let devices = state.devices.iter().filter(|device| device.may_load(at.model)).count();
        even(state.totals.get(&at).copied().unwrap_or(n), n, devices)
    }

    /// Takes images of a group for at most so many batches of `n`. Other devices may have taken all.
    pub(super) fn take(&self, device: usize, at: At, (n, batches): (usize, usize)) -> Vec<Image> {
        let mut state = self.state.lock();
        let alive = state.devices.iter().filter(|device| device.may_load(at.model)).count();
        let State { groups, tried, homes, .. } = &mut *state;
        let Some((_, images)) = groups.iter_mut().find(|(known, _)| *known == at) else { return Vec::new() };
        let most = portion(images.len(), (n, batches), alive);
        let is_its = |id: &usize| tried.get(id).is_none_or(|(tried, _)| !tried.contains(&device));
        let mut taken = Vec::with_capacity(most);
        let mut rest = VecDeque::new();
        while let Some(image) = images.pop_front() {
            if taken.len() < most && is_its(&image.0) {
                homes.insert(image.0, at);
                taken.push(image);
                if taken.len() == most {
                    break;
                }
            } else {
                rest.push_back(image);
            }
        }
        rest.extend(images.drain(..));
        *images = rest;
        taken
    }

    /// Returns an image that a device could not make. False where no other device may make it either: then it has failed.
    pub(super) fn pass_on(&self, device: usize, image: Image, error: &str) -> bool {
        let mut state = self.state.lock();
        let (tried, last) = state.tried.entry(image.0).or_default();
        tried.push(device);
        *last = error.into();
        let is_left = state.homes.get(&image.0).is_some_and(|at| state.is_left(at.model, image.0));
        if is_left {
            state.put_back(image);
            self.changed.notify_all();
        }
        is_left
    }

    /// Says that a device cannot load a model, and returns those images of the model that no device can make any more.
    pub(super) fn refuse(&self, device: usize, model: usize, error: &str) -> Orphans {
        let mut state = self.state.lock();
        (state.devices[device].at, state.devices[device].works) = (None, true);
        state.devices[device].refused.push(model);
        let orphans = state.take_orphans(error);
        self.changed.notify_all();
        orphans
    }

    /// Says that a device was lost while it held `images`: they go to the others. Returns what none of them can make. `None` where
    /// no device is left; the images stay pending then.
    pub(super) fn lose(&self, device: usize, images: Vec<Image>, error: &str) -> Option<Orphans> {
        let mut state = self.state.lock();
        let lost = &mut state.devices[device];
        (lost.is_lost, lost.works, lost.at) = (true, false, None);
        images.into_iter().for_each(|image| state.put_back(image));
        self.changed.notify_all();
        if state.devices.iter().all(|device| device.is_lost) { None } else { Some(state.take_orphans(error)) }
    }

    /// Ends the run: no device gets anything more.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

impl State {
    fn has_tried(&self, device: usize, id: usize) -> bool {
        self.tried.get(&id).is_some_and(|(tried, _)| tried.contains(&device))
    }

    /// Whether a device is left that may make an image of this model.
    fn is_left(&self, model: usize, id: usize) -> bool {
        let mut devices = self.devices.iter().enumerate();
        devices.any(|(i, device)| device.may_load(model) && !self.has_tried(i, id))
    }

    /// Chooses a group: the device's own, one of its model, or one of the model at which the fewest devices are.
    fn next(&mut self, device: usize) -> Option<(At, usize)> {
        if self.stopped {
            return None;
        }
        let own = self.devices[device].at;
        let at_model = |model| self.devices.iter().filter(|one| one.at.is_some_and(|at| at.model == model)).count();
        let at_group = |group| self.devices.iter().filter(|one| one.at == Some(group)).count();
        let may_run = |at: At, images: &VecDeque<Image>| {
            self.devices[device].may_load(at.model) && images.iter().any(|(id, _)| !self.has_tried(device, *id))
        };
        let open = self.groups.iter().filter(|(at, images)| may_run(*at, images));
        let (at, images) = open.min_by_key(|(at, _)| {
            let is_own = own == Some(*at);
            let is_of_model = own.is_some_and(|own| own.model == at.model);
            (!is_own, !is_of_model, at_model(at.model), at_group(*at), *at)
        })?;
        let next = (*at, images.len());
        (self.devices[device].at, self.devices[device].works) = (Some(next.0), true);
        Some(next)
    }

    fn put_back(&mut self, image: Image) {
        let home = self.homes.get(&image.0).copied();
        if let Some((_, images)) = self.groups.iter_mut().find(|(at, _)| Some(*at) == home) {
            images.push_front(image);
        }
    }

    /// Takes the waiting images that no device can make. `error` is the reason for those that none has tried.
    fn take_orphans(&mut self, error: &str) -> Orphans {
        let mut orphans = Orphans::new();
        let mut groups = std::mem::take(&mut self.groups);
        for (at, images) in &mut groups {
            let (left, lost): (VecDeque<Image>, VecDeque<Image>) =
                images.drain(..).partition(|(id, _)| self.is_left(at.model, *id));
            *images = left;
            for (id, _) in lost {
                let known = self.tried.get(&id).map(|(_, error)| error.clone());
                orphans.push((id, known.unwrap_or_else(|| error.into())));
            }
        }
        self.groups = groups;
        orphans
    }
}

/// How many of `left` images a device takes at once, where `devices` take from them in batches of `n`. One device takes as
/// many `batches` as it may. Several take half of their share while that is more than a batch, and whole batches then.
fn portion(left: usize, (n, batches): (usize, usize), devices: usize) -> usize {
    let n = n.max(1);
    let most = batches.max(1).saturating_mul(n);
    if devices <= 1 {
        return left.min(most);
    }
    let share = left / (2 * devices);
    let wanted = if share > n { (share - share % n).min(most) } else { n };
    wanted.min(left)
}

/// The size of equal batches of at most `n` of `total` images, as many for each of several devices. One device has `n`.
fn even(total: usize, n: usize, devices: usize) -> usize {
    if devices <= 1 { n.max(1) } else { equal(total.div_ceil(devices), n) }
}

/// The size of equal batches of at most `n` images, as few batches of `images` as there can be.
pub(super) fn equal(images: usize, n: usize) -> usize {
    let images = images.max(1);
    images.div_ceil(images.div_ceil(n.max(1)))
}

#[cfg(test)]
mod tests;
