//! Figures 2, 4, 6, 7 and 10 and table 3: sweeps over the operators' numbers, and traces of YCSB.

use super::{Paper, Section, THREE, flink, recording};
use crate::Result;
use crate::access::Kind;
use crate::characterize::{Distances, Working, unique};
use crate::compat;
use crate::event::{Side, Stream, Watermarks};
use crate::operator::{Name, Options, trace_of};
use crate::rows::{Names, Row};
use crate::trace::{Line, Op, Recording};
use crate::ycsb::{Fit, closest};

/// Figure 2.
pub(super) fn deletes(paper: &Paper) -> Result<Section> {
    let title = "Figure 2: share of deletes by length and gap";
    let says = "smaller windows and gaps make a higher share of deletes (Taxi)";
    let data = format!("{}; Taxi cannot be had", paper.data(false));
    let columns = ["seconds", "tumbling-incremental", "session-incremental"];
    let mut section = Section::new(title, says, &data, &columns);
    let stream = paper.stream(Name::TumblingIncremental, Watermarks::Events(100))?;
    for seconds in [1, 2, 5, 10, 30, 60, 120, 300, 600] {
        let options = Options { length: seconds, gap: seconds, ..Options::default() };
        let share = |name: Name| {
            let trace = trace_of(&mut *name.operator(&options), &stream);
            let deletes = trace.counts()[Kind::Delete as usize];
            format!("{:.3}", deletes as f64 / trace.count().max(1) as f64)
        };
        let shares = [Name::TumblingIncremental, Name::SessionIncremental].map(share);
        section.row([seconds.to_string()].into_iter().chain(shares));
    }
    Ok(section)
}

/// Figure 4.
pub(super) fn slides(paper: &Paper) -> Result<Section> {
    let title = "Figure 4: amplification by the slide of a window of 10 minutes";
    let says = "amplification is proportional to length over slide (Taxi)";
    let data = format!("{}, the first 50,000; Taxi cannot be had", paper.data(false));
    let columns =
        ["slide in seconds", "length over slide", "accesses per event", "state keys per event key"];
    let mut section = Section::new(title, says, &data, &columns);
    let name = Name::SlidingIncremental;
    let stream = super::first(paper.stream(name, Watermarks::Events(100))?, 50_000);
    let events = stream.events.len() as f64;
    let keys = crate::characterize::counts(stream.events.iter().map(|event| event.key)).len();
    for slide in [30, 60, 120, 200, 300, 600] {
        let options = Options { length: 600, slide, ..Options::default() };
        let trace = trace_of(&mut *name.operator(&options), &stream);
        let found = [trace.count() as f64 / events, trace.keys.len() as f64 / keys as f64];
        let found = found.map(|value| format!("{value:.2}"));
        section.row([slide.to_string(), (600 / slide).to_string()].into_iter().chain(found));
    }
    Ok(section)
}

/// Figure 6.
pub(super) fn watermarks(paper: &Paper) -> Result<Section> {
    let title = "Figure 6: working set by frequency of watermarks";
    let says = "the tumbling window's largest working set is up to 3 times as large with a \
                watermark every 1,000 events as with one every 100 (Azure)";
    let data = format!("{}; Azure's VMs cannot be had", paper.data(false));
    let columns =
        ["events between watermarks", "working set: most", "mean", "most, of that at 100"];
    let mut section = Section::new(title, says, &data, &columns);
    let name = Name::TumblingIncremental;
    let mut at_100 = 0;
    for events in [10, 100, 1000, 10_000] {
        let stream = paper.stream(name, Watermarks::Events(events))?;
        let recording = recording(name, &Options::default(), &stream)?;
        let working = Working::of(recording.entries(), recording.keys().len());
        if events == 100 {
            at_100 = working.keys_max;
        }
        let ratio = match at_100 {
            0 => String::new(),
            most => format!("{:.2}", working.keys_max as f64 / most as f64),
        };
        let mean = format!("{:.0}", working.mean());
        section.row([events.to_string(), working.keys_max.to_string(), mean, ratio]);
    }
    Ok(section)
}

/// Figure 7 and table 3.
pub(super) fn ycsb(paper: &Paper) -> Result<Vec<Section>> {
    let mut all: Vec<(Name, Fit)> = Vec::new();
    for name in THREE {
        let stream = paper.stream(name, Watermarks::Events(100))?;
        all.push((name, closest(&recording(name, &Options::default(), &stream)?)?));
    }
    let data = format!(
        "{}; joins: {}; six workloads of YCSB, each with the trace's operations, \
                        keys and shares",
        paper.data(false),
        paper.data(true)
    );
    Ok(vec![localities(&all, &data), lifetimes(&all, &data)])
}

