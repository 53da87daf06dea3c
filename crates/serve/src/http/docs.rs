//! The description of all routes, as OpenAPI and as a page.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::{Html, IntoResponse};
use kiln_engine::{find_option, request_schema};
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::jobs::MOST_PRIORITY;
use super::{gallery, health, job_moves, jobs, lists, openai, settings, tokens, upscale};
use crate::app::is_of_server;

#[derive(OpenApi)]
#[openapi(
    info(title = "Kiln", description = "Images from prompts."),
    paths(
        jobs::create, jobs::list, jobs::get, jobs::remove, jobs::finish, job_moves::move_job, jobs::events, jobs::image, lists::capabilities,
        lists::models, lists::model, openai::generations, openai::edits, openai::variations, settings::read, tokens::count, upscale::upscale,
        gallery::list, gallery::image, gallery::remove, gallery::zip, health::healthz, health::readyz, health::metrics
    ),
    tags(
        (name = "jobs", description = "Jobs, their events and images"),
        (name = "lists", description = "What the server has"),
        (name = "gallery", description = "The images of the server's folder"),
        (name = "openai", description = "The API of OpenAI"),
        (name = "server", description = "The state of the server"),
    )
)]
struct Api;

/// OpenAPI 3.1. The document is made once: making it takes longer than any other answer to a GET.
pub(super) async fn openapi() -> impl IntoResponse {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

/// The document. A request's fields come from the table of options.
fn document() -> Value {
    let mut document = serde_json::to_value(Api::openapi()).unwrap_or_default();
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document["components"]["schemas"]["Request"] = job_schema();
    document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"] =
        json!({ "$ref": "#/components/schemas/Request" });
    document["components"]["securitySchemes"] =
        json!({ "key": { "type": "http", "scheme": "bearer" }, "user": { "type": "http", "scheme": "basic" } });
    document["security"] = json!([{}, { "key": [] }, { "user": [] }]);
    document
}

/// The body of `POST /v1/jobs`: a request without the server's files, and the fields that a request does not have.
fn job_schema() -> Value {
    let mut schema = request_schema();
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("$schema");
    }
    if let Some(fields) = schema["properties"].as_object_mut() {
        fields.retain(|name, _| !find_option(name).is_some_and(is_of_server));
        let text = |text: &str| json!({ "type": ["string", "null"], "description": text });
        fields.insert("model".into(), text("The model's name. Default: the first one."));
        for (name, what) in [("init", "The image to begin with"), ("mask", "The part that is made again")] {
            fields.insert(name.into(), text(&format!("{what}: an image file in Base64, or a data URL.")));
        }
        let every = json!({ "type": ["integer", "null"], "minimum": 0, "description": "Steps between previews; 0 for none. Default: 1." });
        fields.insert("preview_every".into(), every);
        let priority = json!({
            "type": ["integer", "null"], "minimum": -MOST_PRIORITY, "maximum": MOST_PRIORITY,
            "description": "Jobs of a higher priority come first. Default: 0.",
        });
        fields.insert("priority".into(), priority);
        let timeout = json!({
            "type": ["number", "null"], "exclusiveMinimum": 0,
            "description": "Seconds after which the job fails with `deadline_exceeded`. Default: the server's limit.",
        });
        fields.insert("timeout".into(), timeout);
    }
    schema["required"] = json!(["prompt"]);
    schema
}

