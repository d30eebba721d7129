//! Whether the key groups of an operator move, as a type: only a dataflow that lets them move compiles
//! the router and what installs groups.

#![allow(
    private_bounds,
    private_interfaces,
    reason = "nobody else names the body of an operator, so the trait is ours to implement and to call"
)]

use alluvium::{Key, Result};
use timely::ExchangeData;
use timely::dataflow::StreamVec;
use timely::dataflow::operators::core::Concat;

use crate::event_time::EventTime;
use crate::intake::PreparedIntake;
use crate::migration::{MoveGroup, moving};
use crate::operators::key_by::Keyed;
use crate::operators::shell::{OperatorBody, timed};
use crate::operators::spec::{OperatorState, Spec};

/// Whether the key groups of an operator move: [`Fixed`] or [`Moved`].
pub trait Placing<'scope, T: EventTime>: Sized {
    /// Those of an operator that also has an input of `M`.
    type With<M: Placing<'scope, T>>: Placing<'scope, T>;

    /// Combines it with that of another input.
    fn with<M: Placing<'scope, T>>(self, other: M) -> Self::With<M>;

    /// Returns the control stream, if there is one.
    fn control(self) -> Option<StreamVec<'scope, T, MoveGroup>>;

    /// Starts an operator, whose body `open` makes.
    ///
    /// # Errors
    /// Those of `open` and of memory for what waits.
    fn start<K, D, F, B, L>(
        self,
        keyed: Keyed<'scope, T, D, F>,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<B>,
    ) -> Result<StreamVec<'scope, T, B::Row>>
    where
        K: Key,
        D: ExchangeData,
        F: Fn(&D) -> K + 'static,
        B: OperatorBody<T, K, D>,
        L: Clone;
}

/// Key groups stay where they are.
#[derive(Clone, Copy, Debug)]
pub struct Fixed;

/// Key groups move, as a control stream requests.
pub struct Moved<'scope, T: EventTime>(pub(crate) StreamVec<'scope, T, MoveGroup>);

impl<T: EventTime> std::fmt::Debug for Moved<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Moved")
    }
}

impl<'scope, T: EventTime> Placing<'scope, T> for Fixed {
    type With<M: Placing<'scope, T>> = M;

    fn with<M: Placing<'scope, T>>(self, other: M) -> M {
        other
    }

    fn control(self) -> Option<StreamVec<'scope, T, MoveGroup>> {
        None
    }

    fn start<K, D, F, B, L>(
        self,
        keyed: Keyed<'scope, T, D, F>,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<B>,
    ) -> Result<StreamVec<'scope, T, B::Row>>
    where
        K: Key,
        D: ExchangeData,
        F: Fn(&D) -> K + 'static,
        B: OperatorBody<T, K, D>,
        L: Clone,
    {
        let name = spec.id().to_owned();
        let opener = OperatorState::new(&keyed.state, spec)?;
        let body = open(&opener)?;
        let prepared = PreparedIntake::<K>::new::<T, D>(&keyed.state, &opener)?;
        Ok(timed(keyed, &name, prepared, body))
    }
}

impl<'scope, T: EventTime> Placing<'scope, T> for Moved<'scope, T> {
    type With<M: Placing<'scope, T>> = Self;

    fn with<M: Placing<'scope, T>>(self, other: M) -> Self {
        match other.control() {
            Some(also) => Self(self.0.concat(also)),
            None => self,
        }
    }

    fn control(self) -> Option<StreamVec<'scope, T, MoveGroup>> {
        Some(self.0)
    }

    fn start<K, D, F, B, L>(
        self,
        keyed: Keyed<'scope, T, D, F>,
        spec: Spec<L>,
        open: impl FnOnce(&OperatorState<'_, L>) -> Result<B>,
    ) -> Result<StreamVec<'scope, T, B::Row>>
    where
        K: Key,
        D: ExchangeData,
        F: Fn(&D) -> K + 'static,
        B: OperatorBody<T, K, D>,
        L: Clone,
    {
        let name = spec.id().to_owned();
        let opener = OperatorState::moving(&keyed.state, spec)?;
        let mut body = open(&opener)?;
        // All are at one watermark, also before the first schedule.
        body.go_to_first()?;
        let prepared = PreparedIntake::<K>::new::<T, D>(&keyed.state, &opener)?;
        let mover = opener.mover().expect("a moving operator has one").clone();
        moving((keyed, self.0), (&name, mover), prepared, body)
    }
}
