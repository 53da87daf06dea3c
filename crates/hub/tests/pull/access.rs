//! Tokens, passwords, and repositories without access.

use std::ops::ControlFlow;

use kiln_hub::{Hub, Settings, Token, Wants};
use kiln_testkit::Fault;

use crate::world::{LARGE, REPOSITORY, World, files, full};

#[test]
fn the_token_is_sent_to_the_hub_only() {
    let mut world = World::new();
    world.token = Token::new("hf_secret", "").unwrap();
    world.server.private("hf_secret");
    world.server.fault("/api/resolve-cache/README.md", &[Fault::Redirect(world.server.elsewhere("/large/README.md"))]);
    world.pull(&files(&["README.md", LARGE])).unwrap();
    world.check(&["README.md", LARGE]);
    let (elsewhere, own): (Vec<_>, Vec<_>) = world.server.asked().into_iter().partition(|asked| asked.elsewhere);
    assert!(
        own.iter().all(|asked| asked.headers.get("authorization").is_some_and(|value| value == "Bearer hf_secret"))
    );
    assert_eq!(elsewhere.len(), 2);
    assert!(elsewhere.iter().all(|asked| !format!("{asked:?}").contains("hf_secret")), "{elsewhere:?}");
}

#[test]
fn a_redirect_back_to_the_hub_is_followed_without_the_token() {
    let mut world = World::new();
    world.token = Token::new("hf_secret", "").unwrap();
    let back = format!("{}/api/resolve-cache/README.md", world.server.endpoint());
    let there = world.server.elsewhere("/large/back/README.md");
    world.server.fault("/api/resolve-cache/README.md", &[Fault::Redirect(there)]);
    world.server.fault("/large/back/README.md", &[Fault::Redirect(back)]);
    world.pull(&files(&["README.md"])).unwrap();
    world.check(&["README.md"]);
    let asked = world.server.asked();
    let cached: Vec<bool> = asked
        .iter()
        .filter(|asked| asked.path == "/api/resolve-cache/README.md")
        .map(|asked| asked.headers.contains_key("authorization"))
        .collect();
    assert_eq!(cached, [true, false], "{asked:?}");
}

#[test]
fn messages_about_missing_access_say_what_to_do() {
    let world = World::new();
    world.server.private("hf_right");
    let message = world.pull(&full()).unwrap_err().to_string();
    assert!(message.contains("HF_TOKEN") && message.contains("check the spelling"), "{message}");
    let mut world = world;
    world.token = Token::new("hf_wrong", "").unwrap();
    let message = world.pull(&full()).unwrap_err().to_string();
    assert!(message.contains("your token") && !message.contains("hf_wrong"), "{message}");

    let gated = |status| Fault::Status(status, vec![("X-Error-Code", "GatedRepo".into())]);
    for (token, told) in
        [(None, "then put a token of your account into HF_TOKEN"), (Some("hf_x"), "your token has no access")]
    {
        let mut world = World::new();
        world.token = token.and_then(|token| Token::new(token, "").unwrap());
        world.server.fault("README.md", &[gated(if token.is_some() { 403 } else { 401 })]);
        let message = world.refused("README.md");
        assert!(message.contains("accept its license on http://") && message.contains(told), "{message}");
    }

    let world = World::new();
    for (reference, told) in [
        ("owner/tiny-modle", "owner/tiny-modle: is not on the Hub under this name"),
        ("owner/tiny-model@v9", "there is no revision v9"),
        (
            "owner/tiny-model/config.json",
            "there is no file config.json; there are text_encoder/config.json, unet/config.json",
        ),
    ] {
        let message = world.pull_of(reference, &Wants::default()).unwrap_err().to_string();
        assert!(message.contains(told), "{reference}: {message}");
    }
    world.server.fault("README.md", &[Fault::Status(404, vec![("X-Error-Code", "EntryNotFound".into())])]);
    assert!(world.refused("README.md").contains("there is no file README.md"));
}

#[test]
fn no_message_has_the_password_of_the_endpoint() {
    let world = World::new();
    let endpoint = world.server.endpoint().replace("http://", "http://user:PW@");
    let settings = Settings { endpoint, ..world.hub().settings().clone() };
    let pull = |name: &str| {
        let hub = Hub::new(settings.clone()).unwrap();
        hub.pull(&REPOSITORY.parse().unwrap(), &files(&[name]), &mut |_| ControlFlow::Continue(()))
    };
    pull("README.md").unwrap();
    world.server.fault("unet/config.json", &[Fault::Status(418, Vec::new())]);
    world.server.fault("whole.safetensors", &[Fault::Status(403, Vec::new())]);
    let mut messages = vec![pull("unet/config.json"), pull("whole.safetensors")];
    drop(world.server);
    messages.push(pull("README.md"));
    for message in messages {
        let message = message.unwrap_err();
        assert!(!format!("{message} {message:?}").contains("PW") && message.to_string().contains("http://127.0.0.1"));
    }
    let wrong = Settings { endpoint: "http://u:PW@hub.example:99999".into(), ..settings };
    let message = Hub::new(wrong).err().unwrap().to_string();
    assert!(message.contains("http://hub.example:99999") && !message.contains("PW"), "{message}");
}
