//! What the store promises of lists: through checkpoints, crashes, full disks and damage.

mod lists_survive_trouble;
