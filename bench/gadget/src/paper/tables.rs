//! Tables 1 and 2, figures 3 and 5: figures of each operator's trace.

use super::{Paper, Section, THREE};
use crate::characterize::Characterization;
use crate::operator::Name;
use crate::trace::Op;
use alluvium_reports::{Line, logarithmic};

/// What the paper says of an operator on Borg: shares of get, put, merge and delete; D; accesses.
struct Said {
    name: Name,
    shares: [f64; 4],
    d: f64,
    events: u64,
    accesses: u64,
}

const fn said(name: Name, shares: [f64; 4], d: f64, events: u64, accesses: u64) -> Said {
    Said { name, shares, d, events, accesses }
}

const SAID: [Said; 9] = [
    said(Name::TumblingIncremental, [0.5, 0.459, 0.0, 0.041], 0.898, 841_135, 1_832_810),
    said(Name::TumblingHolistic, [0.076, 0.0, 0.847, 0.076], 0.896, 841_135, 992_080),
    said(Name::SlidingIncremental, [0.5, 0.459, 0.0, 0.041], 0.962, 841_135, 9_163_798),
    said(Name::SlidingHolistic, [0.076, 0.0, 0.847, 0.076], 0.963, 841_135, 4_960_416),
    said(Name::SessionIncremental, [0.575, 0.281, 0.062, 0.082], 0.590, 841_135, 2_996_940),
    said(Name::SessionHolistic, [0.409, 0.0, 0.477, 0.114], 0.528, 841_135, 2_155_805),
    said(Name::ContinuousJoin, [0.59, 0.006, 0.39, 0.013], 0.229, 854_582, 1_438_628),
    said(Name::IntervalJoin, [0.446, 0.446, 0.0, 0.108], 0.916, 867_385, 1_944_979),
    said(Name::Aggregation, [0.5, 0.5, 0.0, 0.0], 0.0, 841_135, 1_682_270),
];

/// What the paper says of data that cannot be had: an operator's shares on Taxi and on Azure's VMs.
type Elsewhere = (Name, [f64; 4], Option<[f64; 4]>);

const ELSEWHERE: [Elsewhere; 9] = [
    (Name::TumblingIncremental, [0.5, 0.308, 0.0, 0.191], Some([0.5, 0.405, 0.0, 0.095])),
    (Name::TumblingHolistic, [0.277, 0.0, 0.446, 0.277], Some([0.165, 0.0, 0.669, 0.165])),
    (Name::SlidingIncremental, [0.5, 0.308, 0.0, 0.191], Some([0.5, 0.405, 0.0, 0.095])),
    (Name::SlidingHolistic, [0.277, 0.0, 0.446, 0.277], Some([0.159, 0.0, 0.681, 0.159])),
    (Name::SessionIncremental, [0.399, 0.108, 0.109, 0.384], Some([0.544, 0.202, 0.064, 0.189])),
    (Name::SessionHolistic, [0.327, 0.0, 0.242, 0.43], Some([0.429, 0.0, 0.334, 0.238])),
    (Name::ContinuousJoin, [0.429, 0.281, 0.143, 0.147], None),
    (Name::IntervalJoin, [0.334, 0.334, 0.0, 0.332], None),
    (Name::Aggregation, [0.5, 0.5, 0.0, 0.0], Some([0.5, 0.5, 0.0, 0.0])),
];

/// Shares of operations in one cell.
fn in_a_cell(shares: [f64; 4]) -> String {
    shares.map(|share| share.to_string()).join(" / ")
}

fn of(name: &str) -> Option<&'static Said> {
    SAID.iter().find(|said| said.name.text() == name)
}

/// What the paper says of an operator's operations.
pub(super) fn shares_of(name: Name) -> Option<String> {
    of(name.text()).map(|said| in_a_cell(said.shares))
}

pub(super) fn sections(paper: &Paper, figures: &[Characterization]) -> Vec<Section> {
    let data = format!(
        "{}; joins: {}. Borg's own tasks, Taxi and Azure's VMs cannot be had",
        paper.data(false),
        paper.data(true)
    );
    vec![
        mixes(figures, &data),
        distances(figures, &data),
        amplification(figures, &data),
        locality(figures, &data),
    ]
}

