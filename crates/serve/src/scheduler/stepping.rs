//! One step: who takes part in it, who joins before it, and what is reported after it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kiln_engine::{Error, Event, GroupId, Result, Stage, StopSign};

use super::active::{Active, Part, news_of};
use super::policy::Candidate;
use super::stop::Stop;
use super::task::{News, Task};
use super::worker::Worker;

/// A choice: the place of a task, and of its batch that runs, or none for its next batch.
type Chosen = (usize, Option<usize>);

impl Worker {
    /// Who takes part in the next step, all of one lane, whose number comes with them.
    fn choose(&mut self) -> (usize, Vec<Chosen>) {
        let may_start = !self.is_leaving();
        let staying = self.lanes.staying();
        let mut all: Vec<(usize, Chosen, Candidate<'_>)> = Vec::new();
        for (place, active) in self.tasks.iter().enumerate() {
            if Arc::ptr_eq(&active.task.model, &self.model) {
                let lane = self.lanes.of(&active.task.job);
                let own = active.candidates(lane, may_start);
                all.extend(own.map(|(part, candidate)| (lane, (place, part), candidate)));
            }
        }
        if all.iter().any(|(lane, ..)| Some(*lane) == staying) {
            all.retain(|(lane, ..)| Some(*lane) == staying);
        }
        let (places, candidates): (Vec<(usize, Chosen)>, Vec<Candidate<'_>>) =
            all.into_iter().map(|(lane, chosen, candidate)| ((lane, chosen), candidate)).unzip();
        let chosen: Vec<(usize, Chosen)> =
            self.policy.choose(&candidates, self.room).into_iter().map(|i| places[i]).collect();
        (chosen.first().map_or(0, |(lane, _)| *lane), chosen.into_iter().map(|(_, chosen)| chosen).collect())
    }

    /// One step of the chosen tasks. False if there is none.
    pub(super) fn advance(&mut self) -> bool {
        let (lane, chosen) = self.choose();
        if !chosen.is_empty() {
            self.advance_chosen(lane, &chosen);
        }
        !chosen.is_empty()
    }

    fn advance_chosen(&mut self, lane: usize, chosen: &[Chosen]) {
        let arrived: Vec<u64> = chosen.iter().map(|(place, _)| self.tasks[*place].arrived).collect();
        let Some(engine) = self.engines.current_mut() else { return };
        if let Err(error) = self.lanes.enter(lane, engine) {
            return self.end_all(&arrived, &error);
        }
        let mut active: Vec<GroupId> =
            chosen.iter().filter_map(|(place, part)| Some(self.tasks[*place].parts[(*part)?].group)).collect();
        let begin = Instant::now();
        if let Err(error) = self.prepare(lane, chosen, &mut active) {
            return self.step_failed(&arrived, chosen.len(), &error);
        }
        let images: usize = self.images_of(&active, lane);
        if images == 0 {
            return; // none could join
        }
        match self.step(lane, &active) {
            Err(error) => self.step_failed(&arrived, active.len(), &error),
            Ok(finished) => {
                self.shared.metrics.step(images, begin.elapsed());
                self.worked += self.work_of(&active, lane);
                self.after_step(lane, &active);
                finished.into_iter().for_each(|group| self.finish_group(lane, group));
            }
        }
    }

    /// Has those who are chosen and wait join, and the others of the lane pause.
    fn prepare(&mut self, lane: usize, chosen: &[Chosen], active: &mut Vec<GroupId>) -> Result<()> {
        self.select(lane, active)?;
        let joining = || chosen.iter().filter(|(_, part)| part.is_none());
        if joining().next().is_some()
            && let Some(engine) = self.engines.current_mut()
        {
            engine.foresee_joining(joining().map(|(place, _)| &*self.tasks[*place].task.job));
        }
        for (place, _) in joining() {
            match self.join(lane, *place) {
                Ok(group) => active.push(group),
                // It waits until there is room.
                Err(error) if is_no_room(&error) && !active.is_empty() => {
                    self.room = Some(self.images_of(active, lane));
                    self.shared.metrics.out_of_memory.inc();
                }
                Err(error) if active.is_empty() && chosen.len() == 1 => return Err(error),
                Err(error) => self.tasks[*place].failed = Some(error),
            }
        }
        self.select(lane, active)
    }

    fn select(&mut self, lane: usize, active: &[GroupId]) -> Result<()> {
        match (self.engines.current_mut(), self.lanes.running(lane)) {
            (Some(engine), Some(running)) => engine.select(running, active),
            _ => Ok(()),
        }
    }

    /// Has the next batch of a task join.
    fn join(&mut self, lane: usize, place: usize) -> Result<GroupId> {
        let Self { engines, lanes, tasks, shared, .. } = self;
        let Some(running) = lanes.running(lane) else { return Err(Error::Interrupted) };
        let active = &mut tasks[place];
        engines.make_room(running, &active.task.job)?;
        let Some(engine) = engines.current_mut() else { return Err(Error::Interrupted) };
        let stop = Stop::of(&active.task, shared);
        let Active { task: Task { job, listener, .. }, next, parts, .. } = active;
        if *next == 0 {
            listener.tell(News::Started);
        }
        let mut on_event = |event| {
            news_of(event).into_iter().for_each(|news| listener.tell(news));
            stop.flow()
        };
        let group = stop.sign().during(|| engine.join(running, job, *next * job.batch_size, &mut on_event))?;
        if *next == 0 || parts.is_empty() {
            listener.tell(News::Stage(Stage::Denoise));
        }
        active.start_part(lane, group);
        Ok(group)
    }

    /// One call of the denoiser for these groups.
    fn step(&mut self, lane: usize, active: &[GroupId]) -> Result<Vec<GroupId>> {
        let Self { engines, lanes, tasks, shared, .. } = self;
        let Some(engine) = engines.current_mut() else { return Ok(Vec::new()) };
        let Some(running) = lanes.running(lane) else { return Ok(Vec::new()) };
        let takes_part = |task: &&Active| task.parts.iter().any(|p| p.lane == lane && active.contains(&p.group));
        let stops: Vec<Stop> = tasks.iter().filter(takes_part).map(|task| Stop::of(&task.task, shared)).collect();
        for task in tasks.iter() {
            for part in task.parts.iter().filter(|part| part.lane == lane && active.contains(&part.group)) {
                running.keep_prediction(part.group, task.wants_preview(part));
            }
        }
        // Others go on with a task that must not.
        let sign = StopSign::new(move || stops.iter().all(Stop::is_there));
        let mut on_event = |event| {
            if let Event::Smaller { .. } = event {
                shared.metrics.out_of_memory.inc();
            }
            if sign.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        sign.during(|| engine.step(running, &mut on_event))
    }

    /// Reports progress and previews of a step.
    fn after_step(&mut self, lane: usize, active: &[GroupId]) {
        let Self { engines, lanes, tasks, .. } = self;
        let Some(engine) = engines.current_mut() else { return };
        let Some(running) = lanes.running(lane) else { return };
        for task in tasks {
            let mut moved = false;
            for part in task.parts.iter_mut().filter(|part| part.lane == lane && active.contains(&part.group)) {
                moved = true;
                part.done = running.progress(part.group).map_or(part.done, |(done, _)| part.before + done);
                let first = part.number * task.task.job.batch_size;
                match engine.preview(running, part.group) {
                    Ok(images) if images.is_empty() => {}
                    Ok(images) => {
                        part.previewed = Some(Instant::now());
                        for (place, image) in images.into_iter().enumerate() {
                            let news = News::Preview { index: first + place, step: part.done, image };
                            task.task.listener.tell(news);
                        }
                    }
                    Err(error) => tracing::warn!("a preview: {error}"),
                }
                running.keep_prediction(part.group, false);
            }
            if moved {
                task.tell_progress();
            }
        }
    }

    /// A step of `n` batches failed: one batch alone fails its task; several are tried alone.
    fn step_failed(&mut self, arrived: &[u64], n: usize, error: &Error) {
        if matches!(error, Error::Interrupted) {
            return; // tasks that must not go on end before the next step
        }
        if is_no_room(error) {
            self.shared.metrics.out_of_memory.inc();
        }
        if n > 1 {
            tracing::warn!("a step of {n} batches failed; they run one by one: {error}");
            self.room = Some(1);
        } else {
            self.end_all(&arrived[..arrived.len().min(1)], error);
        }
    }

    fn end_all(&mut self, arrived: &[u64], error: &Error) {
        for number in arrived {
            if let Some(place) = self.tasks.iter().position(|active| active.arrived == *number) {
                self.give_up(place, error);
            }
        }
    }

    /// How many images groups of a lane have.
    fn images_of(&self, groups: &[GroupId], lane: usize) -> usize {
        self.sum(groups, lane, |_| 1)
    }

    /// The work of a step of these groups, as [`Active::remaining`] counts it.
    fn work_of(&self, groups: &[GroupId], lane: usize) -> usize {
        self.sum(groups, lane, |part| part.size[0] * part.size[1])
    }

    /// A sum over the images of groups of a lane.
    fn sum(&self, groups: &[GroupId], lane: usize, of_part: impl Fn(&Part) -> usize) -> usize {
        let of_task = |active: &Active| {
            let own = active.parts.iter().filter(|part| part.lane == lane && groups.contains(&part.group));
            own.map(&of_part).sum::<usize>() * active.task.job.batch_size
        };
        self.tasks.iter().map(of_task).sum()
    }
}

/// Whether less at once may work.
fn is_no_room(error: &Error) -> bool {
    error.is_out_of_memory() || matches!(error, Error::Budget { .. })
}
