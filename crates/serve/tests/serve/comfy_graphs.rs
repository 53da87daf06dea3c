//! Graphs as ComfyUI's clients send them, and a client of the web socket.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tungstenite::WebSocket;
use tungstenite::protocol::Message;
use tungstenite::stream::MaybeTlsStream;

use crate::support::{Answer, Served};

/// A node.
pub fn node(class: &str, inputs: Value) -> Value {
    json!({ "class_type": class, "inputs": inputs })
}

/// The default graph of that program, for a tiny image of the model `sd1`.
pub fn graph() -> Value {
    let sampler = json!({
        "seed": 7, "steps": 4, "cfg": 5.5, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0,
        "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0],
    });
    json!({
        "3": node("KSampler", sampler),
        "4": node("CheckpointLoaderSimple", json!({ "ckpt_name": "sd1.safetensors" })),
        "5": node("EmptyLatentImage", json!({ "width": 64, "height": 64, "batch_size": 1 })),
        "6": node("CLIPTextEncode", json!({ "text": "a (red:1.2) pear", "clip": ["4", 1] })),
        "7": node("CLIPTextEncode", json!({ "text": "", "clip": ["4", 1] })),
        "8": node("VAEDecode", json!({ "samples": ["3", 0], "vae": ["4", 2] })),
        "9": node("SaveImage", json!({ "filename_prefix": "pears/a pear", "images": ["8", 0] })),
    })
}

/// The graph with values in place of others: `"3.seed"` is the input `seed` of the node 3, and `"3"` the whole node.
pub fn graph_with(changes: &[(&str, Value)]) -> Value {
    let mut graph = graph();
    for (place, value) in changes {
        match place.split_once('.') {
            Some((id, "class")) => graph[id]["class_type"] = value.clone(),
            Some((id, input)) => graph[id]["inputs"][input] = value.clone(),
            None => graph[*place] = value.clone(),
        }
    }
    graph
}

/// Sends a graph.
pub fn send(served: &Served, graph: &Value) -> Answer {
    served.post("/prompt", json!({ "prompt": graph, "client_id": "tests" }).to_string().as_bytes())
}

/// Sends a graph that is taken; the prompt's id.
pub fn taken(served: &Served, graph: &Value) -> String {
    let answer = send(served, graph);
    let (status, body) = (answer.status, answer.json());
    assert_eq!((status, &body["node_errors"]), (200, &json!({})), "{body}");
    body["prompt_id"].as_str().unwrap().into()
}

/// Sends a graph that is refused; the errors of its nodes.
pub fn refused(served: &Served, graph: &Value) -> Map<String, Value> {
    let answer = send(served, graph);
    let (status, body) = (answer.status, answer.json());
    assert_eq!(status, 400, "{body}");
    assert!(body["error"]["type"].is_string() && body["error"]["message"].is_string(), "{body}");
    body["node_errors"].as_object().unwrap().clone()
}

/// The history of a prompt when it is done.
pub fn done(served: &Served, id: &str) -> Value {
    loop {
        let history = served.get(&format!("/history/{id}")).json();
        if let Some(found) = history.get(id) {
            return found.clone();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The address of the image that a node of a prompt has saved.
pub fn address(history: &Value, node: &str) -> String {
    let image = &history["outputs"][node]["images"][0];
    let field = |name: &str| image[name].as_str().unwrap_or_default().replace(' ', "%20");
    format!("/view?filename={}&subfolder={}&type={}", field("filename"), field("subfolder"), field("type"))
}

/// The file that a node of a prompt has saved.
pub fn image(served: &Served, history: &Value, node: &str) -> Vec<u8> {
    let answer = served.get(&address(history, node));
    assert_eq!(answer.status, 200, "{history}");
    assert_eq!(answer.response.headers()["content-type"], "image/png");
    answer.bytes()
}

/// A client's socket.
pub struct Socket(WebSocket<MaybeTlsStream<TcpStream>>);

/// A message that a socket has heard.
#[derive(Debug)]
pub enum Heard {
    Event(String, Value),
    Bytes(Vec<u8>),
}

impl Socket {
    pub fn open(served: &Served, path: &str) -> Self {
        let address = format!("{}{path}", served.address.replace("http://", "ws://"));
        let (socket, _) = tungstenite::connect(address).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        }
        Self(socket)
    }

    pub fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).unwrap();
    }

    /// The next message.
    pub fn next(&mut self) -> Heard {
        loop {
            match self.0.read().unwrap() {
                Message::Text(text) => {
                    let message: Value = serde_json::from_str(&text).unwrap();
                    return Heard::Event(message["type"].as_str().unwrap().into(), message["data"].clone());
                }
                Message::Binary(bytes) => return Heard::Bytes(bytes.to_vec()),
                _ => {}
            }
        }
    }

    /// All messages until the end of a prompt: `executing` of no node.
    pub fn until_end(&mut self, id: &str) -> Vec<Heard> {
        let mut all = Vec::new();
        loop {
            let heard = self.next();
            let is_end = matches!(&heard, Heard::Event(kind, data) if kind == "executing" && data["node"].is_null() && data["prompt_id"] == id);
            all.push(heard);
            if is_end {
                return all;
            }
        }
    }
}

/// The names of events, without repetitions of one after the other.
pub fn kinds(all: &[Heard]) -> Vec<&str> {
    let mut kinds: Vec<&str> = all
        .iter()
        .map(|heard| match heard {
            Heard::Event(kind, _) => kind.as_str(),
            Heard::Bytes(_) => "bytes",
        })
        .collect();
    kinds.dedup();
    kinds
}
