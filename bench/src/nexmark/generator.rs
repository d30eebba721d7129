//! Events from numbers: the generator itself.
//!
//! The event of an ordinal is computed from the configuration and the ordinal, never from the
//! event before. So a generator may start at any ordinal and step over those of other workers;
//! what it gives is what one generator of the whole stream gives there. Strings are left to
//! whoever reads them.

use super::config::{Config, Stride};
use super::ids::{self, Kind};
use super::model::{Auction, Bid, Event, Person, Record};
use super::price::price;
use super::random::Random;
use super::schedule::Schedule;
use super::strings::Text;
use alluvium::{MILLISECOND, Time};

use crate::Result;

/// The stream of a [`Config`], or one worker's share of it: an iterator without end.
///
/// An event costs about 20 ns.
#[derive(Clone, Debug)]
pub struct Generator {
    config: Config,
    schedule: Schedule,
    stride: Stride,
    ordinal: u64,
}

impl Generator {
    /// The share `stride` of the stream, from its first event.
    ///
    /// # Errors
    /// Says which parameter cannot be.
    pub fn new(config: Config, stride: Stride) -> Result<Self> {
        let schedule = config.schedule()?;
        Ok(Generator { config, schedule, stride, ordinal: stride.first_from(0) })
    }

    /// Continues at the first event of this share whose ordinal is at least `ordinal`.
    pub fn seek(&mut self, ordinal: u64) {
        self.ordinal = self.stride.first_from(ordinal);
    }

    /// The ordinal of the event that comes next.
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// No event still to come from this generator has an earlier time.
    pub fn watermark(&self) -> Time {
        self.schedule.watermark(self.ordinal)
    }

    /// When events happen and when they are due.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The event that arrives as `ordinal`.
    pub fn event(&self, ordinal: u64) -> Event {
        let number = self.schedule.event_number(ordinal);
        let seed = Random::seed_of(self.config.seed, number);
        match ids::kind(number) {
            Kind::Person => Event::Person(self.person(number, seed)),
            Kind::Auction => Event::Auction(self.auction(number, seed)),
            Kind::Bid => Event::Bid(self.bid(number, seed)),
        }
    }

    fn person(&self, number: u64, seed: u64) -> Person {
        Person {
            id: ids::FIRST_ID + ids::last_person(number),
            date_time: self.schedule.time_of(number),
            text: Text::Generated(seed),
        }
    }

    fn auction(&self, number: u64, seed: u64) -> Auction {
        let mut random = Random::new(seed);
        let date_time = self.schedule.time_of(number);
        let seller = ids::FIRST_ID + ids::seller(number, &mut random);
        let category = ids::category(&mut random);
        let initial_bid = price(&mut random);
        let reserve = initial_bid + price(&mut random);
        Auction {
            id: ids::FIRST_ID + ids::last_auction(number),
            initial_bid,
            reserve,
            date_time,
            expires: self.expires(number, date_time, &mut random),
            seller,
            category,
            text: Text::Generated(seed),
        }
    }

    /// An auction closes after 1 ms to twice the time in which as many auctions open as are to
    /// be in flight.
    fn expires(&self, number: u64, date_time: Time, random: &mut Random) -> Time {
        let horizon = self.schedule.time_of(number + self.config.events_in_flight());
        let horizon_ms = (horizon.as_ms() - date_time.as_ms()).cast_unsigned();
        let length_ms = 1 + random.below((2 * horizon_ms).max(1));
        Time(date_time.0.saturating_add_unsigned(length_ms * MILLISECOND.cast_unsigned()))
    }

    fn bid(&self, number: u64, seed: u64) -> Bid {
        let mut random = Random::new(seed);
        let auction = ids::bid_auction(number, self.config.in_flight, &mut random);
        let bidder = ids::bidder(number, &mut random);
        Bid {
            auction: ids::FIRST_ID + auction,
            bidder: ids::FIRST_ID + bidder,
            price: price(&mut random),
            date_time: self.schedule.time_of(number),
            text: Text::Generated(seed),
        }
    }
}

