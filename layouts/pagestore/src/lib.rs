//! Pages, codecs, I/O, memory budget, segments, manifest and errors: the ground floor of Alluvium.
