//! One store becomes three, these two, and these one again, each time in another layout: the states
//! are what the model is, and windows give what they give undisturbed.

use alluvium::Heap;

use crate::dice::Dice;
use crate::job::{Job, Model, layouts};

#[test]
fn one_becomes_three_becomes_two_becomes_one() {
    let layouts = layouts();
    for (start, (name, _)) in layouts.iter().enumerate() {
        for step in [0, 1] {
            let layout = |stage: usize| &layouts[(start + stage * step) % layouts.len()].1;
            let (mut model, mut dice) = (Model::default(), Dice(41 + start as u64));
            let mut job = Job::new(1, layout(0));
            let mut undisturbed = Job::new(1, &Heap::new().into());
            for (stage, workers) in [3, 2, 1, 1].into_iter().enumerate() {
                job.change(&mut model, &mut dice, 400);
                for _ in 0..3 {
                    let seed = dice.next();
                    job.stream(&mut Dice(seed), 60);
                    undisturbed.stream(&mut Dice(seed), 60);
                }
                let when = format!("{name}, by {step}, stage {stage}");
                assert_eq!(job.read(), model.clone().in_order(), "{when}");
                job = job.rescaled(workers, layout(stage + 1));
                assert_eq!(job.read(), model.clone().in_order(), "{when}, restored");
            }
            job.advance(10_000);
            undisturbed.advance(10_000);
            assert!(!job.rows.is_empty());
            assert_eq!(job.rows, undisturbed.rows, "{name}, by {step}");
        }
    }
}
