//! What one operator says about its state, and how it opens it.

use alluvium::{AnyLayout, Count, Key, Map, Result, State, StateBuilder, Store, Timers, Value};

use crate::worker::WorkerState;

/// Names an operator's state and may choose its layout.
///
/// The id is part of what is stored: it must stay the same from one version of a program to the
/// next, whatever else changes in the dataflow, and be different for each operator.
#[derive(Clone, Debug)]
pub struct Spec {
    id: String,
    layout: Option<AnyLayout>,
}

impl Spec {
    /// State named `id`, in the layout that the worker's configuration gives.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), layout: None }
    }

    /// Keeps the operator's state in this layout, whatever the worker and the node say.
    #[must_use]
    pub fn layout(mut self, layout: impl Into<AnyLayout>) -> Self {
        self.layout = Some(layout.into());
        self
    }

    /// The operator's id.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Opens the states of one operator; each is named `id/name` in the worker's store.
#[derive(Debug)]
pub struct OperatorState<'a> {
    store: &'a Store,
    spec: Spec,
}

impl<'a> OperatorState<'a> {
    pub(crate) fn new(worker: &'a WorkerState, spec: Spec) -> Result<Self> {
        worker.register(&spec.id)?;
        Ok(Self { store: worker.store(), spec })
    }

    /// A value per key.
    pub fn map<K: Key, V: State>(&self, name: &str) -> Result<Map<K, V>> {
        self.placed(self.store.map(&self.name_of(name))).open()
    }

    /// A counter per key.
    pub fn count<K: Key>(&self, name: &str) -> Result<Count<K>> {
        self.placed(self.store.count(&self.name_of(name))).open()
    }

    /// One value of this worker, which is not keyed and so stays with the worker.
    pub fn value<V: State>(&self, name: &str) -> Result<Value<V>> {
        self.placed(self.store.value(&self.name_of(name))).open()
    }

    /// The operator's pending timers.
    pub(crate) fn timers<K: Key + Ord>(&self) -> Result<Timers<K>> {
        self.store.timers(&self.name_of("timers"))
    }

    fn name_of(&self, name: &str) -> String {
        format!("{}/{name}", self.spec.id)
    }

    fn placed<'b, P>(&self, builder: StateBuilder<'b, P>) -> StateBuilder<'b, P> {
        match &self.spec.layout {
            Some(layout) => builder.layout(layout.clone()),
            None => builder,
        }
    }
}
