//! Sliding windows of aggregates that cannot subtract: what is kept from one window to the next
//! changes no result, takes a few merges per slice and key, and no memory that others need.

#[path = "../behaviour/common/dice.rs"]
#[expect(dead_code, reason = "shared with other programs")]
mod dice;
#[path = "../windows/model.rs"]
#[expect(dead_code, reason = "shared with other programs")]
mod model;

mod in_order;
mod results_equal_the_model;
mod room_is_given_back;
mod work_is_bounded;
