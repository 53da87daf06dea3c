//! Which worker gets a task, where several run: each has an engine on a device of its own.

use std::collections::VecDeque;
use std::sync::Arc;

use kiln_engine::MemoryNeed;
use kiln_models::ModelFolder;

use super::active::Active;
use super::order::in_order;
use super::queue::Load;
use super::speed::Speed;
use crate::metrics::EngineNumbers;

/// Loading a model takes about as long as 50 calls of the denoiser for an image of 512x512.
const SWITCH: usize = 50 * 512 * 512;

/// The state of a worker that others see.
#[derive(Default)]
pub(super) struct Seat {
    /// Tasks that it has not taken yet.
    pub(super) inbox: VecDeque<Active>,
    /// Its current load.
    pub(super) load: Load,
    /// The work of its tasks ([`Active::remaining`]).
    work: usize,
    /// How fast it works.
    pub(super) speed: Speed,
    /// The model that it is about to load.
    loading: Option<Arc<ModelFolder>>,
    /// The models whose weights are in the memory of its device.
    loaded: Vec<Arc<ModelFolder>>,
    /// Whether it waits for something to do.
    pub(super) is_idle: bool,
    /// Whether it has ended.
    pub(super) is_gone: bool,
    /// The counters of its engine.
    pub(super) numbers: EngineNumbers,
    /// The memory that its next images need, if it has a model.
    pub(super) need: Option<MemoryNeed>,
}

impl Seat {
    /// The work before a new task, with that of loading its model.
    fn cost(&self, model: &Arc<ModelFolder>) -> usize {
        let switch = if self.has(model) { 0 } else { SWITCH };
        self.all_work() + switch
    }

    /// The work of all tasks that are here.
    pub(super) fn all_work(&self) -> usize {
        let waiting: usize = self.inbox.iter().map(Active::remaining).sum();
        self.work + waiting
    }

    /// Whether it has a model, or is about to load it.
    fn has(&self, model: &Arc<ModelFolder>) -> bool {
        self.has_loaded(model) || self.loading.as_ref().is_some_and(|own| Arc::ptr_eq(own, model))
    }

    /// Whether a model's weights are in the memory of its device.
    pub(super) fn has_loaded(&self, model: &Arc<ModelFolder>) -> bool {
        self.loaded.iter().any(|loaded| Arc::ptr_eq(loaded, model))
    }

    /// Says which model it loads.
    pub(super) fn loads(&mut self, model: &Arc<ModelFolder>) {
        self.loading = Some(model.clone());
    }

    /// Says which models it has loaded.
    pub(super) fn set_loaded<'a>(&mut self, models: impl Iterator<Item = &'a Arc<ModelFolder>>) {
        (self.loading, self.loaded) = (None, models.cloned().collect());
    }

    /// Says what it does, with the work of its tasks ([`Active::remaining`]).
    pub(super) fn set_load(&mut self, load: Load, work: usize) {
        (self.load, self.work) = (load, work);
    }

    /// Tasks that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.load.waiting + self.inbox.len()
    }
}

/// The worker for a task: that with the least work before it, of those that have not tried it. `None` if all have.
pub(super) fn choose(seats: &[Seat], task: &Active) -> Option<usize> {
    let open = seats.iter().enumerate().filter(|(i, seat)| !seat.is_gone && !task.tried.contains(i));
    open.min_by_key(|(i, seat)| (seat.cost(&task.task.model), *i)).map(|(i, _)| i)
}

