//! The slow and obvious answers: each window looks at all records in it, by their numbers.

use alluvium::types::{combine, hash_word};

use super::{Answer, Job, Question};

/// The answers over the first `records`, by the starts of windows. A window without records has none.
pub fn expected(job: &Job, records: u64) -> Vec<Answer> {
    if records == 0 {
        return Vec::new();
    }
    let first = job.first_end() - job.length;
    let starts = (0..).map(|n| first + n * job.slide);
    let starts = starts.take_while(|start| *start <= job.at(records - 1));
    let answers = starts.map(|start| {
        let (from, to) = (before(job, records, start), before(job, records, start + job.length));
        let mut values = (from..to).map(|number| job.value(number)).collect::<Vec<_>>();
        (
            start,
            to - from,
            match job.question {
                Question::Count => to - from,
                Question::Rank => digest(&mut values),
            },
        )
    });
    answers.filter(|(_, count, _)| *count > 0).map(|(start, _, answer)| (start, answer)).collect()
}

/// How many records are before a time.
fn before(job: &Job, records: u64, at: i64) -> u64 {
    let (mut low, mut high) = (0, records);
    while low < high {
        let middle = low + (high - low) / 2;
        if job.at(middle) < at { low = middle + 1 } else { high = middle }
    }
    low
}

/// A digest of values in order, each with its rank: equal values have the same, and the next larger one
/// has its place.
pub fn digest(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    let mut digest = values.len() as u64;
    ranks(values, |value, rank| digest = combine(digest, hash_word(value ^ rank << 32)));
    digest
}

/// Tells the ranks of sorted values, from 1.
fn ranks(values: &[u64], mut tell: impl FnMut(u64, u64)) {
    let mut rank = 0;
    for (place, value) in values.iter().enumerate() {
        if place == 0 || values[place - 1] != *value {
            rank = place as u64 + 1;
        }
        tell(*value, rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_gaps_after_ties() {
        let mut told = Vec::new();
        ranks(&[3, 5, 5, 5, 8], |value, rank| told.push((value, rank)));
        assert_eq!(told, [(3, 1), (5, 2), (5, 2), (5, 2), (8, 5)]);
        let digests = [vec![5, 3, 5], vec![3, 5, 5], vec![3, 3, 5], vec![3, 5]];
        let [one, two, three, four] = digests.map(|mut values| digest(&mut values));
        assert!(one == two && one != three && one != four);
    }
}
