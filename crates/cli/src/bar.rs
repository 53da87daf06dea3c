//! A progress bar on the error stream, on terminals only.

use std::io::IsTerminal;
use std::ops::Deref;

use indicatif::{ProgressBar, ProgressStyle};

use crate::status::{is_json, is_quiet};

/// A progress bar, or none if the error stream is not a terminal, has JSON objects, or nothing but warnings.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar of `len` positions with indicatif's `template`.
    pub fn new(template: &str, len: u64) -> Self {
        Self((std::io::stderr().is_terminal() && !is_json() && !is_quiet()).then(|| {
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(len).with_style(style)
        }))
    }

    /// Prints lines above the bar.
    pub fn above(&self, show: impl FnOnce()) {
        match &self.0 {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Deref for Bar {
    type Target = Option<ProgressBar>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
