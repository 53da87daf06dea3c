//! Prompts that wait, run, or are done, with what clients ask about them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use kiln_request::comfy::{Change, Stages};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::jobs::Entry;

/// The most prompts that are remembered, and the most bytes of their graphs.
const MOST_DONE: usize = 2000;
const MOST_BYTES: usize = 64 << 20;
/// The most bytes of an answer about several prompts.
const MOST_LISTED: usize = 16 << 20;

/// A prompt.
pub(crate) struct Prompt {
    pub(crate) id: String,
    /// The client that owns it.
    pub(crate) owner: String,
    /// The socket of its client.
    pub(crate) sid: Option<String>,
    pub(crate) about: About,
    /// `[number, id, graph, extra data, outputs]` as JSON.
    pub(crate) text: String,
    /// The runs, in their order.
    pub(crate) runs: Vec<RunOf>,
    pub(crate) outputs: Vec<OutputOf>,
    /// The classes of the nodes that messages name, by their ids.
    pub(crate) classes: BTreeMap<String, String>,
    state: Mutex<State>,
}

/// The facts of a prompt that lists of jobs show.
pub(crate) struct About {
    /// Its place among all; negative for one that came before others.
    pub(crate) number: i64,
    /// The time at which it came, in milliseconds since 1970.
    pub(crate) created: u64,
    /// The id that its page gives the graph.
    pub(crate) workflow: Option<String>,
}

/// A run of a prompt.
pub(crate) struct RunOf {
    pub(crate) entry: Weak<Entry>,
    pub(crate) stages: Stages,
}

/// A node of a prompt that saves images.
pub(crate) struct OutputOf {
    pub(crate) node: String,
    pub(crate) run: usize,
    pub(crate) changes: Vec<Change>,
    /// The begin of the file's name; `None` for a preview.
    pub(crate) prefix: Option<String>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// The images of nodes.
    outputs: Map<String, Value>,
    /// Events with their data.
    messages: Vec<Value>,
    succeeded: bool,
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Pending,
    Running,
    Done,
    /// It was taken out of the queue before it ran.
    Gone,
}

/// All prompts, in the order in which they came.
#[derive(Default)]
pub(crate) struct Prompts(Mutex<(i64, Vec<Arc<Prompt>>)>);

impl Prompt {
    /// A prompt that waits.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        id: String,
        owner: String,
        sid: Option<String>,
        about: About,
        text: String,
        runs: Vec<RunOf>,
        outputs: Vec<OutputOf>,
        classes: BTreeMap<String, String>,
        warnings: Vec<String>,
    ) -> Arc<Self> {
        let state = Mutex::new(State { warnings, ..State::default() });
        Arc::new(Self { id, owner, sid, about, text, runs, outputs, classes, state })
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Done | Phase::Gone)
    }

    /// It begins; false if it has begun before.
    pub(crate) fn start(&self) -> bool {
        let mut state = self.state.lock();
        let begins = state.phase == Phase::Pending;
        if begins {
            state.phase = Phase::Running;
        }
        begins
    }

    /// Takes it out of the queue; false if it does not wait any more.
    fn remove(&self) -> bool {
        let mut state = self.state.lock();
        let waits = state.phase == Phase::Pending;
        if waits {
            state.phase = Phase::Gone;
        }
        waits
    }

    /// Whether it was taken out of the queue.
    pub(crate) fn is_removed(&self) -> bool {
        self.phase() == Phase::Gone
    }

    /// It has ended.
    pub(crate) fn end(&self, succeeded: bool) {
        let mut state = self.state.lock();
        state.succeeded = succeeded;
        if state.phase != Phase::Gone {
            state.phase = Phase::Done;
        }
    }

    /// Remembers an event for the history. Returns its data with the time.
    pub(crate) fn note(&self, event: &str, mut data: Value) -> Value {
        data["timestamp"] = now().into();
        self.state.lock().messages.push(json!([event, data]));
        data
    }

    /// Remembers the images of a node.
    pub(crate) fn set_output(&self, node: &str, images: Value) {
        self.state.lock().outputs.insert(node.into(), images);
    }

    pub(crate) fn add_warnings(&self, warnings: Vec<String>) {
        let mut state = self.state.lock();
        for warning in warnings {
            if !state.warnings.contains(&warning) {
                state.warnings.push(warning);
            }
        }
    }

    /// The data of an event, if there was one.
    pub(super) fn noted(&self, event: &str) -> Option<Value> {
        self.state.lock().messages.iter().find(|message| message[0] == event).map(|message| message[1].clone())
    }

    pub(super) fn has_succeeded(&self) -> bool {
        self.state.lock().succeeded
    }

    /// The images of nodes.
    pub(super) fn outputs(&self) -> Map<String, Value> {
        self.state.lock().outputs.clone()
    }

    /// The nodes whose images are there.
    pub(crate) fn executed(&self) -> Vec<String> {
        self.state.lock().outputs.keys().cloned().collect()
    }

    pub(crate) fn class(&self, node: &str) -> &str {
        self.classes.get(node).map_or("", String::as_str)
    }

    /// The number, the id, the graph, the extra data and the outputs.
    fn value(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// Its entry in the history.
    pub(super) fn view(&self) -> Value {
        let state = self.state.lock();
        let meta = |node: &String| {
            let ids = json!({ "node_id": node, "display_node": node, "parent_node": null, "real_node_id": node });
            (node.clone(), ids)
        };
        json!({
            "prompt": self.value(),
            "outputs": state.outputs,
            "status": {
                "status_str": if state.succeeded { "success" } else { "error" },
                "completed": state.succeeded,
                "messages": state.messages,
            },
            "meta": state.outputs.keys().map(meta).collect::<Map<_, _>>(),
            "warnings": state.warnings,
        })
    }

    /// Ends its jobs.
    pub(crate) fn cancel(&self) {
        for entry in self.runs.iter().filter_map(|run| run.entry.upgrade()) {
            entry.control.cancel();
        }
    }

    /// Whether its images, or what is left of them, are still kept.
    fn is_kept(&self) -> bool {
        self.runs.iter().any(|run| run.entry.strong_count() > 0)
    }

    pub(super) fn phase(&self) -> Phase {
        self.state.lock().phase
    }
}

