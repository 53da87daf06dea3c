//! A server with a tiny model, and a client.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, GeneratedImage, ModelFolder, ModelOptions, Request, Setup,
};
use kiln_media::{DecodeOptions, decode};
use kiln_serve::{Access, GalleryAccess, Limits, ServeOptions, Server};
use kiln_testkit::fixtures;
use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// The CPU in f32.
pub fn cpu() -> Setup {
    Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() }
}

/// A server with the tiny model of Stable Diffusion 1, on a free port.
pub fn options() -> ServeOptions {
    ServeOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        models: vec![fixtures("models/sd1")],
        model_aliases: Vec::new(),
        model_options: ModelOptions::default(),
        setups: vec![cpu()],
        limits: Limits::default(),
        max_batch: None,
        max_per_client: 0,
        max_delay: Duration::ZERO,
        max_wait: None,
        max_loaded: None,
        front_end: None,
        user_dir: None,
        warm: Vec::new(),
        control_dir: None,
        ip_adapters_dir: None,
        upscaler_dir: None,
        output: None,
        gallery: GalleryAccess::Full,
        prompt_store: None,
        prompt_store_key: None,
        keep: Duration::from_secs(600),
        job_prefix: None,
        access: Access::default(),
        tls: None,
        memory_readiness: true,
        otlp: None,
    }
}

/// A server that runs, and a client of it.
pub struct Served {
    pub server: Server,
    pub agent: Agent,
    /// `http://127.0.0.1:PORT`.
    pub address: String,
}

/// A file of this crate's tests.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The certificate of servers with TLS; it certifies itself.
fn certificate() -> Certificate<'static> {
    Certificate::from_pem(&std::fs::read(file("certificate.pem")).unwrap()).unwrap()
}

/// An answer: its status and its body.
pub struct Answer {
    pub status: u16,
    pub response: Response<Body>,
}

impl Served {
    pub fn start(options: ServeOptions) -> Self {
        let server = Server::start(options).unwrap();
        let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[certificate()])).build();
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(300)));
        Self { address: server.url(), server, agent: config.tls_config(tls).build().into() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.agent.get(format!("{}{path}", self.address)).call().unwrap().into()
    }

    pub fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.agent.post(format!("{}{path}", self.address)).send(body).unwrap().into()
    }

    pub fn delete(&self, path: &str) -> Answer {
        self.agent.delete(format!("{}{path}", self.address)).call().unwrap().into()
    }

    /// Adds a job; its number.
    pub fn submit(&self, job: &Value) -> String {
        let answer = self.post("/v1/jobs", job.to_string().as_bytes());
        assert_eq!(answer.status, 202, "{job}");
        answer.json()["id"].as_str().unwrap().to_string()
    }

    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}")).json()
    }

    /// The job as soon as `is_so`.
    pub fn wait(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let job = self.job(id);
            if is_so(&job) {
                return job;
            }
            assert!(start.elapsed() < Duration::from_secs(300), "{job}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until `/metrics` has a line.
    pub fn wait_metric(&self, line: &str) {
        let start = Instant::now();
        while !self.get("/metrics").text().lines().any(|found| found == line) {
            assert!(start.elapsed() < Duration::from_secs(60), "{line} is not there");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the weights of the first model.
    pub fn wait_ready(&self) {
        let start = Instant::now();
        while self.get("/readyz").status != 200 {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The job when it is finished.
    pub fn finished(&self, id: &str) -> Value {
        self.wait(id, |job| !job["finished"].is_null())
    }

    /// The pixels of an image of a job, and AUTOMATIC1111's settings in its file.
    pub fn image(&self, job: &Value, index: usize) -> Vec<u8> {
        let answer = self.get(job["images"][index]["url"].as_str().unwrap());
        assert_eq!(answer.response.headers()["content-type"], "image/png");
        pixels(&answer.bytes())
    }

    /// The events of a job until its end: names and data.
    pub fn events(&self, id: &str) -> Vec<(String, Value)> {
        let answer = self.get(&format!("/v1/jobs/{id}/events"));
        assert_eq!(answer.response.headers()["content-type"], "text/event-stream");
        let (mut events, mut name) = (Vec::new(), String::new());
        for line in BufReader::new(answer.response.into_body().into_reader()).lines() {
            let line = line.unwrap();
            if let Some(found) = line.strip_prefix("event: ") {
                name = found.into();
            } else if let Some(data) = line.strip_prefix("data: ") {
                events.push((name.clone(), serde_json::from_str(data).unwrap()));
            }
        }
        events
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.stop();
        self.server.wait().unwrap();
    }
}

impl From<Response<Body>> for Answer {
    fn from(response: Response<Body>) -> Self {
        Self { status: response.status().as_u16(), response }
    }
}

impl Answer {
    pub fn bytes(mut self) -> Vec<u8> {
        self.response.body_mut().with_config().limit(64 << 20).read_to_vec().unwrap()
    }

    pub fn text(self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    pub fn json(self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The message of an error.
    #[track_caller]
    pub fn refused(self, status: u16, kind: &str) -> String {
        let found = self.status;
        let body = self.json();
        assert_eq!((found, body["error"]["type"].as_str()), (status, Some(kind)), "{body}");
        body["error"]["message"].as_str().unwrap().to_string()
    }
}

/// Red, green and blue of every pixel of an image file.
pub fn pixels(file: &[u8]) -> Vec<u8> {
    decode(file, "an image", &DecodeOptions::default()).unwrap().rgb().data().to_vec()
}

/// What [`Engine::txt2img`] makes of a job, as `kiln txt2img` does.
pub fn alone(jobs: &[Value]) -> Vec<Vec<GeneratedImage>> {
    alone_with(&fixtures("models/sd1"), jobs)
}

/// [`alone`] with another model.
pub fn alone_with(model: &Path, jobs: &[Value]) -> Vec<Vec<GeneratedImage>> {
    let model = ModelFolder::open(model).unwrap();
    let mut engine = Engine::load(model, &cpu(), &mut |_| ControlFlow::Continue(())).unwrap();
    let images = |job: &Value| {
        let request: Request = serde_json::from_value(job.clone()).unwrap();
        let job = request.resolve(engine.model()).unwrap();
        let mut images = Vec::new();
        engine
            .txt2img(&job, &mut |event| {
                if let Event::Image(image) = event {
                    images.push(*image);
                }
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
        images
    };
    jobs.iter().map(images).collect()
}
