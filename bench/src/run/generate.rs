//! `gen`: the event generator alone, its speed, its checksum, its output as files.

use std::hint::black_box;

use quanta::Instant;

use crate::Result;
use crate::args::GenArgs;
use crate::input::export;
use crate::nexmark::{Config, Event, Generator, Record, Stride};
use crate::report::{Progress, Report, peak_rss_bytes};

/// Events between two looks at the progress bar.
const BATCH: u64 = 1 << 16;

/// Generates the stream; with `--csv` it is also written, outside the measured time.
///
/// The checksum is the wrapping sum of the events' digests. The strings have no part in it, so it
/// is the same with and without `--strings`.
pub fn generate(args: &GenArgs) -> Result<Report> {
    let config = Config { group: args.group, ..args.stream.config(Some(args.rate)) };
    let mut generator = Generator::new(config, Stride::ALL)?;
    if let Some(dir) = &args.csv {
        export(dir, generator.clone().take_while(|record| record.ordinal < args.events))?;
    }
    let progress = Progress::new("gen", args.events);
    let begin = Instant::now();
    let mut checksum = 0u64;
    while generator.ordinal() < args.events {
        let batch = BATCH.min(args.events - generator.ordinal());
        for record in generator.by_ref().take(batch as usize) {
            if args.strings {
                render(&record);
            }
            checksum = checksum.wrapping_add(record.event.digest());
        }
        progress.set(generator.ordinal());
    }
    let mut report = Report::new("gen", "none");
    report.set_rate(args.events, begin.elapsed().as_secs_f64());
    report.set_checksum(checksum);
    report.memory.peak_rss = peak_rss_bytes();
    Ok(report)
}

/// Makes every string of the row.
fn render(record: &Record) {
    match &record.event {
        Event::Person(p) => {
            black_box((p.name(), p.email_address(), p.credit_card(), p.city(), p.state()));
            black_box(p.extra());
        }
        Event::Auction(a) => {
            black_box((a.item_name(), a.description(), a.extra()));
        }
        Event::Bid(b) => {
            black_box((b.channel(), b.url(), b.extra()));
        }
    }
}
