//! Events, and streams of them cut into batches that end with a watermark.

/// The watermark after which nothing comes.
pub const END: i64 = i64::MAX / 4;

/// Something that happened to a key. Times are whole units; what a unit is, is the reader's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whom it happened to.
    pub key: u64,
    /// When.
    pub time: i64,
    /// The number that operators add up.
    pub amount: u32,
    /// Bytes that a state which keeps the event keeps of it; 16 is the least.
    pub bytes: u16,
    /// Which of two streams it is of.
    pub side: Side,
    /// Whether it says that its key is done; for the continuous join.
    pub finishes: bool,
}

/// One of two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first stream, or the only one.
    Left,
    /// The second.
    Right,
}

/// Events up to a place in the stream, and the watermark after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The place after its last event.
    pub end: usize,
    /// No event before this time is promised after it; one that comes is late.
    pub watermark: i64,
}

/// Events in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// The events.
    pub events: Vec<Event>,
    /// Batches that together have all events; the last ends with [`END`].
    pub batches: Vec<Batch>,
}

/// When watermarks come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watermarks {
    /// Whenever event time passes a multiple of so many units.
    Every(i64),
    /// After so many events.
    Events(usize),
}

/// An event and the unit of time in which it arrives; later than its own time if it was delayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: i64,
    pub(crate) event: Event,
}

impl Stream {
    /// Puts arrivals in order and cuts them into batches: within a unit of time the left stream
    /// comes before the right one, and otherwise the order stays.
    pub(crate) fn of(mut arrivals: Vec<Arrival>, watermarks: Watermarks) -> Stream {
        arrivals.sort_by_key(|arrival| (arrival.at, arrival.event.side));
        let mut batches = Vec::new();
        match watermarks {
            Watermarks::Every(units) => {
                let mut due = arrivals.first().map_or(0, |first| next_multiple(first.at, units));
                for (place, arrival) in arrivals.iter().enumerate() {
                    if arrival.at >= due {
                        batches.push(Batch { end: place, watermark: due });
                        due = next_multiple(arrival.at, units);
                        // Units in which nothing came move the watermark too.
                        if due - units > batches[batches.len() - 1].watermark {
                            batches.push(Batch { end: place, watermark: due - units });
                        }
                    }
                }
            }
            Watermarks::Events(count) => {
                let ends = (1..=arrivals.len() / count).map(|batch| batch * count);
                batches.extend(ends.map(|end| Batch { end, watermark: arrivals[end - 1].at }));
            }
        }
        batches.push(Batch { end: arrivals.len(), watermark: END });
        Stream { events: arrivals.into_iter().map(|arrival| arrival.event).collect(), batches }
    }

    /// The batches, each with its events and the place of the first of them.
    pub fn batches(&self) -> impl Iterator<Item = (usize, &[Event], i64)> {
        let mut start = 0;
        self.batches.iter().map(move |batch| {
            let from = std::mem::replace(&mut start, batch.end);
            (from, &self.events[from..batch.end], batch.watermark)
        })
    }

    /// A digest of all events, to tell streams apart.
    pub fn digest(&self) -> u64 {
        self.events.iter().fold(self.batches.len() as u64, |digest, event| {
            let flags = u64::from(event.finishes) << 1 | event.side as u64;
            let rest = u64::from(event.amount) << 32 | u64::from(event.bytes) << 8 | flags;
            [event.key, event.time as u64, rest].into_iter().fold(digest, alluvium::types::combine)
        })
    }
}

fn next_multiple(time: i64, of: i64) -> i64 {
    (time.div_euclid(of) + 1) * of
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: i64, time: i64, side: Side) -> Arrival {
        let event = Event { key: 1, time, amount: 1, bytes: 16, side, finishes: false };
        Arrival { at, event }
    }

    #[test]
    fn watermarks_by_time_pass_with_empty_units_too() {
        let arrivals = vec![at(3, 3, Side::Right), at(3, 3, Side::Left), at(9, 2, Side::Left)];
        let stream = Stream::of(arrivals, Watermarks::Every(2));
        assert_eq!(stream.events[0].side, Side::Left);
        let ends: Vec<_> =
            stream.batches.iter().map(|batch| (batch.end, batch.watermark)).collect();
        assert_eq!(ends, [(2, 4), (2, 8), (3, END)]);
    }

    #[test]
    fn watermarks_by_events_are_the_time_that_has_come() {
        let arrivals = (0..5).map(|time| at(time, time, Side::Left)).collect();
        let stream = Stream::of(arrivals, Watermarks::Events(2));
        let ends: Vec<_> =
            stream.batches.iter().map(|batch| (batch.end, batch.watermark)).collect();
        assert_eq!(ends, [(2, 1), (4, 3), (5, END)]);
    }
}
