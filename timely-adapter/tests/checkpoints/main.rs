//! Checkpoints of whole jobs.

mod checker;
#[path = "../../../store/tests/golden/files.rs"]
#[expect(dead_code, reason = "shared with other programs")]
mod files;
#[path = "../../../layouts/tests/common/hand_on.rs"]
mod hand_on;
mod job;
#[path = "../common/processes.rs"]
mod processes;

mod a_checkpoint_without_room_in_memory_is_given_up;
mod a_directory_of_before_goes_on;
mod a_job_crashes_at_any_step;
mod a_job_goes_back_to_an_older_checkpoint;
mod a_job_goes_on_from_one_checkpoint_on_all_workers;
mod a_job_goes_on_with_another_number_of_workers;
mod a_job_is_killed_while_its_tables_move;
mod a_sink_shows_each_row_once;
mod a_worker_goes_on_while_its_checkpoint_is_committed;
mod moves_at_the_time_of_a_checkpoint_begin_after_it;
mod rows_of_one_time_are_on_one_side_of_a_checkpoint;
mod what_a_record_names_stays;
mod workers_that_have_ended_hold_nobody_back;
