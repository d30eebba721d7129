//! What the router of a worker hears of the operator behind it: how far all workers are, and which of
//! its chunks were installed.
//!
//! Timely lets nothing flow back at the time it came with. So what is to be known in front is told by
//! operators at the end: one that what comes out goes through sees how far all are, and sends word of
//! what was installed on its worker to the one that had sent it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::StreamVec;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Operator;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::scheduling::Activator;

use crate::event_time::EventTime;
use crate::operators::key_by::Builder;

/// A chunk was installed: the worker that had sent it, and its bytes.
type Installed = (u32, u64);

/// How far the whole operator is, on all workers, as its output shows on this one.
pub(super) struct MigrationProgress<T> {
    /// The least time that may still come out; `None` if none can.
    least: RefCell<Option<T>>,
    /// Bytes of this worker's chunks that were sent and that nobody has said to be installed.
    under_way: Cell<u64>,
    /// Chunks that were installed here and that nobody has been told of.
    installed: RefCell<Vec<Installed>>,
    router: RefCell<Option<Activator>>,
    /// What sends word of them.
    teller: RefCell<Option<Activator>>,
    /// Whether the router waits for a later time.
    is_awaited: Cell<bool>,
}

impl<T: EventTime> MigrationProgress<T> {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            least: RefCell::new(Some(T::minimum())),
            under_way: Cell::new(0),
            installed: RefCell::default(),
            router: RefCell::default(),
            teller: RefCell::default(),
            is_awaited: Cell::new(false),
        })
    }

    /// The router, to be woken when it is awaited.
    pub fn attach(&self, router: Activator) {
        *self.router.borrow_mut() = Some(router);
    }

    /// Whether the router waits for others.
    pub fn await_more(&self, is_awaited: bool) {
        self.is_awaited.set(is_awaited);
    }

    /// Whether everything before `time` is done.
    pub fn has_come_to(&self, time: &T) -> bool {
        self.least.borrow().as_ref().is_none_or(|least| least >= time)
    }

    /// Whether everything at `time` is done.
    pub fn has_passed(&self, time: &T) -> bool {
        self.least.borrow().as_ref().is_none_or(|least| least > time)
    }

    /// Bytes of chunks that were sent from here and are not installed, as far as is known.
    pub fn under_way(&self) -> u64 {
        self.under_way.get()
    }

    /// A chunk of so many bytes is sent from here.
    pub fn send(&self, bytes: u64) {
        self.under_way.set(self.under_way.get() + bytes);
    }

    /// A chunk of another worker, or of this one, was installed here.
    pub fn install(&self, from: u32, bytes: u64) {
        self.installed.borrow_mut().push((from, bytes));
        self.teller.borrow().iter().for_each(Activator::activate);
    }

    fn set(&self, least: Option<T>) {
        *self.least.borrow_mut() = least;
        self.wake();
    }

    fn arrived(&self, bytes: u64) {
        self.under_way.set(self.under_way.get() - bytes);
        self.wake();
    }

    fn wake(&self) {
        if self.is_awaited.get() {
            self.router.borrow().iter().for_each(Activator::activate);
        }
    }
}

/// Hands on what comes out of the operator, and tells the routers of what it shows and was installed.
pub(super) fn observe<'scope, T: EventTime, R: 'static>(
    changes: StreamVec<'scope, T, R>,
    operator: &str,
    progress: Rc<MigrationProgress<T>>,
) -> StreamVec<'scope, T, R> {
    let scope = changes.scope();
    let mut builder = OperatorBuilder::new(format!("{operator}: progress"), scope);
    let mut changes = builder.new_input(changes, Pipeline);
    let (out_changes, observed) = builder.new_output();
    let (out_installed, installed) = builder.new_output();
    let mut out_changes = OutputBuilder::<_, Builder<R>>::from(out_changes);
    let mut out_installed =
        OutputBuilder::<_, CapacityContainerBuilder<Vec<Installed>>>::from(out_installed);
    let activator = scope.activator_for(builder.operator_info().address.clone());
    *progress.teller.borrow_mut() = Some(activator);
    let told = progress.clone();
    builder.build(move |mut capabilities| {
        // To send word at the time that all are at.
        let mut right = capabilities.pop();
        capabilities.clear();
        move |frontiers| {
            let mut out_changes = out_changes.activate();
            changes.for_each(|capability, batch| {
                out_changes.session(&capability).give_container(batch);
            });
            if let Some(right) = &right {
                let mut out_installed = out_installed.activate();
                let mut installed = progress.installed.borrow_mut();
                out_installed.session(right).give_iterator(installed.drain(..));
            }
            let least = frontiers[0].frontier().first().cloned();
            match (&least, &mut right) {
                (None, right) => *right = None,
                (Some(least), Some(right)) if right.time() < least => right.downgrade(least),
                _ => {}
            }
            progress.set(least);
        }
    });
    let to_sender = Exchange::new(|(from, _): &Installed| u64::from(*from));
    installed.sink(to_sender, &format!("{operator}: installed"), move |(installed, _)| {
        installed.for_each_time(|_, batches| {
            for (_, bytes) in batches.flat_map(|batch| batch.drain(..)) {
                told.arrived(bytes);
            }
        });
    });
    observed
}
