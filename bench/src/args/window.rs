//! Options of `window`.

use std::path::PathBuf;

use alluvium::config::ByteSize;
use alluvium::{AnyLayout, MIB};
use clap::Args;

use super::{Layout, ReportArgs, StateArgs};
use crate::peers::Peer;
use crate::window::{Question, Windows};
use crate::workload::Distribution;
use crate::{Error, Result};

/// `window`: a question of each window of a stream.
#[derive(Args, Clone, Debug)]
pub struct WindowArgs {
    /// What is asked of each window: count, rank, median or top
    #[arg(long, value_name = "Q")]
    pub query: Question,
    /// How long windows are, such as 30s, 500ms or 5m
    #[arg(long, value_name = "SPAN", value_parser = span, required_unless_present = "gap")]
    pub length: Option<i64>,
    /// How far apart they begin; as long as they are unless given
    #[arg(long, value_name = "SPAN", value_parser = span, requires = "length")]
    pub slide: Option<i64>,
    /// Sessions instead, which end after a pause of this
    #[arg(long, value_name = "SPAN", value_parser = span, conflicts_with_all = ["length", "slide"])]
    pub gap: Option<i64>,
    /// Keys of the generated stream, each with windows of its own; 1 has all events in one
    #[arg(long, value_name = "K", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// How often keys come: uniform, or zipf:THETA such as zipf:0.99
    #[arg(long, value_name = "D", default_value_t = Distribution::Uniform)]
    pub dist: Distribution,
    /// Events per second of event time
    #[arg(long, value_name = "R", default_value_t = 10_000)]
    pub rate: u64,
    /// Events of the generated stream
    #[arg(long, value_name = "N", required_unless_present_any = ["azure", "borg"])]
    pub events: Option<u64>,
    /// Chooses one of the possible streams
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// The arrivals of an Azure LLM inference trace instead, FILE.csv or FILE.csv.xz
    #[arg(long, value_name = "FILE", conflicts_with_all = ["events", "borg"])]
    pub azure: Option<PathBuf>,
    /// The job events of the Borg trace instead, FILE.csv or FILE.csv.zst
    #[arg(long, value_name = "FILE", conflicts_with = "events")]
    pub borg: Option<PathBuf>,
    /// Answer with our windows in this layout: count in window-segments, hybrid-log or heap, the other
    /// questions in append-log or heap
    #[arg(long, value_name = "L", value_parser = layout_named, required_unless_present = "vs")]
    pub layout: Option<Layout>,
    /// Answer the same with this, in turns: hashbrown or rocksdb
    #[arg(long, value_name = "PEER")]
    pub vs: Option<Peer>,
    /// Memory that our windows may take, and rocksdb; hashbrown takes what it needs
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(256 * MIB))]
    pub memory: ByteSize,
    /// Directory for our windows (a temporary one unless given)
    #[arg(long, value_name = "DIR", requires = "layout")]
    pub dir: Option<PathBuf>,
    /// Answer the whole stream that many times
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Write what our windows hold to this file as CSV: bytes of memory and disk at each end of a
    /// window, before and after it fires; and a plot of them beside it, with the extension svg
    #[arg(long, value_name = "FILE", requires = "layout")]
    pub held: Option<PathBuf>,
    /// Answer once more by counting values, in little memory and untimed, and compare; not for
    /// sessions
    #[arg(long, conflicts_with = "gap")]
    pub check: bool,
    /// Write the answers to this file as CSV
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// The report
    #[command(flatten)]
    pub report: ReportArgs,
}

impl WindowArgs {
    /// The windows that are asked for.
    ///
    /// # Errors
    /// There are no such windows.
    pub fn windows(&self) -> Result<Windows> {
        match (self.gap, self.length) {
            (Some(gap), _) => Windows::sessions(gap),
            (None, Some(length)) => Windows::aligned(length, self.slide.unwrap_or(length)),
            (None, None) => Err(Error::Usage("--length or --gap".to_owned())),
        }
    }

    /// Where our windows live.
    pub fn state(&self, layout: &Layout) -> StateArgs {
        let (layout, dir) = (layout.clone(), self.dir.clone());
        StateArgs { layout, cold_runs: false, memory: self.memory, max_value: None, dir }
    }
}

fn layout_named(name: &str) -> Result<Layout> {
    let names = ["window-segments", "append-log", "hybrid-log", "heap"];
    let layout = names.contains(&name).then(|| AnyLayout::named(name)).flatten();
    let unknown = || format!("there is no layout {name:?}, but {}", names.join(", "));
    let layout = layout.ok_or_else(|| Error::Usage(unknown()))?;
    Ok(Layout { name: name.to_owned(), layout })
}

/// A span of time in nanoseconds.
pub(super) fn span(text: &str) -> Result<i64> {
    let refuse = || Error::Usage(format!("{text:?} is not a span like 30s, 500ms, 5m or 1h"));
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: i64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(refuse()),
    };
    let nanos = number.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
    nanos.filter(|nanos| *nanos > 0).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: WindowArgs,
    }

    fn parse(line: &str) -> std::result::Result<WindowArgs, String> {
        let parsed = Line::try_parse_from(line.split(' '));
        parsed.map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn windows_are_as_the_options_say() {
        let windows = |line: &str| parse(line).unwrap().windows().unwrap();
        let second = 1_000_000_000;
        assert_eq!(
            windows("window --query count --length 30s --slide 1s --events 5 --vs hashbrown"),
            Windows::Aligned { length: 30 * second, slide: second }
        );
        assert_eq!(
            windows("window --query top --length 500ms --azure f --vs hashbrown"),
            Windows::Aligned { length: second / 2, slide: second / 2 }
        );
        assert_eq!(
            windows(
                "window --query median --gap 2m --borg f --layout append-log --memory 8MiB --dir d \
                 --rounds 3"
            ),
            Windows::Sessions { gap: 120 * second }
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        for (line, expected) in [
            ("--query mean --length 1s --events 1 --vs hashbrown", "median"),
            ("--query count --events 1 --vs hashbrown", "--length"),
            ("--query count --length 1s --vs hashbrown", "--events"),
            ("--query count --length 1s --gap 1s --events 1 --vs hashbrown", "--gap"),
            ("--query count --length 1 --events 1 --vs hashbrown", "30s"),
            ("--query count --length 0s --events 1 --vs hashbrown", "30s"),
            ("--query count --length 9999999999h --events 1 --vs hashbrown", "30s"),
            ("--query count --length 1s --events 1", "--layout"),
            ("--query count --length 1s --events 1 --layout tree", "window-segments"),
            ("--query count --length 1s --events 1 --vs hashbrown --dir d", "--layout"),
            ("--query count --length 1s --events 1 --vs other", "hashbrown"),
        ] {
            let message = parse(&format!("window {line}")).unwrap_err();
            assert!(message.contains(expected), "{line}: {message}");
        }
        let slide = "window --query count --length 1s --slide 2s --events 1 --vs hashbrown";
        assert!(parse(slide).unwrap().windows().is_err());
    }
}
