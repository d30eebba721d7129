//! A workload-aware state store for stream processors: typed state over selectable layouts.
