//! The verbs that print: `ls`, `show`, `watch`, `force`, `audit`.

pub(crate) mod audit;
pub(crate) mod force;
pub(crate) mod ls;
pub(crate) mod show;
pub(crate) mod watch;
