//! When the keys that the tier has alone were last touched, of a state whose entries expire.
//!
//! Keys are counted by spans of time, of an eighth of the time to live at most. What was touched before the *tide* has
//! expired: the tide stands at the beginning of a span, so that it takes whole spans along, and `len` needs no record to
//! be read. Merges drop expired records later; until then look-ups and scans pass them over.
//!
//! What it keeps true:
//! - A key is counted in the span of its record's last touch, which the record says: so it is taken from the same.
//! - The tide never goes back. A record that was touched before it is not there, whether or not it is counted.
//! - Nothing of the log expires beyond the tide. A key is touched no earlier than before, so that an older copy of it in
//!   the runs is not there either.

use std::ops::Range;

use alluvium_pagestore::{Result, Time, TouchedKeys};

use crate::support::record_type_unsafe::{ErasedTouched, RecordType};

/// Spans that are told apart. Earlier touches count in the first: two times to live are told apart at least.
pub const SPANS: usize = 32;
/// A span is one part in so many of the time to live, or up to half of that.
const SPANS_IN_LIFE: u64 = 8;
/// The time to live of a state that does not tell it: a minute.
const LIFE_NANOS: u64 = 60_000_000_000;

/// What has expired: what was touched last before a time.
#[derive(Clone, Copy, Debug)]
pub struct ExpiredTouches {
    of: ErasedTouched,
    pub before: Time,
}

impl ExpiredTouches {
    /// When the value of a record was touched last.
    pub fn touched(&self, record_type: &'static RecordType, payload: &[u8]) -> Result<Time> {
        let mut touched = Time::MIN;
        record_type.decode(payload, &mut |record| {
            touched = self.of.of(record);
            Ok(())
        })?;
        Ok(touched)
    }

    /// Whether a record has expired.
    pub fn has(&self, record_type: &'static RecordType, payload: &[u8]) -> Result<bool> {
        Ok(self.before > Time::MIN && self.touched(record_type, payload)? < self.before)
    }
}

/// Counts of keys, by key group if groups move, and by the span of their last touch.
#[derive(Debug)]
pub struct Touches {
    of: ErasedTouched,
    tide: Time,
    /// Logarithm of a span's nanoseconds, and what it is to be once no key is counted.
    span_log: u32,
    wanted_log: u32,
    /// The first span, in spans since the beginning of time.
    first: u64,
    /// By key group, then by span.
    counts: Box<[u64]>,
    /// No key that is counted was touched after this.
    latest: Time,
    all: u64,
}

/// Nanoseconds since the beginning of time.
fn since_ever(time: Time) -> u64 {
    (time.0 as u64) ^ (1 << 63)
}

fn time_of(since_ever: u64) -> Time {
    Time((since_ever ^ (1 << 63)) as i64)
}

fn span_log_of(life_nanos: u64) -> u32 {
    (life_nanos / SPANS_IN_LIFE).max(1).ilog2()
}

impl Touches {
    /// Bytes of the counts of so many key groups, or one for all.
    pub fn memory_bytes(groups: usize) -> u64 {
        (groups * SPANS * size_of::<u64>()) as u64
    }

    /// No keys, of so many key groups, or one for all.
    pub fn new(of: ErasedTouched, groups: usize) -> Self {
        let span_log = span_log_of(LIFE_NANOS);
        let counts = vec![0; groups * SPANS].into_boxed_slice();
        let (tide, latest) = (Time::MIN, Time::MIN);
        Self { of, tide, span_log, wanted_log: span_log, first: 0, counts, latest, all: 0 }
    }

    /// Entries live so long without a touch.
    pub fn live_for(&mut self, nanos: u64) {
        self.wanted_log = span_log_of(nanos);
        self.widen();
    }

    /// What has expired.
    pub fn gone(&self) -> ExpiredTouches {
        ExpiredTouches { of: self.of, before: self.tide }
    }

    fn span_of(&self, touched: Time) -> usize {
        let span = since_ever(touched) >> self.span_log;
        span.saturating_sub(self.first).min(SPANS as u64 - 1) as usize
    }

    /// The time at which a span begins. The first has all before it, too.
    fn start_of(&self, span: usize) -> Time {
        time_of((self.first + span as u64) << self.span_log)
    }

