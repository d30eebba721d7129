//! Workloads, peers and reports for Alluvium.