/// The API's description as a page.
pub(super) async fn page() -> impl IntoResponse {
    // It needs no script, and nothing from elsewhere.
    let policy = [(header::CONTENT_SECURITY_POLICY, "default-src 'none'; img-src 'self'; style-src 'unsafe-inline'")];
    (policy, Html(html(&document())))
}

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>Kiln: the API</title><link rel=\"icon\" href=\"page/icon.svg\"><style>\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
code{font-family:ui-monospace,monospace;font-size:.9em}section{margin:2rem 0}table{border-collapse:collapse;width:100%}\
td,th{border-bottom:1px solid #8886;padding:.3rem .6rem;text-align:left;vertical-align:top}b{min-width:4rem;display:inline-block}\
</style><main><h1>Kiln: the API</h1><p>The same as a file: <a href=\"/openapi.json\">openapi.json</a>. All bodies are JSON unless \
something else is said.</p>";

/// The routes by their tags, then the types of bodies.
fn html(document: &Value) -> String {
    let mut page = HEAD.to_string();
    let paths = document["paths"].as_object();
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = text(&tag["name"]);
        let _ = write!(page, "<section><h2>{}</h2>", text(&tag["description"]));
        for (path, methods) in paths.into_iter().flatten() {
            for (method, route) in methods.as_object().into_iter().flatten() {
                if route["tags"].as_array().is_some_and(|tags| tags.iter().any(|tag| text(tag) == name)) {
                    page.push_str(&route_html(path, method, route));
                }
            }
        }
        page.push_str("</section>");
    }
    page.push_str("<section><h2>Types</h2>");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        page.push_str(&schema_html(name, schema));
    }
    page + "</section></main></html>"
}

fn route_html(path: &str, method: &str, route: &Value) -> String {
    let summary = text(&route["summary"]);
    let mut html = format!("<h3><code><b>{}</b> {}</code></h3><p>{summary}</p>", method.to_uppercase(), escaped(path));
    html.push_str("<table><tr><th>Status<th>Answer<th>Type</tr>");
    for (status, response) in route["responses"].as_object().into_iter().flatten() {
        let types = response["content"].as_object().into_iter().flatten();
        let types: Vec<String> = types.map(|(media, content)| type_of(media, &content["schema"])).collect();
        let _ = write!(html, "<tr><td>{status}<td>{}<td>{}</tr>", text(&response["description"]), types.join(", "));
    }
    html + "</table>"
}

fn schema_html(name: &str, schema: &Value) -> String {
    let mut html =
        format!("<h3 id=\"{0}\"><code>{0}</code></h3><p>{1}</p>", escaped(name), text(&schema["description"]));
    if let Some(names) = schema["enum"].as_array() {
        let names: Vec<String> = names.iter().map(|name| format!("<code>{}</code>", text(name))).collect();
        return html + &format!("<p>One of {}.</p>", names.join(", "));
    }
    html.push_str("<table><tr><th>Field<th>Type<th>Meaning</tr>");
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        let kind = type_of("", schema);
        let _ =
            write!(html, "<tr><td><code>{}</code><td>{kind}<td>{}</tr>", escaped(field), text(&schema["description"]));
    }
    html + "</table>"
}

/// A type in words, with a link to the one that it names.
fn type_of(media: &str, schema: &Value) -> String {
    let one_of = schema["oneOf"].as_array().and_then(|all| all.iter().find(|schema| schema["$ref"].is_string()));
    if let Some(name) = one_of.unwrap_or(schema)["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return format!("<a href=\"#{0}\"><code>{0}</code></a>", escaped(name));
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect::<Vec<_>>().join(" or "),
        Value::String(kind) if kind == "array" => format!("list of {}", type_of("", &schema["items"])),
        kind => text(kind),
    };
    if media.is_empty() || media == "application/json" { kind } else { format!("{} ({kind})", escaped(media)) }
}

fn text(value: &Value) -> String {
    escaped(value.as_str().unwrap_or_default())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_is_named_is_there() {
        let document = document();
        let text = document.to_string();
        for name in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
        let fields = document["components"]["schemas"]["Request"]["properties"].as_object().unwrap();
        assert!(fields.contains_key("steps") && fields.contains_key("model") && !fields.contains_key("wildcards_dir"));
    }

    #[test]
    fn the_page_has_every_route_and_escapes_text() {
        let document = document();
        let page = html(&document);
        for path in document["paths"].as_object().unwrap().keys() {
            assert!(page.contains(&escaped(path)), "{path}");
        }
        assert!(!page.contains("<script") && page.contains("id=\"Job\""));
        assert!(route_html("/<b>", "get", &json!({})).contains("/&lt;b&gt;"));
    }
}