    /// A key more. Says whether it counts: it may have expired.
    pub fn add(&mut self, group: usize, touched: Time) -> bool {
        if touched < self.tide {
            return false;
        }
        if self.all == 0 {
            (self.span_log, self.latest) = (self.wanted_log, touched);
            self.first = since_ever(self.tide) >> self.span_log;
        }
        let span = since_ever(touched) >> self.span_log;
        let last = self.first + SPANS as u64 - 1;
        if span > last {
            self.slide(span - last);
        }
        self.latest = self.latest.max(touched);
        self.counts[group * SPANS + self.span_of(touched)] += 1;
        self.all += 1;
        true
    }

    /// A key less, which counts.
    pub fn take(&mut self, group: usize, touched: Time) {
        debug_assert!(touched >= self.tide, "an expired key is not there");
        self.counts[group * SPANS + self.span_of(touched)] -= 1;
        self.all -= 1;
    }

    /// Later spans are told apart from now on: so many of the earliest become one.
    fn slide(&mut self, spans: u64) {
        let moved = spans.min(SPANS as u64 - 1) as usize;
        for counts in self.counts.chunks_exact_mut(SPANS) {
            let early: u64 = counts[..=moved].iter().sum();
            counts.copy_within(moved.., 0);
            counts[SPANS - moved..].fill(0);
            counts[0] = early;
        }
        self.first += spans;
    }

    /// Neighbouring spans become one, until they are as long as they are to be. They are not divided while keys are
    /// counted.
    fn widen(&mut self) {
        while self.span_log < self.wanted_log {
            let (span_log, first) = (self.span_log + 1, self.first >> 1);
            for counts in self.counts.chunks_exact_mut(SPANS) {
                let mut wider = [0; SPANS];
                for (span, count) in counts.iter().enumerate() {
                    wider[(((self.first + span as u64) >> 1) - first) as usize] += count;
                }
                counts.copy_from_slice(&wider);
            }
            (self.span_log, self.first) = (span_log, first);
        }
    }

    /// What was touched last before `to` expires, as far as whole spans go. Tells `expired` how many keys of each group
    /// did that were counted, and gives the tide.
    pub fn expire_to(&mut self, to: Time, expired: &mut dyn FnMut(usize, u64)) -> Time {
        if to <= self.tide {
            return self.tide;
        }
        let life = since_ever(self.latest).saturating_sub(since_ever(to));
        if self.all > 0 && life >> self.span_log >= SPANS as u64 {
            // They live longer than was told: all that is old would stand in the first span.
            self.live_for(life);
        }
        let span = since_ever(to) >> self.span_log;
        let whole = span.saturating_sub(self.first).min(SPANS as u64) as usize;
        let has_rest = |this: &Self| {
            let mut rows = this.counts.chunks_exact(SPANS);
            whole < SPANS && rows.any(|counts| counts[whole] > 0)
        };
        // Nothing that counts is between the beginning of the span and the time.
        let (spans, tide) = match self.all == 0 || self.latest < to {
            true => (0..SPANS, to),
            false if !has_rest(self) => (0..whole, to),
            false if whole == 0 => (0..0, self.tide),
            false => (0..whole, self.start_of(whole)),
        };
        self.tide = self.tide.max(tide);
        self.drop_spans(spans, expired);
        self.tide
    }

    fn drop_spans(&mut self, spans: Range<usize>, expired: &mut dyn FnMut(usize, u64)) {
        for (group, counts) in self.counts.chunks_exact_mut(SPANS).enumerate() {
            let gone: u64 = counts[spans.clone()].iter_mut().map(std::mem::take).sum();
            if gone > 0 {
                self.all -= gone;
                expired(group, gone);
            }
        }
    }

    /// No key of these groups counts any more.
    pub fn cut(&mut self, groups: Range<usize>) {
        let counts = &mut self.counts[groups.start * SPANS..groups.end * SPANS];
        self.all -= counts.iter_mut().map(std::mem::take).sum::<u64>();
    }