fn mixes(figures: &[Characterization], data: &str) -> Section {
    let title = "Table 1: operations";
    let says = "shares of get, put, merge and delete on Borg, measured in Flink with RocksDB; \
                state accesses are update- and write-heavy";
    let columns = ["operator", "get", "put", "merge", "delete", "seek and next", "paper"];
    let mut section = Section::new(title, says, data, &columns);
    for one in figures {
        let share = |op| format!("{:.3}", one.share(op));
        let steps = format!("{:.3}", one.share(Op::Seek) + one.share(Op::Next));
        let name = Name::ALL.into_iter().find(|name| name.text() == one.name);
        let said = name.and_then(shares_of).unwrap_or_else(|| "none".to_owned());
        let ops = [Op::Get, Op::Put, Op::Merge, Op::Delete].map(share);
        section.row([one.name.clone()].into_iter().chain(ops).chain([steps, said]));
    }
    for (name, taxi, azure) in ELSEWHERE {
        let sets = [("Taxi", Some(taxi)), ("Azure's VMs", azure)];
        for (set, shares) in sets.into_iter().filter_map(|(set, said)| Some((set, said?))) {
            let first = [format!("{name}, {set}"), "cannot be had".to_owned()];
            let empty = std::iter::repeat_n(String::new(), 4);
            section.row(first.into_iter().chain(empty).chain([in_a_cell(shares)]));
        }
    }
    section
}

fn distances(figures: &[Characterization], data: &str) -> Section {
    let title = "Table 2: Kolmogorov-Smirnov distance to the input's keys";
    let says = "all operators but the continuous aggregation distort the distribution of keys";
    let columns = ["operator", "D", "p", "events", "accesses", "paper: D, events, accesses"];
    let mut section = Section::new(title, says, data, &columns);
    for one in figures {
        let Some(input) = &one.input else { continue };
        let said = of(&one.name).map_or("none".to_owned(), |said| {
            format!("{:.3}, {}, {}", said.d, said.events, said.accesses)
        });
        let distance = &input.distance;
        let [d, p] = [distance.ks, distance.p].map(|value| format!("{value:.3}"));
        let [n, m] = [distance.n, distance.m].map(|value| value.to_string());
        section.row([one.name.clone(), d, p, n, m, said]);
    }
    section
}

fn amplification(figures: &[Characterization], data: &str) -> Section {
    let title = "Figure 3: amplification of events and keys";
    let says = "at least 2 accesses per event, but for the holistic tumbling window; all operators \
                but the continuous aggregation have more keys than the input. Its own table 2 gives \
                the accesses per event in the last column; its text has larger ones";
    let columns =
        ["operator", "accesses per event", "state keys per event key", "paper, accesses per event"];
    let mut section = Section::new(title, says, data, &columns);
    for one in figures {
        let Some(input) = &one.input else { continue };
        let said = of(&one.name).map_or("none".to_owned(), |said| {
            format!("{:.2}", said.accesses as f64 / said.events as f64)
        });
        let found = [input.event_amplification, input.key_amplification];
        let [events, keys] = found.map(|value| format!("{value:.2}"));
        section.row([one.name.clone(), events, keys, said]);
    }
    section
}

fn locality(figures: &[Characterization], data: &str) -> Section {
    let title = "Figure 5: locality and ephemerality";
    let says = "mean stack distance, and shuffled: 53.75 and 270.40 for the aggregation, 1,236.95 \
                and 9,927 for the tumbling window, 10,627 and 58,510 for the join; far fewer \
                different sequences than shuffled; working sets of windows are renewed";
    let columns = [
        "operator",
        "mean stack distance",
        "shuffled",
        "sequences of 10",
        "shuffled",
        "working set: most",
        "mean",
    ];
    let mut section = Section::new(title, says, data, &columns);
    for one in figures.iter().filter(|one| THREE.iter().any(|name| name.text() == one.name)) {
        let last = |counts: &[u64]| counts.last().copied().unwrap_or(0).to_string();
        let stack = [one.stack.mean, one.stack.mean_shuffled].map(|mean| format!("{mean:.2}"));
        let sequences = [last(&one.sequences), last(&one.sequences_shuffled)];
        let working = &one.working_set;
        let working = [working.keys_max.to_string(), format!("{:.0}", working.keys_mean)];
        section.row([one.name.clone()].into_iter().chain(stack).chain(sequences).chain(working));
    }
    section.plots = plots(figures);
    section
}

fn plots(figures: &[Characterization]) -> String {
    type Points = fn(&Characterization) -> Vec<(f64, f64)>;
    let three = || figures.iter().filter(|one| THREE.iter().any(|name| name.text() == one.name));
    let plot = |title: &str, axes, points: Points| {
        let lines: Vec<_> =
            three().map(|one| Line { name: &one.name, points: points(one) }).collect();
        logarithmic(title, axes, &lines)
    };
    let ratios: Points =
        |one| one.stack.miss_ratios.iter().map(|(size, ratio, _)| (*size as f64, *ratio)).collect();
    let sequences: Points = |one| {
        one.sequences.iter().zip(1..).map(|(n, length)| (f64::from(length), *n as f64)).collect()
    };
    let working: Points =
        |one| one.working_set.curve.iter().map(|(at, keys)| (*at as f64, *keys as f64)).collect();
    plot("Stack distances", ["distance in keys", "share of accesses at least as far"], ratios)
        + &plot("Different sequences", ["length in accesses", "sequences"], sequences)
        + &plot("Working sets", ["accesses so far", "keys that live"], working)
}
