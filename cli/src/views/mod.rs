//! The verbs that print: `ls`, `show`, `watch`, `force`, `audit`.
//!
//! Reading order: [`text`] (printable texts, durations, times), [`table`], [`json`] (the JSON of
//! locks), [`mod@print`] (stdout), then a module per verb.

pub(crate) mod audit;
mod count;
pub(crate) mod force;
pub(crate) mod json;
mod kept;
pub(crate) mod ls;
pub(crate) mod pattern;
pub(crate) mod print;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod watch;