    /// No key counts any more.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.all = 0;
    }

    /// Bytes of [`told`](Touches::told).
    pub fn told_bytes(&self) -> u64 {
        let counted = self.counts.iter().filter(|count| **count > 0).count();
        (counted * size_of::<(u32, u64)>()) as u64
    }

    /// What a checkpoint says of them.
    pub fn told(&self) -> TouchedKeys {
        let counts = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        TouchedKeys {
            expired_before: self.tide,
            latest: self.latest,
            span_log: self.span_log,
            first_span: self.first,
            counts: counts.map(|(at, count)| (at as u32, *count)).collect(),
        }
    }

    /// Takes over what a checkpoint says, which [fits](Touches::fits). Spans stay as long as they were, until it is told
    /// [how long entries live](Touches::live_for).
    pub fn restore(&mut self, told: &TouchedKeys) {
        (self.tide, self.latest) = (told.expired_before, told.latest);
        (self.span_log, self.first) = (told.span_log, told.first_span);
        self.counts.fill(0);
        // Where groups do not move any more they are one.
        let places = self.counts.len();
        for (at, count) in &told.counts {
            self.counts[*at as usize % places] += count;
        }
        self.all = self.counts.iter().sum();
        self.wanted_log = self.span_log;
    }

    /// Whether a checkpoint says as much of each of so many groups as it says in all.
    pub fn fits(told: &TouchedKeys, of_groups: &[u64]) -> bool {
        let mut sums = vec![0u64; of_groups.len()];
        let is_one = told.counts.iter().all(|(at, count)| {
            let sum = sums.get_mut(*at as usize / SPANS);
            let sum = sum.and_then(|sum| Some((sum.checked_add(*count)?, sum)));
            sum.map(|(more, sum)| *sum = more).is_some()
        });
        is_one && told.span_log < u64::BITS && sums == of_groups
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use alluvium_pagestore::hash_word;

    fn touches(groups: usize, life: u64) -> Touches {
        let mut touches =
            Touches::new(ErasedTouched::new::<u64, i64>(|value| Time(*value)), groups);
        touches.live_for(life);
        touches
    }

    #[test]
    fn keys_expire_that_live_longer_or_shorter_than_was_told() {
        const SECOND: i64 = 1_000_000_000;
        for life in [1, 60, 3600, 36_000] {
            let mut touches = touches(1, life * SECOND as u64);
            let most = 3600 + 3600.max(life) / 8 + 2;
            for second in 0..20_000 {
                touches.add(0, Time(second * SECOND));
                touches.expire_to(Time((second - 3600) * SECOND), &mut |_, _| ());
                assert!(touches.all <= most, "{life} s: {} keys after {second} s", touches.all);
            }
        }
    }

    #[test]
    fn spans_are_as_long_after_a_restart_as_before() {
        let mut before = touches(1, 1_000_000_000);
        for touched in 0..100 {
            before.add(0, Time(touched * 50_000_000));
        }
        let mut after = Touches::new(before.of, 1);
        after.restore(&before.told());
        after.live_for(1_000_000_000);
        assert_eq!((after.span_log, after.all), (before.span_log, before.all));
        let gone = |touches: &mut Touches| touches.expire_to(Time(4_000_000_000), &mut |_, _| ());
        assert_eq!(gone(&mut after), gone(&mut before));
    }

    /// Keys, each with its group and its last touch.
    type Model = BTreeMap<u64, (usize, i64)>;

    fn check(touches: &Touches, model: &Model, groups: usize) {
        let mut counts = vec![0; groups];
        model.values().for_each(|(group, _)| counts[*group] += 1);
        let rows = touches.counts.chunks_exact(SPANS).map(|row| row.iter().sum::<u64>());
        assert!(rows.eq(counts.iter().copied()));
        assert_eq!(touches.all, model.len() as u64);
        assert!(Touches::fits(&touches.told(), &counts));
    }

    /// Plays a history; times begin at one, and move by up to so much at once.
    fn play(seed: u64, start: i64, jump: u64, life: u64) {
        let (groups, mut dice) = (3, seed);
        let mut below = |end: u64| {
            dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
            hash_word(dice) % end
        };
        let (mut touches, mut model, mut now) = (touches(groups, life), Model::new(), start);
        let (mut lags, mut expired_in_all) = (0, 0);
        for key in 0..20_000u64 {
            let most = if below(500) == 0 { jump } else { life / 100 + 2 };
            now += below(most) as i64;
            // What moves down was touched a while ago.
            let touched = now - below(life + life / 4) as i64;
            let group = below(groups as u64) as usize;
            if touches.add(group, Time(touched)) {
                model.insert(key, (group, touched));
            } else {
                assert!(Time(touched) < touches.tide);
            }
            if let Some((taken, (group, touched))) = model
                .range(below(key + 1)..)
                .next()
                .filter(|_| key % 3 == 0)
                .map(|(key, value)| (*key, *value))
            {
                touches.take(group, Time(touched));
                model.remove(&taken);
            }
            if key % 50 == 0 {
                let to = now - life as i64 + 1;
                let (before, mut expired) = (model.len(), 0);
                let tide = touches.expire_to(Time(to), &mut |_, count| expired += count);
                assert!(tide <= Time(to).max(touches.tide));
                model.retain(|_, (_, touched)| Time(*touched) >= tide);
                assert_eq!((before - model.len()) as u64, expired, "what is before the tide");
                expired_in_all += expired;
                lags += u64::from(tide.0.abs_diff(to) > life / SPANS_IN_LIFE);
                check(&touches, &model, groups);
            }
            if key % 1000 == 0 {
                let told = touches.told();
                touches = super::tests::touches(groups, life);
                touches.restore(&told);
                check(&touches, &model, groups);
            }
            if key % 7000 == 6999 {
                touches.cut(1..2);
                model.retain(|_, (group, _)| *group != 1);
            }
        }
        assert!(expired_in_all > 1000, "{expired_in_all}");
        assert!(
            lags < 4,
            "the tide is a span behind at most, but for what is touched long before: {lags}"
        );
    }

    #[test]
    fn keys_are_counted_until_the_tide_has_passed_their_last_touch() {
        for seed in 0..6 {
            play(seed, 0, 1 << 20, 80_000);
            play(seed, i64::MIN + 200_000, 1 << 40, 100_000);
            play(seed, 1_700_000_000_000_000_000, 1 << 50, 3_600_000_000_000);
            play(seed, -5000, 10, 7);
        }
    }

    #[test]
    fn the_tide_is_at_the_time_where_nothing_is_left_behind_it() {
        let mut touches = touches(1, 8000);
        let (mut gone, mut none) = (0, |_: usize, _: u64| ());
        assert_eq!(touches.expire_to(Time(777), &mut none), Time(777));
        (1000..2000).for_each(|at| assert!(touches.add(0, Time(at))));
        assert!(!touches.add(0, Time(776)));
        let tide = touches.expire_to(Time(1500), &mut |_, count| gone += count);
        assert!(tide > Time(1500 - 1000) && tide <= Time(1500), "{tide:?}");
        assert_eq!(gone, tide.0.max(1000) as u64 - 1000);
        let tide = touches.expire_to(Time(2000), &mut |_, count| gone += count);
        assert_eq!((tide, gone, touches.all), (Time(2000), 1000, 0));
    }

    #[test]
    fn another_time_to_live_counts_on() {
        let mut long = touches(1, 1 << 30);
        (0..1000).for_each(|at| assert!(long.add(0, Time(at << 20))));
        let told = long.told();
        for life in [1, 1 << 20, 1 << 40] {
            let mut other = touches(1, life);
            other.restore(&told);
            other.live_for(life);
            assert_eq!(other.all, 1000);
            (0..1000).for_each(|at| other.take(0, Time(at << 20)));
            assert!(other.counts.iter().all(|count| *count == 0));
            other.add(0, Time(1 << 40));
            assert_eq!(other.span_log, span_log_of(life), "of no keys it can change");
        }
        // Where groups do not move any more they are one.
        let mut moved = touches(4, 1 << 30);
        (0..400).for_each(|at| assert!(moved.add(at as usize % 4, Time(at << 24))));
        let mut one = touches(1, 1 << 30);
        one.restore(&moved.told());
        (0..400).for_each(|at| one.take(0, Time(at << 24)));
        assert!(one.counts.iter().all(|count| *count == 0));
    }
}