fn localities(all: &[(Name, Fit)], data: &str) -> Section {
    let title = "Figure 7: locality of traces and of YCSB's workloads";
    let says = "KS rejects all of YCSB's distributions; Wasserstein distances go from 621 \
                (aggregation) to 174,316 (sliding join). Latest is nearest in time and has few \
                sequences that come again; sequential has more than the trace";
    let columns = [
        "operator",
        "trace",
        "D to the trace",
        "Wasserstein",
        "mean stack distance",
        "sequences of 10",
        "shuffled",
    ];
    let mut section = Section::new(title, says, data, &columns);
    for (name, fit) in all {
        for row in fit {
            let sequences = [row.sequences, row.sequences_shuffled].map(|count| count.to_string());
            let d = format!("{:.3}", row.distance.ks);
            let [w, mean] = [row.distance.wasserstein, row.stack_mean].map(|v| format!("{v:.1}"));
            let first = [name.to_string(), row.name.clone(), d, w, mean];
            section.row(first.into_iter().chain(sequences));
        }
    }
    section
}

fn lifetimes(all: &[(Name, Fit)], data: &str) -> Section {
    let title = "Table 3: time to live in 1,000 accesses";
    let says = "p50/p90/p99.9/most, and of the nearest YCSB trace: aggregation .001/206/1675/1676, \
                1513/1630/1651/1652; tumbling .4/1.4/14.5/21, 1185/1633/1726/1727; sliding join \
                2/789/2922/2991, 2102/4631/5129/5138. In YCSB up to 90 % of the keys are accessed \
                once. The paper takes 1,000 random keys; here it is all";
    let columns = ["operator", "trace", "p50", "p90", "p99.9", "most", "accessed once, %"];
    let mut section = Section::new(title, says, data, &columns);
    for (name, fit) in all {
        for row in fit {
            let steps = row.lifetimes.map(|steps| format!("{:.3}", steps as f64 / 1000.0));
            let once = format!("{:.1}", row.once * 100.0);
            let first = [name.to_string(), row.name.clone()];
            section.row(first.into_iter().chain(steps).chain([once]));
        }
    }
    section
}

/// Figure 10.
pub(super) fn original(paper: &Paper) -> Result<Section> {
    let title = "Figure 10: ours, the original's and Flink's accesses";
    let says = "Gadget's traces have nearly the same stack distances and sequences as Flink's";
    let flink = match paper.flink {
        Some(_) => "those of Flink 2.3, whose watermarks come every 100 events",
        None => "those of Flink, which bench/flink makes, if they are given (--flink)",
    };
    let data = format!(
        "{}; joins: {}. Ours stand beside the operations of Gadget with its mistakes \
         (--gadget-compat), with a watermark every second, and beside {flink}",
        paper.data(false),
        paper.data(true)
    );
    let columns = ["operator", "of", "accesses", "keys", "mean stack distance", "sequences of 10"];
    let mut section = Section::new(title, says, &data, &columns);
    for name in THREE {
        let stream = paper.stream(name, Watermarks::Every(1))?;
        let ours = recording(name, &Options::default(), &stream)?;
        section.row(localities_of(name, "ours", &ours));
        section.row(localities_of(name, "Gadget", &as_gadget(name, &stream)));
        drop(ours);
        let of_flink = paper.flink.as_deref().map(|directory| flink::read(directory, name));
        if let Some(of_flink) = of_flink.transpose()?.flatten() {
            let stream = paper.stream(name, Watermarks::Events(100))?;
            let ours = recording(name, &Options::default(), &stream)?;
            section.row(localities_of(name, "ours, watermarks as in Flink", &ours));
            section.row(localities_of(name, "Flink 2.3", &of_flink));
        }
    }
    Ok(section)
}

fn localities_of(name: Name, of: &str, recording: &Recording) -> Vec<String> {
    let keys: Vec<u32> = recording.entries().iter().map(|entry| entry.key).collect();
    let mean = Distances::of(keys.iter().copied()).mean();
    let sequences = unique(&keys, 10).last().copied().unwrap_or(0);
    let [accesses, of_keys] = [keys.len(), recording.keys().len()].map(|count| count.to_string());
    vec![
        name.to_string(),
        of.to_owned(),
        accesses,
        of_keys,
        format!("{mean:.2}"),
        sequences.to_string(),
    ]
}

fn as_gadget(name: Name, stream: &Stream) -> Recording {
    let rows = |side: Side| -> Vec<Row> {
        let of_side = stream.events.iter().filter(|event| event.side == side);
        let row = |event: &crate::event::Event| Row {
            key: event.key,
            time: event.time,
            finishes: event.finishes,
        };
        of_side.map(row).collect()
    };
    let (left, right) = (rows(Side::Left), rows(Side::Right));
    let mut recording = Recording::default();
    compat::run(name, &Options::default(), &left, &right, &Names::default(), &mut |kind, key| {
        let op = Op::ALL.into_iter().find(|op| op.text() == kind);
        if let Some(op) = op {
            let line = Line { time: None, op, key: key.as_bytes(), bytes: None };
            recording.push(line, 16);
        }
    });
    recording
}
