//! Alluvium state in Timely dataflow operators.