/// The task of a busy worker that an idle one takes over, with the idle one's number: the oldest that has not started. The worker
/// keeps at least one. Another model is loaded only if that is worth its time.
pub(super) fn help(seats: &[Seat], tasks: &[Active]) -> Option<(usize, usize)> {
    if tasks.len() < 2 {
        return None;
    }
    let work: usize = tasks.iter().map(Active::remaining).sum();
    let idle = || seats.iter().enumerate().filter(|(_, seat)| seat.is_idle && !seat.is_gone && seat.inbox.is_empty());
    let of_task = |(place, task): (usize, &Active)| {
        let takes = |(i, seat): &(usize, &Seat)| {
            !task.tried.contains(i) && (seat.has(&task.task.model) || work > task.remaining() + SWITCH)
        };
        let taker = idle().filter(takes).min_by_key(|(i, seat)| (!seat.has(&task.task.model), *i))?;
        Some((place, taker.0))
    };
    let mut waiting: Vec<(usize, &Active)> =
        tasks.iter().enumerate().filter(|(_, task)| !task.has_started() && task.failed.is_none()).collect();
    waiting.sort_by_key(|(_, task)| task.arrived);
    let places: Vec<(&str, u64)> =
        waiting.iter().map(|(_, task)| (task.task.client.as_str(), task.task.control.place())).collect();
    in_order(&places).into_iter().find_map(|i| of_task(waiting[i]))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use kiln_engine::Request;
    use kiln_testkit::fixtures;

    use super::super::task::{Control, Listener, News, Previews, Task};
    use super::*;

    struct Deaf;

    impl Listener for Deaf {
        fn tell(&mut self, _: News) {}
    }

    fn model() -> Arc<ModelFolder> {
        Arc::new(ModelFolder::open(&fixtures("models/sd1")).unwrap())
    }

    /// A task of `steps` steps.
    fn task(model: &Arc<ModelFolder>, arrived: u64, steps: usize) -> Active {
        let sampler = Some("euler".parse().unwrap());
        let request =
            Request { prompt: "a".into(), width: Some(512), height: Some(512), sampler, ..Request::default() };
        let job = Arc::new(Request { steps: Some(steps), ..request }.resolve(model).unwrap());
        let control = Control::with_previews(Previews::None);
        let (client, priority, submitted, limit) = (String::new(), 0, Instant::now(), None);
        let listener = Box::new(Deaf);
        let task = Task { client, model: model.clone(), priority, submitted, limit, job, control, listener };
        Active::new(task, arrived).map_err(|refused| refused.1).unwrap()
    }

    fn seats<const N: usize>(models: [&Arc<ModelFolder>; N]) -> [Seat; N] {
        models.map(|model| Seat { loaded: vec![model.clone()], ..Seat::default() })
    }

    #[test]
    fn the_least_work_and_the_loaded_model_decide() {
        let (a, b) = (model(), model());
        let mut seats = seats([&a, &b, &a]);
        assert_eq!(choose(&seats, &task(&a, 0, 9)), Some(0));
        assert_eq!(choose(&seats, &task(&b, 0, 9)), Some(1));
        seats[0].inbox.push_back(task(&a, 0, 9));
        assert_eq!(choose(&seats, &task(&a, 1, 9)), Some(2));
        seats[2].set_load(Load::default(), SWITCH + 1);
        seats[0].set_load(Load::default(), SWITCH + 1);
        assert_eq!(choose(&seats, &task(&a, 1, 9)), Some(1), "loading is sooner done than the others' work");
        seats[1].is_gone = true;
        let mut tried = task(&a, 1, 9);
        tried.tried = vec![0];
        assert_eq!(choose(&seats, &tried), Some(2));
        tried.tried.push(2);
        assert_eq!(choose(&seats, &tried), None);
    }

    #[test]
    fn idle_workers_take_over_what_waits() {
        let (a, b) = (model(), model());
        let mut seats = seats([&a, &b, &a]);
        let tasks = [task(&a, 5, 9), task(&a, 4, 9)];
        assert_eq!(help(&seats, &tasks), None, "no one is idle");
        seats[1].is_idle = true;
        assert_eq!(help(&seats, &tasks), None, "not worth another model");
        seats[2].is_idle = true;
        assert_eq!(help(&seats, &tasks), Some((1, 2)), "the oldest");
        assert_eq!(help(&seats, &tasks[..1]), None, "its last task stays");
        seats[2].is_gone = true;
        let long = [task(&a, 5, 900), task(&a, 4, 9)];
        assert_eq!(help(&seats, &long), Some((1, 1)));
    }
}
