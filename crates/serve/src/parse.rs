//! The parsers of requests without a server.

use serde_json::{Map, Value};

use crate::http;

/// Reads the body of a request as each API does, up to the request that it becomes; input images are written into files and not
/// decoded. For programs that try many bodies; nothing is returned.
pub fn read_request(body: &[u8]) {
    http::read_job(body);
    if let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(body) {
        let fields: Map<String, Value> = fields;
        http::read_openai(fields.clone());
        http::read_a1111(fields);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_all_kinds_are_read() {
        for body in [
            &b"{"[..],
            b"[]",
            b"{\"prompt\": 1}",
            b"{\"prompt\": \"a\", \"init\": \"aGFsbG8\", \"enable_hr\": true, \"n\": 2}",
            b"\xff",
        ] {
            read_request(body);
        }
    }
}