/// The time in milliseconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Prompts {
    /// The number of a new prompt.
    pub(crate) fn next_number(&self) -> i64 {
        let mut state = self.0.lock();
        state.0 += 1;
        state.0 - 1
    }

    /// Adds a prompt, and forgets the oldest ones that are done if there are too many.
    pub(crate) fn add(&self, prompt: Arc<Prompt>) {
        let all = &mut self.0.lock().1;
        all.push(prompt);
        all.retain(|prompt| !prompt.is_done() || (prompt.phase() == Phase::Done && prompt.is_kept()));
        let bytes = |all: &[Arc<Prompt>]| all.iter().map(|prompt| prompt.text.len()).sum::<usize>();
        while (all.len() > MOST_DONE || bytes(all) > MOST_BYTES)
            && let Some(oldest) = all.iter().position(|prompt| prompt.is_done())
        {
            all.remove(oldest);
        }
    }

    pub(super) fn of(&self, owner: &str, phase: Phase) -> Vec<Arc<Prompt>> {
        let all = &self.0.lock().1;
        let own = all.iter().filter(|prompt| prompt.owner == owner && prompt.phase() == phase);
        own.filter(|prompt| phase != Phase::Done || prompt.is_kept()).cloned().collect()
    }

    /// Whether a client has a prompt of this id.
    pub(crate) fn has(&self, owner: &str, id: &str) -> bool {
        self.0.lock().1.iter().any(|prompt| prompt.owner == owner && prompt.id == id && prompt.phase() != Phase::Gone)
    }

    /// How many of a client's prompts are not done.
    pub(crate) fn remaining(&self, owner: &str) -> usize {
        self.of(owner, Phase::Pending).len() + self.of(owner, Phase::Running).len()
    }

    /// The prompts that run and those that wait.
    pub(crate) fn queue(&self, owner: &str) -> Value {
        let texts = |phase| listed(self.of(owner, phase).iter().map(|prompt| (prompt.text.len(), prompt.value())));
        json!({ "queue_running": texts(Phase::Running), "queue_pending": texts(Phase::Pending) })
    }

    /// The prompts that are done: at most `most`, from number `offset` on, or else the newest.
    pub(crate) fn history(&self, owner: &str, most: Option<usize>, offset: Option<usize>) -> Value {
        let all = self.of(owner, Phase::Done);
        let begin = offset.unwrap_or_else(|| most.map_or(0, |most| all.len().saturating_sub(most)));
        let some = all.iter().skip(begin).take(most.unwrap_or(usize::MAX));
        let views = some.rev().map(|prompt| (prompt.text.len(), (prompt.id.clone(), prompt.view())));
        let mut views = listed(views);
        views.reverse();
        views.into_iter().collect::<Map<_, _>>().into()
    }

    /// One of them; an empty object for others.
    pub(crate) fn done(&self, owner: &str, id: &str) -> Value {
        let found = self.of(owner, Phase::Done).into_iter().find(|prompt| prompt.id == id);
        found.map(|prompt| (prompt.id.clone(), prompt.view())).into_iter().collect::<Map<_, _>>().into()
    }

    /// Forgets prompts that are done: those with these ids, or all. Returns them.
    pub(crate) fn forget(&self, owner: &str, ids: Option<&[String]>) -> Vec<Arc<Prompt>> {
        let is_meant = |prompt: &Prompt| {
            prompt.owner == owner && prompt.phase() == Phase::Done && ids.is_none_or(|ids| ids.contains(&prompt.id))
        };
        let all = &mut self.0.lock().1;
        let gone = all.iter().filter(|prompt| is_meant(prompt)).cloned().collect();
        all.retain(|prompt| !is_meant(prompt));
        gone
    }

    /// Takes prompts that wait out of the queue: those with these ids, or all. Returns their ids.
    pub(crate) fn remove(&self, owner: &str, ids: Option<&[String]>) -> Vec<String> {
        let waiting = self.of(owner, Phase::Pending);
        let meant = waiting.iter().filter(|prompt| ids.is_none_or(|ids| ids.contains(&prompt.id)));
        let removed = meant.filter(|prompt| prompt.remove()).inspect(|prompt| prompt.cancel());
        removed.map(|prompt| prompt.id.clone()).collect()
    }

    /// The prompt of this id that runs, or the oldest one.
    pub(crate) fn running(&self, owner: &str, id: Option<&str>) -> Option<Arc<Prompt>> {
        self.of(owner, Phase::Running).into_iter().find(|prompt| id.is_none_or(|id| prompt.id == id))
    }
}

/// The first ones, within the bytes that an answer may have.
fn listed<T>(all: impl Iterator<Item = (usize, T)>) -> Vec<T> {
    let mut bytes = 0usize;
    all.take_while(|(size, _)| {
        bytes += size;
        bytes <= MOST_LISTED
    })
    .map(|(_, one)| one)
    .collect()
}
