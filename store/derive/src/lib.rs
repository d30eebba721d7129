//! The derive macro of Alluvium's State trait.
