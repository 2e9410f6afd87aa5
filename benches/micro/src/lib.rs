//! Microbenchmarks of parts of leasehold. `script/bench-micro` runs them.
//!
//! Private modules are included from `src/`, so that they need not become public. This is a
//! library, because cargo would compile the tests of these modules into a benchmark.

pub mod packing;
pub mod queues;
pub mod reentry;
pub mod wheels;

#[allow(dead_code, reason = "the side-by-side benchmark uses the rest")]
#[path = "../../side_by_side/src/spawned.rs"]
mod spawned;

#[allow(dead_code, unreachable_pub, unused_imports, reason = "leasehold uses the rest")]
#[path = "../../../src"]
mod private {
    pub(crate) mod error;
    #[path = "local/queue.rs"]
    pub(crate) mod queue;

    pub(crate) mod command {
        pub(crate) mod script;
    }

    pub(crate) mod transport {
        pub(crate) mod call;
        pub(crate) mod script;
    }

    pub(crate) mod util {
        pub(crate) mod clock;
        pub(crate) mod platform;
        pub(crate) mod system;
        pub(crate) mod text;
        pub(crate) mod wheel;
    }
}

// The paths by which these modules name each other.
use private::{transport, util};
