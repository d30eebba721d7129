//! The text of a row: owned when it came from a file, otherwise a seed that makes it on demand.
//!
//! A generated row carries 8 bytes for all its strings. Each column has its own random sequence
//! from that seed, so one is rendered without the others; only `extra`, which pads a row to its
//! average size, asks for their lengths. `extra` and the fixed words are borrowed, not copied.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use super::random::{Random, mix};

/// The strings of one row, `T` being what an owned set of them is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Text<T> {
    /// Made from this seed whenever asked for.
    Generated(u64),
    /// Read from somewhere; shared by the clones of the row.
    Owned(Arc<T>),
}

/// A person's strings as read from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersonText {
    /// First and last name.
    pub name: String,
    /// Address for mail.
    pub email_address: String,
    /// Four groups of four digits.
    pub credit_card: String,
    /// City.
    pub city: String,
    /// State, two upper-case letters.
    pub state: String,
    /// Padding.
    pub extra: String,
}

/// An auction's strings as read from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuctionText {
    /// What is sold.
    pub item_name: String,
    /// More about it.
    pub description: String,
    /// Padding.
    pub extra: String,
}

/// A bid's strings as read from a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BidText {
    /// Where the bidder came from.
    pub channel: String,
    /// The page he came from.
    pub url: String,
    /// Padding.
    pub extra: String,
}

/// Columns with a random sequence of their own.
#[derive(Clone, Copy)]
enum Column {
    Name = 1,
    Email,
    CreditCard,
    City,
    State,
    ItemName,
    Description,
    Channel,
    Extra,
}

const FIRST_NAMES: [&str; 11] = [
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
];
const LAST_NAMES: [&str; 9] =
    ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"];
const CITIES: [&str; 10] = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
];
const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];
const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];
const CHANNELS: u64 = 10_000;

/// Average bytes of a row, which `extra` makes up; the numbers in a row count 8 bytes each.
const PERSON_BYTES: usize = 200;
const AUCTION_BYTES: usize = 500;
const BID_BYTES: usize = 100;

impl Text<PersonText> {
    pub(super) fn name(&self) -> Cow<'_, str> {
        self.column(|text| &text.name, |seed| name(seed).into())
    }

    pub(super) fn email_address(&self) -> Cow<'_, str> {
        self.column(|text| &text.email_address, |seed| email_address(seed).into())
    }

    pub(super) fn credit_card(&self) -> Cow<'_, str> {
        self.column(|text| &text.credit_card, |seed| credit_card(seed).into())
    }

    pub(super) fn city(&self) -> Cow<'_, str> {
        self.column(|text| &text.city, |seed| pick(seed, Column::City, &CITIES).into())
    }

    pub(super) fn state(&self) -> Cow<'_, str> {
        self.column(|text| &text.state, |seed| pick(seed, Column::State, &STATES).into())
    }

    pub(super) fn extra(&self) -> Cow<'_, str> {
        let others = || {
            let columns = [self.name(), self.email_address(), self.credit_card()];
            let strings: usize = columns.iter().map(|column| column.len()).sum();
            8 + strings + self.city().len() + self.state().len()
        };
        self.column(|text| &text.extra, |seed| padding(seed, others(), PERSON_BYTES).into())
    }
}

impl Text<AuctionText> {
    pub(super) fn item_name(&self) -> Cow<'_, str> {
        self.column(|text| &text.item_name, |seed| words(seed, Column::ItemName, 20).into())
    }

    pub(super) fn description(&self) -> Cow<'_, str> {
        self.column(|text| &text.description, |seed| words(seed, Column::Description, 100).into())
    }

    pub(super) fn extra(&self) -> Cow<'_, str> {
        let others = || 48 + self.item_name().len() + self.description().len();
        self.column(|text| &text.extra, |seed| padding(seed, others(), AUCTION_BYTES).into())
    }
}

impl Text<BidText> {
    pub(super) fn channel(&self) -> Cow<'_, str> {
        self.column(|text| &text.channel, |seed| channel_number(seed).name())
    }

    pub(super) fn url(&self) -> Cow<'_, str> {
        self.column(|text| &text.url, |seed| channel_number(seed).url().into())
    }

    pub(super) fn extra(&self) -> Cow<'_, str> {
        // The channel and the page do not count, as in Flink's generator.
        self.column(|text| &text.extra, |seed| padding(seed, 32, BID_BYTES).into())
    }
}

impl<T> Text<T> {
    fn column<'a>(
        &'a self,
        owned: impl FnOnce(&'a T) -> &'a String,
        generated: impl FnOnce(u64) -> Cow<'a, str>,
    ) -> Cow<'a, str> {
        match self {
            Text::Generated(seed) => generated(*seed),
            Text::Owned(text) => Cow::Borrowed(owned(text)),
        }
    }
}

/// A channel: one of the four hot ones, or one of many numbered ones.
enum Channel {
    Hot(usize),
    Numbered(u64),
}

fn channel_number(seed: u64) -> Channel {
    let mut random = column(seed, Column::Channel);
    if random.below(2) > 0 {
        Channel::Hot(random.below(HOT_CHANNELS.len() as u64) as usize)
    } else {
        Channel::Numbered(random.below(CHANNELS))
    }
}

