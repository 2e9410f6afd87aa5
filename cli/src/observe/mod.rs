//! Events of locks, told by the differences between successive looks.

pub(crate) mod event;
