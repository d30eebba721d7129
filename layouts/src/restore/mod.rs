//! Reading checkpoints back: full images, and shares of other stores' checkpoints.

pub(crate) mod full_image;
pub(crate) mod left_runs;
pub(crate) mod of_runs;
pub(crate) mod parts;
pub(crate) mod passing;
