//! A progress bar on the standard error if that is a terminal, nothing otherwise.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// How far a run is. Dropping it takes the bar off the terminal.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for `total` operations of `what`.
    pub fn new(what: impl Into<String>, total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden() };
        }
        let template = "{msg} [{wide_bar}] {human_pos}/{human_len} {per_sec} {eta}";
        let style = ProgressStyle::with_template(template);
        let bar = ProgressBar::new(total).with_message(what.into());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar }
    }

    /// Says that `done` operations are done. Cheap, but for once per batch, not per operation.
    pub fn set(&self, done: u64) {
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