impl Iterator for Generator {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let ordinal = self.ordinal;
        self.ordinal = self.stride.after(ordinal);
        Some(Record { ordinal, event: self.event(ordinal) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(config: &Config) -> Generator {
        Generator::new(config.clone(), Stride::ALL).unwrap()
    }

    fn bids(config: &Config, events: usize) -> impl Iterator<Item = (u64, Bid)> {
        whole(config).take(events).filter_map(|record| match record.event {
            Event::Bid(bid) => Some((record.ordinal, bid)),
            _ => None,
        })
    }

    fn share(part: usize, of: usize) -> f64 {
        part as f64 / of as f64
    }

    /// Shares are taken after the first 100,000 events, when all windows of ids are full.
    #[test]
    fn bids_are_hot_and_early_as_often_as_in_beam() {
        let all: Vec<_> =
            bids(&Config::default(), 1_100_000).filter(|(n, _)| *n >= 100_000).collect();
        let count =
            |test: &dyn Fn(u64, &Bid) -> bool| all.iter().filter(|(n, bid)| test(*n, bid)).count();
        let newest_auction = |n| ids::FIRST_ID + ids::last_auction(n);
        let newest_person = |n| ids::FIRST_ID + ids::last_person(n);
        let hot_auction = share(count(&|_, bid| bid.auction % 100 == 0), all.len());
        let hot_bidder = share(count(&|_, bid| bid.bidder % 100 == 1), all.len());
        let early_auction = share(count(&|n, bid| bid.auction > newest_auction(n)), all.len());
        let early_bidder = share(count(&|n, bid| bid.bidder > newest_person(n)), all.len());
        assert!((0.502..0.508).contains(&hot_auction), "{hot_auction}");
        assert!((0.751..0.755).contains(&hot_bidder), "{hot_bidder}");
        assert!((0.044..0.046).contains(&early_auction), "{early_auction}");
        assert!((0.009..0.011).contains(&early_bidder), "{early_bidder}");
    }

    #[test]
    fn one_event_in_50_is_a_person_three_are_auctions() {
        let mut counts = [0; 3];
        for record in whole(&Config::default()).take(50_000) {
            counts[match record.event {
                Event::Person(_) => 0,
                Event::Auction(_) => 1,
                Event::Bid(_) => 2,
            }] += 1;
        }
        assert_eq!(counts, [1_000, 3_000, 46_000]);
    }

    #[test]
    fn auctions_stay_open_for_the_configured_number_of_auctions() {
        for in_flight in [100, 3_000] {
            let config = Config { in_flight, ..Config::default() };
            let mut lengths_ms = Vec::new();
            for record in whole(&config).take(200_000) {
                if let Event::Auction(auction) = record.event {
                    assert!((10..15).contains(&auction.category));
                    assert!(auction.reserve >= auction.initial_bid + 100);
                    lengths_ms.push(auction.expires.as_ms() - auction.date_time.as_ms());
                }
            }
            // 600 auctions open per second of event time.
            let mean = lengths_ms.iter().sum::<i64>() as f64 / lengths_ms.len() as f64;
            let expected = in_flight as f64 / 0.6;
            assert!((mean / expected - 1.0).abs() < 0.03, "{mean} ms, not {expected}");
            assert!(*lengths_ms.iter().min().unwrap() >= 1);
        }
    }

    #[test]
    fn cold_bids_spread_over_the_auctions_in_flight() {
        let config = Config { in_flight: 3_000, ..Config::default() };
        let mut oldest = 0;
        let mut cold = 0u64;
        let mut distance = 0;
        for (n, bid) in bids(&config, 300_000).filter(|(n, _)| *n >= 100_000) {
            let newest = ids::FIRST_ID + ids::last_auction(n);
            if bid.auction % 100 != 0 && bid.auction <= newest {
                oldest = oldest.max(newest - bid.auction);
                distance += newest - bid.auction;
                cold += 1;
            }
        }
        assert!((2_990..=3_000).contains(&oldest), "{oldest}");
        assert!((1_450..1_550).contains(&(distance / cold)), "{}", distance / cold);
    }

    #[test]
    fn shares_of_a_stream_make_the_stream() {
        let config = Config { group: 100, seed: 3, ..Config::default() };
        let mut joined = Vec::new();
        for index in 0..3 {
            let part = Generator::new(config.clone(), Stride::of_worker(index, 3)).unwrap();
            joined.extend(part.take(1_000));
        }
        joined.sort_by_key(|record| record.ordinal);
        assert!(joined.into_iter().eq(whole(&config).take(3_000)));
    }

    #[test]
    fn a_stream_restarts_exactly() {
        let stride = Stride::of_worker(1, 2);
        let mut restarted = Generator::new(Config::default(), stride).unwrap();
        let expected: Vec<_> = restarted.clone().skip(500).take(500).collect();
        restarted.seek(1_000);
        assert_eq!(restarted.ordinal(), 1_001);
        assert!(restarted.take(500).eq(expected));
    }

    #[test]
    fn no_event_is_behind_the_watermark() {
        let config = Config { group: 1_000, ..Config::default() };
        let mut generator = Generator::new(config, Stride::of_worker(1, 2)).unwrap();
        let mut seen = Vec::new();
        for _ in 0..5_000 {
            let watermark = generator.watermark();
            seen.push((watermark, generator.next().unwrap().event.time()));
        }
        assert!(seen.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(seen.iter().all(|(watermark, time)| time >= watermark));
        assert!(seen.windows(2).any(|pair| pair[0].1 > pair[1].1), "out of order");
    }

    /// The stream is part of every published figure: a change here is a change of workload.
    #[test]
    fn the_first_events_are_pinned() {
        let digest = |config: &Config| {
            whole(config).take(10_000).fold(0u64, |sum, r| sum.wrapping_add(r.event.digest()))
        };
        let numbers = digest(&Config::default());
        let scaled = digest(&Config { in_flight: 300_000, seed: 1, ..Config::default() });
        assert_eq!((numbers, scaled), (16_923_572_713_404_106_423, 10_104_773_249_279_275_629));
        let strings: Vec<_> = whole(&Config::default())
            .filter_map(|record| match record.event {
                Event::Person(p) => Some(format!("{}, {}, {}", p.name(), p.city(), p.state())),
                Event::Auction(a) => Some(format!("{}, {}", a.item_name(), a.extra().len())),
                Event::Bid(_) => None,
            })
            .take(2)
            .collect();
        assert_eq!(strings, ["Paul Noris, Los Angeles, WA", "vl, 316"]);
    }
}
