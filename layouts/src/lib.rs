//! Physical layouts of state: the hash-indexed hybrid log and plain heap, behind small traits.
