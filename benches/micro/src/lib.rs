//! The parts of leasehold whose cost is worth knowing one by one; `script/bench-micro` runs
//! them. The private modules among them are compiled in from `src/`, so that nothing private
//! has to become public. They are in a library, as cargo would compile their tests into a
//! benchmark.

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
        pub(crate) mod call;
        pub(crate) mod script;
    }

    pub(crate) mod util {
        pub(crate) mod clock;
        pub(crate) mod platform;
        pub(crate) mod wheel;
    }
}

// As these modules know each other.
use private::{command, util};
