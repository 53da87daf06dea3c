//! From the last step of a batch to its images: a second pass, decoding, and the end of the task.

use std::time::Duration;

use kiln_engine::{Event, GroupId, Result, Stage};

use super::active::{Active, news_of};
use super::decoding::{Decoded, NotDecoded, Undecoded, start};
use super::stop::Stop;
use super::task::{End, News, Task};
use super::worker::Worker;

/// The time between two looks at tasks of which all images are being decoded.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Worker {
    /// Hands on what the thread that decodes has done. Where nothing else can be done it waits a short time.
    pub(super) fn take_decoded(&mut self, waits: bool) {
        let waits = waits && self.tasks.iter().any(|active| active.decoding > 0);
        let Some(decoding) = &self.decoding else { return };
        for Decoded { arrived, events, image } in decoding.done(if waits { LOOK_EVERY } else { Duration::ZERO }) {
            // The task may have been canceled meanwhile.
            let Some(place) = self.tasks.iter().position(|active| active.arrived == arrived) else { continue };
            let active = &mut self.tasks[place];
            let stop = Stop::of(&active.task, &self.shared);
            active.decoding -= 1;
            events.into_iter().filter_map(news_of).for_each(|news| active.task.listener.tell(news));
            let image = match (image, self.engines.current_mut()) {
                (Ok(image), _) => Ok(*image),
                (Err(NotDecoded { error, left: Some((latents, job)) }), Some(engine)) => {
                    tracing::debug!("an image is decoded between the steps: {error}");
                    let mut on_event = |event| {
                        news_of(event).into_iter().for_each(|news| active.task.listener.tell(news));
                        stop.flow()
                    };
                    stop.sign().during(|| engine.decode_latents(&latents, &job, &mut on_event))
                }
                (Err(NotDecoded { error, .. }), _) => Err(error),
            };
            match image {
                Err(error) => self.give_up(place, &error),
                Ok(image) => {
                    self.shared.metrics.images.inc();
                    active.task.listener.tell(News::Image(Box::new(image)));
                    if active.is_done() {
                        self.end(place, End::Done);
                    }
                }
            }
        }
    }

    /// Decodes a group whose steps are done, or has it go on with its second pass.
    pub(super) fn finish_group(&mut self, lane: usize, group: GroupId) {
        let of_task = |active: &Active| active.parts.iter().position(|part| part.lane == lane && part.group == group);
        let found = self.tasks.iter().enumerate().find_map(|(place, active)| Some((place, of_task(active)?)));
        let Some((place, part)) = found else { return };
        let done = match self.begin_second_pass(place, part) {
            Ok(true) => return,
            Ok(false) => self.finish_part(place, part),
            Err(error) => Err(error),
        };
        match done {
            Err(error) => self.give_up(place, &error),
            Ok(()) if self.tasks[place].is_done() => self.end(place, End::Done),
            Ok(()) => {}
        }
    }

    /// Has a batch whose steps are done go on with its second pass. False if there is none.
    fn begin_second_pass(&mut self, place: usize, part: usize) -> Result<bool> {
        let Self { engines, lanes, tasks, shared, .. } = self;
        let Some(engine) = engines.current_mut() else { return Ok(false) };
        let stop = Stop::of(&tasks[place].task, shared);
        let Active { task: Task { job, listener, .. }, parts, .. } = &mut tasks[place];
        let part = &mut parts[part];
        let (Some(running), Some(pass)) = (lanes.running(part.lane), job.second_pass()) else { return Ok(false) };
        let images = (&**job, part.number * job.batch_size);
        let mut on_event = |event| {
            news_of(event).into_iter().for_each(|news| listener.tell(news));
            stop.flow()
        };
        let group = stop.sign().during(|| engine.begin_second_pass(running, part.group, images, &mut on_event))?;
        let Some(group) = group else { return Ok(false) };
        (part.group, part.before, part.size) = (group, part.done, [pass.job.width, pass.job.height]);
        listener.tell(News::Stage(Stage::Denoise));
        Ok(true)
    }

    /// Ends the first batch of a task that runs, with its images as they are.
    pub(super) fn finish_early(&mut self, place: usize) -> Result<()> {
        if let Some(part) = self.tasks[place].parts.first()
            && let Some(running) = self.lanes.running(part.lane)
        {
            running.leave_out_second_pass(part.group);
        }
        self.finish_part(place, 0)
    }

    /// Takes a batch of a task out of the running batch, and decodes its images: on the thread that does so while steps run,
    /// if memory has room for both.
    pub(super) fn finish_part(&mut self, place: usize, part: usize) -> Result<()> {
        self.room = None;
        let Self { engines, lanes, tasks, shared, decoding, .. } = self;
        let Some(engine) = engines.current_mut() else { return Ok(()) };
        let active = &mut tasks[place];
        let part = active.parts.remove(part);
        active.finished += 1;
        let Some(running) = lanes.running(part.lane) else { return Ok(()) };
        let stop = Stop::of(&active.task, shared);
        let Task { job, listener, .. } = &mut active.task;
        let before = (active.finished - 1) * active.evaluations;
        let total = job.batch_count * active.evaluations;
        let mut on_event = |event| {
            if let Event::Step { done, .. } = event {
                listener.tell(News::Step { done: before + done, total }); // of a second pass with LoRAs of its own
            }
            news_of(event).into_iter().for_each(|news| listener.tell(news));
            stop.flow()
        };
        let images = (&**job, part.number * job.batch_size);
        let all = stop.sign().during(|| engine.take_latents(running, part.group, images, &mut on_event))?;
        let networks = engine.overlapped();
        if networks.is_some() && decoding.is_none() {
            match start() {
                Ok(thread) => *decoding = Some(thread),
                Err(error) => tracing::warn!("images are decoded between the steps: {error}"),
            }
        }
        for latents in all {
            match (&*decoding, &networks) {
                (Some(decoding), Some(networks)) => {
                    let (arrived, job, sign) = (active.arrived, job.clone(), stop.sign());
                    let image = Undecoded { arrived, job, latents, sign };
                    decoding.give((image, networks.clone(), engine.origin()))?;
                    active.decoding += 1;
                }
                _ => {
                    let mut on_event = |event| {
                        news_of(event).into_iter().for_each(|news| listener.tell(news));
                        stop.flow()
                    };
                    let image = stop.sign().during(|| engine.decode_latents(&latents.read()?, job, &mut on_event))?;
                    shared.metrics.images.inc();
                    listener.tell(News::Image(Box::new(image)));
                }
            }
        }
        active.tell_progress();
        Ok(())
    }
}
