//! The plain models of windows and of days against the shared cases and examples worked by hand:
//! what the queries are measured by is right itself.

use alluvium::Time;
use alluvium_bench::nexmark::{
    Auction, AuctionText, Bid, BidText, Event, Person, PersonText, Text,
};

use crate::cases::{cases_named, expected_changes, steps};
use crate::oracle::{Tables, days, testbed_windows, windows};
use crate::run::{Rows, consolidated};

/// After each step the model's result is the sum of all changes so far.
fn the_model_is_right(query: &str, model: fn(&Tables) -> Rows) {
    for case in cases_named(query) {
        let (mut events, mut changes) = (Vec::new(), Vec::new());
        for (number, (step, change)) in
            steps(&case).into_iter().zip(expected_changes(&case)).enumerate()
        {
            events.extend(step.into_iter().map(|record| record.event));
            changes.extend(change);
            let found = model(&Tables::of(events.clone()));
            let expected = consolidated(changes.clone());
            assert_eq!(found, expected, "{query} case {} step {number}", case.number);
        }
    }
}

#[test]
fn the_model_of_q5_is_right() {
    the_model_is_right("q5", windows::q5);
}

#[test]
fn the_model_of_q7_is_right() {
    the_model_is_right("q7", windows::q7);
}

#[test]
fn the_model_of_q8_is_right() {
    the_model_is_right("q8", windows::q8);
}

#[test]
fn the_model_of_q12_is_right() {
    the_model_is_right("q12", windows::q12);
}

#[test]
fn the_model_of_q15_is_right() {
    the_model_is_right("q15", days::q15);
}

#[test]
fn the_model_of_q16_is_right() {
    the_model_is_right("q16", days::q16);
}

fn bid(auction: u64, bidder: u64, price: i64, at_ms: i64) -> Event {
    let text = Text::Owned(BidText::default().into());
    Event::Bid(Bid { auction, bidder, price, date_time: Time::from_ms(at_ms), text })
}

fn person(id: u64, at_ms: i64) -> Event {
    let text = PersonText { name: format!("p{id}"), ..PersonText::default() };
    Event::Person(Person { id, date_time: Time::from_ms(at_ms), text: Text::Owned(text.into()) })
}

fn auction(id: u64, seller: u64, at_ms: i64) -> Event {
    Event::Auction(Auction {
        id,
        initial_bid: 0,
        reserve: 0,
        date_time: Time::from_ms(at_ms),
        expires: Time::from_ms(at_ms),
        seller,
        category: 10,
        text: Text::Owned(AuctionText::default().into()),
    })
}

fn rows(expected: &[(&str, i64)]) -> Rows {
    consolidated(expected.iter().map(|(row, times)| {
        (row.split(' ').map(|field| Some(field.replace('_', ""))).collect(), *times)
    }))
}

#[test]
fn a_bid_at_the_end_of_a_window_with_its_highest_price_is_in_q7_twice() {
    let events = [bid(1, 7, 50, 14_000), bid(2, 8, 50, 20_000), bid(3, 9, 40, 20_000)];
    let expected = rows(&[("1 50 7 14000 _", 1), ("2 50 8 20000 _", 2)]);
    assert_eq!(windows::q7(&Tables::of(events)), expected);
}

#[test]
fn q8_has_a_person_once_for_each_window() {
    let events = [
        person(1, 12_000),
        person(1, 13_000),
        auction(5, 1, 10_000),
        auction(6, 1, 19_999),
        auction(7, 1, 20_000),
        person(2, -1),
        auction(8, 2, -10_000),
        auction(9, 2, 0),
    ];
    let expected = rows(&[("1 p1 10000", 1), ("2 p2 -10000", 1)]);
    assert_eq!(windows::q8(&Tables::of(events)), expected);
}

#[test]
fn sessions_of_q11_meet_at_their_gap() {
    let events = [
        // Out of order, the last one joins the two before.
        bid(1, 1, 1, 1_000),
        bid(1, 1, 1, 21_000),
        bid(1, 1, 1, 11_000),
        bid(1, 1, 1, 31_001),
        bid(1, 2, 1, 5_000),
    ];
    let expected = rows(&[("1 3 1000 31000", 1), ("1 1 31001 41001", 1), ("2 1 5000 15000", 1)]);
    assert_eq!(windows::q11(&Tables::of(events)), expected);
}

#[test]
fn q16_has_the_latest_time_of_day_and_not_that_of_the_latest_bid() {
    let day = 86_400_000;
    let events = [bid(1, 1, 10_000, day + 3_599_999), bid(1, 2, 9_999, day + 60_000)];
    let expected = rows(&[("_ 1970-01-02 00:59 2 1 1 0 2 1 1 0 1 1 1 0", 1)]);
    assert_eq!(days::q16(&Tables::of(events)), expected);
}

#[test]
fn the_testbeds_q5_has_the_largest_of_equal_auctions_in_each_of_60_windows() {
    let events = [bid(3, 1, 1, 500), bid(4, 1, 1, 1_500), bid(3, 1, 1, 60_000)];
    let found = testbed_windows::q5(&Tables::of(events));
    assert_eq!(found.values().sum::<i64>(), 60 + 60);
    for (row, times) in
        rows(&[("1000 3 1", 1), ("2000 4 1", 1), ("61000 4 1", 1), ("62000 3 1", 1)])
    {
        assert_eq!(found.get(&row), Some(&times), "{row:?}");
    }
    // From -59 to 1, from 2 to 60 s, and then only the bid at 60 s.
    assert_eq!(found.keys().filter(|row| row[1].as_deref() == Some("4")).count(), 60);
}

#[test]
fn the_testbeds_q7_is_a_price_for_each_window() {
    let events = [bid(1, 1, 5, 9_999), bid(1, 1, 7, 10_000), bid(1, 1, 6, 0), bid(1, 1, 7, 19_999)];
    assert_eq!(testbed_windows::q7(&Tables::of(events)), rows(&[("10000 6", 1), ("20000 7", 1)]));
}

#[test]
fn the_testbeds_q8_is_a_row_for_each_auction_in_12_hours() {
    let hours = 3_600_000;
    let events = [
        person(1, hours),
        auction(1, 1, 0),
        auction(2, 1, 13 * hours - 1),
        auction(3, 1, 13 * hours),
        auction(4, 2, hours),
    ];
    assert_eq!(testbed_windows::q8(&Tables::of(events)), rows(&[("1", 2)]));
}
