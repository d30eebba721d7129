//! Steps that run a user's code, such as drops, and are all taken whatever panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The first panic of some steps, kept until the last one is taken.
#[must_use = "a panic goes on after the last step"]
#[derive(Default)]
pub(crate) struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    /// Takes a step.
    pub fn catch(&mut self, step: impl FnOnce()) {
        self.keep(catch_unwind(AssertUnwindSafe(step)).err());
    }

    /// Keeps the panic of a step that was caught, if it is the first.
    pub fn keep(&mut self, panic: Option<Box<dyn Any + Send>>) {
        if self.0.is_none() {
            self.0 = panic;
        }
    }

    /// Lets it go on, unless another one does.
    pub fn resume(self) {
        if let Some(panic) = self.0
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_are_taken_and_the_first_panic_goes_on() {
        let mut taken = 0;
        let all = catch_unwind(AssertUnwindSafe(|| {
            let mut panic = FirstPanic::default();
            for step in 0..4 {
                panic.catch(|| {
                    taken += 1;
                    assert!(step % 2 == 0, "planned {step}");
                });
            }
            panic.resume();
        }));
        assert_eq!(taken, 4);
        assert_eq!(all.unwrap_err().downcast_ref::<String>().unwrap(), "planned 1");
        FirstPanic::default().resume();
    }
}
