//! The commands on directories that real stores have left.

mod common;
mod damage_is_all_found;
mod lists_and_windows_are_exported;
mod the_directory_is_told_as_it_is;
mod values_are_exported_as_serde_would_write_them;
mod what_a_moved_group_has_left;
mod what_is_in_sorted_runs_is_exported;