impl Channel {
    fn name(&self) -> Cow<'static, str> {
        match *self {
            Channel::Hot(index) => HOT_CHANNELS[index].into(),
            Channel::Numbered(number) => format!("channel-{number}").into(),
        }
    }

    /// A channel has one page, which is a function of its number.
    fn url(&self) -> String {
        let page = match *self {
            Channel::Hot(index) => CHANNELS + index as u64,
            Channel::Numbered(number) => number,
        };
        let mut random = Random::new(mix(page));
        let mut url = String::with_capacity(80);
        url.push_str("https://www.nexmark.com");
        for _ in 0..3 {
            url.push('/');
            push_letters(&mut url, &mut random, 5, '_');
        }
        url.push_str("/item.htm?query=1");
        if let Channel::Numbered(number) = *self
            && random.below(10) > 0
        {
            let id = (number as u32).reverse_bits().cast_signed().unsigned_abs();
            url.push_str(&format!("&channel_id={id}"));
        }
        url
    }
}

fn name(seed: u64) -> String {
    let mut random = column(seed, Column::Name);
    let first = FIRST_NAMES[random.below(FIRST_NAMES.len() as u64) as usize];
    let last = LAST_NAMES[random.below(LAST_NAMES.len() as u64) as usize];
    format!("{first} {last}")
}

fn email_address(seed: u64) -> String {
    let mut random = column(seed, Column::Email);
    let user = trimmed(&mut random, 7);
    let host = trimmed(&mut random, 5);
    format!("{user}@{host}.com")
}

fn credit_card(seed: u64) -> String {
    let mut random = column(seed, Column::CreditCard);
    let mut group = || random.below(10_000);
    format!("{:04} {:04} {:04} {:04}", group(), group(), group(), group())
}

fn words(seed: u64, name: Column, length_max: u64) -> String {
    trimmed(&mut column(seed, name), length_max)
}

fn trimmed(random: &mut Random, length_max: u64) -> String {
    let mut text = String::with_capacity(length_max as usize);
    push_letters(&mut text, random, length_max, ' ');
    text.trim().to_owned()
}

/// Three to `length_max` - 1 letters, one in 13 of them replaced by `special`.
fn push_letters(text: &mut String, random: &mut Random, length_max: u64, special: char) {
    for _ in 0..3 + random.below(length_max - 3) {
        let letter =
            if random.below(13) == 0 { special } else { char::from(b'a' + random.below(26) as u8) };
        text.push(letter);
    }
}

/// What makes up a row of `present` bytes to `average` bytes, more or less a fifth of the rest.
fn padding(seed: u64, present: usize, average: usize) -> &'static str {
    let Some(missing) = average.checked_sub(present).filter(|&missing| missing > 0) else {
        return "";
    };
    let mut random = column(seed, Column::Extra);
    let spread = (missing as u64 + 2) / 5;
    let length = missing as u64 - spread + random.below((2 * spread).max(1));
    let start = random.below(LETTERS_BYTES - length) as usize;
    &LETTERS[start..start + length as usize]
}

const LETTERS_BYTES: u64 = 1 << 20;

/// Letters that all padding is borrowed from.
static LETTERS: LazyLock<String> = LazyLock::new(|| {
    let mut random = Random::new(0);
    (0..LETTERS_BYTES).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
});

fn pick(seed: u64, name: Column, from: &[&'static str]) -> &'static str {
    from[column(seed, name).below(from.len() as u64) as usize]
}

fn column(seed: u64, name: Column) -> Random {
    Random::new(mix(seed ^ (name as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(lengths: impl Iterator<Item = usize>) -> usize {
        let (count, sum) = lengths.fold((0, 0), |(n, sum), length| (n + 1, sum + length));
        sum / count
    }

    #[test]
    fn rows_have_the_average_sizes_of_beam() {
        let people = (0..5_000).map(|seed| Text::<PersonText>::Generated(mix(seed)));
        let person_bytes = |text: Text<PersonText>| {
            let columns = [text.name(), text.email_address(), text.credit_card()];
            let strings: usize = columns.iter().map(|column| column.len()).sum();
            8 + strings + text.city().len() + text.state().len() + text.extra().len()
        };
        let auctions = (0..5_000).map(|seed| Text::<AuctionText>::Generated(mix(seed)));
        let auction_bytes = |text: Text<AuctionText>| {
            48 + text.item_name().len() + text.description().len() + text.extra().len()
        };
        let bids = (0..5_000).map(|seed| Text::<BidText>::Generated(mix(seed)));
        assert!((198..=202).contains(&mean(people.map(person_bytes))));
        assert!((494..=506).contains(&mean(auctions.map(auction_bytes))));
        assert!((98..=102).contains(&mean(bids.map(|text| 32 + text.extra().len()))));
    }

    #[test]
    fn half_the_bids_come_through_hot_channels() {
        let texts: Vec<_> = (0..20_000).map(|seed| Text::Generated(mix(seed))).collect();
        let hot = |text: &&Text<BidText>| HOT_CHANNELS.contains(&&*text.channel());
        let share = texts.iter().filter(hot).count();
        assert!((9_700..10_300).contains(&share), "{share}");
    }

    #[test]
    fn a_channel_has_one_page_and_mostly_its_id_in_it() {
        let page = Channel::Numbered(4_711);
        assert_eq!(page.url(), Channel::Numbered(4_711).url());
        assert!(Channel::Hot(2).url().ends_with("/item.htm?query=1"));
        let with_id = |&number: &u64| Channel::Numbered(number).url().contains("&channel_id=");
        let share = (0..CHANNELS).filter(with_id).count();
        assert!((8_900..9_100).contains(&share), "{share}");
    }

    #[test]
    fn words_are_trimmed_and_short_enough() {
        for seed in 0..5_000 {
            let text = Text::<AuctionText>::Generated(mix(seed));
            assert!(text.item_name().len() < 20 && text.description().len() < 100);
            assert_eq!(text.item_name(), text.item_name().trim());
        }
    }
}
