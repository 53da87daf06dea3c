//! Encoded texts that servers share through a store, which may go away.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use kiln_engine::Setup;
use kiln_serve::ServeOptions;

use crate::jobs::job;
use crate::support::{Served, alone, cpu, options};

/// As much of Redis as is needed: `GET`, `SETEX`, and `+OK` for all else.
#[derive(Clone, Default)]
struct Store {
    values: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Store {
    /// Listens on this address.
    fn serve(&self, listener: TcpListener) {
        let store = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                store.connections.lock().unwrap().push(stream.try_clone().unwrap());
                let store = store.clone();
                std::thread::spawn(move || store.talk(stream));
            }
        });
    }

    fn talk(&self, stream: TcpStream) -> Option<()> {
        let mut to = stream.try_clone().ok()?;
        let mut from = BufReader::new(stream);
        loop {
            let count = Self::number(&mut from, '*')?;
            let parts = (0..count).map(|_| Self::part(&mut from)).collect::<Option<Vec<_>>>()?;
            let answer = match (parts[0].to_ascii_uppercase().as_slice(), parts.get(1)) {
                (b"GET", Some(key)) => match self.values.lock().unwrap().get(key) {
                    Some(value) => [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
                    None => b"$-1\r\n".to_vec(),
                },
                (b"SETEX", Some(key)) => {
                    assert_eq!(parts[2], b"604800");
                    self.values.lock().unwrap().insert(key.clone(), parts[3].clone());
                    b"+OK\r\n".to_vec()
                }
                _ => b"+OK\r\n".to_vec(),
            };
            to.write_all(&answer).ok()?;
        }
    }

    fn number(from: &mut impl BufRead, kind: char) -> Option<usize> {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        line.strip_prefix(kind)?.trim().parse().ok()
    }

    fn part(from: &mut impl BufRead) -> Option<Vec<u8>> {
        let mut part = vec![0; Self::number(from, '$')? + 2];
        from.read_exact(&mut part).ok()?;
        part.truncate(part.len() - 2);
        Some(part)
    }

    /// Cuts all connections.
    fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|stream| {
            let _ = stream.shutdown(Shutdown::Both); // it may be closed already
        });
    }
}

/// The value of `kiln_texts` for a source.
fn texts(served: &Served, source: &str) -> u64 {
    let metrics = served.get("/metrics").text();
    let name = format!("kiln_texts{{source=\"{source}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_else(|| panic!("{metrics}")).parse().unwrap()
}

#[test]
fn servers_share_encoded_texts_and_lose_them_without_harm() {
    let (store, folder) = (Store::default(), tempfile::tempdir().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    store.serve(listener);
    let setup = Setup { cache_dir: Some(folder.path().into()), ..cpu() };
    let shared =
        || ServeOptions { prompt_store: Some(format!("redis://{address}")), setups: vec![setup.clone()], ..options() };
    let jobs = [job("a pear", 3, 1), job("a fig", 3, 2), job("a (plum:1.2)", 3, 3)];
    let expected = alone(&jobs);
    let made = |served: &Served, i: usize| {
        let done = served.finished(&served.submit(&jobs[i]));
        assert_eq!(done["status"], "done", "{done}");
        assert_eq!(served.image(&done, 0), expected[i][0].rgb, "the bits of a run without a store");
    };

    let first = Served::start(shared());
    made(&first, 0);
    assert_eq!((texts(&first, "encoder"), texts(&first, "store")), (2, 0), "the prompt, and the empty one");
    assert_eq!(store.values.lock().unwrap().len(), 2);
    let second = Served::start(shared());
    made(&second, 0);
    assert_eq!((texts(&second, "encoder"), texts(&second, "store")), (0, 2));

    // A value that is none, and a store that goes away.
    store.values.lock().unwrap().values_mut().for_each(|value| value.truncate(100));
    let third = Served::start(shared());
    made(&third, 0);
    assert_eq!((texts(&third, "encoder"), texts(&third, "store")), (2, 0));
    store.cut();
    for served in [&first, &second, &third] {
        made(served, 1);
        made(served, 2);
    }
}
