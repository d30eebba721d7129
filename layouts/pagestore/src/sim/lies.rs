//! Storage that damages one write although its sync succeeded.
//!
//! A crash of honest storage loses only unsynced changes. Lying storage has lost, torn, damaged or
//! misplaced a write that it reported as durable. A store cannot undo that; it has to detect it, or
//! must not depend on the write.

use std::sync::Arc;

use super::crash::Surviving;
use super::disk::{SECTOR_BYTES, put};
use super::faults::Dice;
use crate::io::BLOCK_BYTES;

/// How storage mistreated a write, durable or not, without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lie {
    /// The write was lost.
    Lost,
    /// Only some of its first sectors were written.
    Torn,
    /// It went to another block, of the same file or of another.
    Misdirected,
    /// One bit of it is wrong.
    FlippedBit,
}

impl Lie {
    /// Tells it of one write to these files: half of the time one of the last of a file. Says
    /// whether there was a write.
    pub(super) fn tell(self, files: &mut [Surviving], dice: &mut Dice) -> bool {
        let count = |file: &Surviving| file.past.len() + file.writes.len();
        let written: Vec<usize> = (0..files.len()).filter(|at| count(&files[*at]) > 0).collect();
        if written.is_empty() {
            return false;
        }
        let at = written[dice.below(written.len() as u64) as usize];
        let file = &mut files[at];
        file.past.append(&mut file.writes);
        let last = file.past.len() - 1;
        let which = if dice.coin() { last } else { dice.below(last as u64 + 1) as usize };
        let (offset, bytes) = file.past[which].clone();
        match self {
            Self::Lost => drop(file.past.remove(which)),
            Self::Torn => {
                let sectors = dice.below(bytes.len().div_ceil(SECTOR_BYTES) as u64) as usize;
                file.past[which].1 = Arc::new(bytes[..sectors * SECTOR_BYTES].to_vec());
            }
            Self::FlippedBit => {
                let bit = dice.below(bytes.len() as u64 * 8);
                let mut wrong = bytes.to_vec();
                if let Some(byte) = wrong.get_mut((bit / 8) as usize) {
                    *byte ^= 1 << (bit % 8);
                }
                file.past[which].1 = Arc::new(wrong);
            }
            Self::Misdirected => {
                file.past.remove(which);
                let other = if dice.coin() { at } else { dice.below(files.len() as u64) as usize };
                let mut block = dice.below(blocks(&files[other]) + 1);
                if other == at && block == offset / BLOCK_BYTES as u64 {
                    block += 1;
                }
                let target = &mut files[other];
                target.writes.push((block * BLOCK_BYTES as u64, bytes));
                make_anew(target);
            }
        }
        make_anew(&mut files[at]);
        true
    }
}

fn blocks(file: &Surviving) -> u64 {
    file.durable.len().div_ceil(BLOCK_BYTES) as u64
}

/// Makes the durable bytes anew, of the writes that there are now.
fn make_anew(file: &mut Surviving) {
    let mut bytes = Vec::new();
    file.past.append(&mut file.writes);
    file.past.iter().for_each(|(offset, written)| put(&mut bytes, *offset, written));
    file.durable = Arc::new(bytes);
}
