//! `--preview`: files and images in terminals, which change nothing of the results.

use std::fs;

use crate::sandbox::Sandbox;

/// Width and height in the header of a PNG file.
fn png_size(file: &[u8]) -> (u32, u32) {
    assert!(file.starts_with(b"\x89PNG\r\n\x1a\n"));
    let number = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

#[test]
fn previews_are_files_and_change_nothing() {
    let sandbox = Sandbox::new();
    let run = |name: &str, more: &[&str]| {
        let args =
            ["an apple", "-s", "7", "--steps", "4", "--width", "64", "--height", "32", "--batch-size", "2", "-o", name];
        sandbox.txt2img(&[&args, more].concat()).succeeds();
    };
    run("plain-{seed}.png", &[]);
    run("previewed-{seed}.png", &["--preview", "preview.png"]);
    run("each-{seed}.png", &["--preview", "{index}-{step}.png"]);
    for seed in [7, 8] {
        let file = |name: &str| fs::read(sandbox.path(&format!("{name}-{seed}.png"))).unwrap();
        assert_eq!(file("plain"), file("previewed"));
        assert_eq!(file("plain"), file("each"));
    }
    // One pixel for each latent.
    let (width, height) = png_size(&fs::read(sandbox.path("preview.png")).unwrap());
    assert_eq!(width, 2 * height);
    assert!(width < 64, "{width}");
    // The first step has one in any case, and the last one is the image itself.
    let names = sandbox.names();
    assert!(names.contains(&"0-1.png".into()) && names.contains(&"1-1.png".into()), "{names:?}");
    assert!(!names.contains(&"0-4.png".into()), "{names:?}");
}

#[test]
fn terminals_get_images_by_their_protocols() {
    let sandbox = Sandbox::new();
    let errors = |to: &str| {
        let args = ["an apple", "--steps", "3", "--overwrite", "-o", "a.png", "--preview-every", "2", "--preview", to];
        sandbox.txt2img(&args).succeeds().stderr
    };
    // A preview, and the image over it.
    assert_eq!(errors("kitty").matches("\x1b_Ga=T,f=100,q=2,i=7860").count(), 2);
    assert_eq!(errors("iterm2").matches("\x1b]1337;File=inline=1;width=32;height=16;").count(), 2);
    assert_eq!(errors("sixel").matches("\x1bP0;1;0q\"1;1;288;288").count(), 2);
    let blocks = errors("blocks");
    assert_eq!(blocks.matches("▀").count(), 2 * 32 * 16);
    assert!(blocks.contains("\x1b[16A\r\x1b7"), "{blocks:?}");
    let none = errors("terminal");
    assert!(none.contains("is not a terminal") && !none.contains('\x1b'), "{none}");
}

#[test]
fn what_cannot_be_a_preview_is_refused_before_anything_runs() {
    let sandbox = Sandbox::new();
    let run = |more: &[&str]| sandbox.txt2img(&[&["an apple"], more].concat());
    run(&["--preview", "a.jpg"]).refused(&["--preview", "a.jpg", ".png"]);
    run(&["--preview", "no/where.png"]).fails(1, &["no: not found"]);
    run(&["--preview", "a.png", "--preview-every", "0"]).refused(&["--preview-every"]);
    run(&["--preview-every", "2"]).refused(&["--preview"]);
    assert!(sandbox.names().is_empty());
}
