//! Guides, with no code in them: what does not fit on the page of an item.

pub mod guarantees;
pub mod kinds;
pub mod logging;
pub mod metrics;
pub mod settings;

#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../COMPARE.md")]
pub mod comparison {}

#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/questions.md")]
pub mod questions {}

#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/recipes.md")]
pub mod recipes {}

#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/topologies.md")]
pub mod topologies {}

#[cfg(all(doc, not(doctest)))]
#[doc = include_str!("../docs/permissions.md")]
pub mod permissions {}
